"""What people type and import: the command line, the client, and what a training script may tell its job.

Importing this loads nothing else: `from shardyard import job` in a script needs the standard library
alone, and names below are looked up when they are asked for.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardyard.client import AsyncClient, AsyncJob, Client, Job
    from shardyard.client.report import SplitReport

__version__ = "0.1.0"
__all__ = ["AsyncClient", "AsyncJob", "Client", "Job", "SplitReport", "__version__"]

_LAZY = {
    "AsyncClient": "shardyard.client",
    "AsyncJob": "shardyard.client",
    "Client": "shardyard.client",
    "Job": "shardyard.client",
    "SplitReport": "shardyard.client.report",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
