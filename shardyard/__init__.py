"""What people type and import: the command line, the client, and what a training script may tell its job.

Importing this loads nothing else: `from shardyard import job` in a script needs the standard library
alone, and names below are looked up when they are asked for.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardyard.client import AsyncClient, AsyncJob, Client, Job
    from shardyard.client.report import SplitReport
    from shardyard.functions.job_api import job
    from shardyard.specs.builders import Component, Data, Recipe, Script

__version__ = "0.2.0"
__all__ = [
    "AsyncClient",
    "AsyncJob",
    "Client",
    "Component",
    "Data",
    "Job",
    "Recipe",
    "Script",
    "SplitReport",
    "__version__",
    "job",
]

_LAZY = {
    "AsyncClient": "shardyard.client",
    "AsyncJob": "shardyard.client",
    "Client": "shardyard.client",
    "Component": "shardyard.specs.builders",
    "Data": "shardyard.specs.builders",
    "Job": "shardyard.client",
    "Recipe": "shardyard.specs.builders",
    "Script": "shardyard.specs.builders",
    "SplitReport": "shardyard.client.report",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY and name != "job":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    if name == "job":
        return import_module("shardyard.job")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY, "job"])
