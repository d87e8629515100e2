"""What holds for all tiers: settings of the property tests, where events are logged, the order of files, and when
garbage is collected."""

import functools
import gc
import sys
from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest
import structlog
import typer.main
from hypothesis import settings

if TYPE_CHECKING:
    from xdist.remote import Producer

    from tests.support.file_order import SharedServices

# A busy machine is slow, which is no fault of what is tested.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

# Its default writes to standard output, where a thread that an earlier test left could add a line to what a test reads.
structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.__stderr__))

# A process builds its tree of commands once, which takes 40 ms; one that runs tests calls them a thousand times.
typer.main.get_command = functools.cache(typer.main.get_command)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nearly all that it makes stays, most of it torch: collections of garbage would go through that again and again,
    now and in each test that makes many objects."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: "Producer") -> "SharedServices | None":
    from tests.support.file_order import SharedServices

    return SharedServices(config, log) if config.getvalue("dist") == "loadfile" else None
