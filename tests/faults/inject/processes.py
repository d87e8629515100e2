"""The service's processes, picked by the part that they play."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

SUPERVISOR = "sy-supervisor"
RANK = "sy-rank-"
SPARE = "sy-spare"


def forkserver(worker: int) -> int:
    """The forkserver of a worker.

    Raises:
        ValueError: there is none now.
    """
    found = [
        child.pid
        for child in psutil.Process(worker).children()
        if any("workers.node.forkserver" in part for part in child.cmdline())
    ]
    (pid,) = found
    return int(pid)


def spare(worker: int) -> int:
    """What a worker's forkserver has forked ahead, to be the next supervisor.

    Raises:
        ValueError: there is none now.
    """
    (pid,) = (child.pid for child in psutil.Process(forkserver(worker)).children() if child.name() == SPARE)
    return int(pid)


def ranks_of(supervisor: int) -> dict[int, int]:
    """Rank number -> process, of the living ranks of a supervisor."""
    found = {}
    for child in psutil.Process(supervisor).children(recursive=True):  # in a box, its first process lies between
        with suppress(psutil.NoSuchProcess):
            if child.name().startswith(RANK) and child.status() != psutil.STATUS_ZOMBIE:
                found[int(child.name().removeprefix(RANK))] = int(child.pid)
    return found


def supervisors(state_dir: Path) -> dict[str, int]:
    """Attempt ("tenant.job.n") -> process of its supervisor, of those that live and have left their mark."""
    found = {}
    for mark in state_dir.glob("*/attempts/*/session"):
        with suppress(OSError, ValueError, IndexError, psutil.NoSuchProcess):  # it may be half written
            pid = int(mark.read_text().split()[0])
            if psutil.Process(pid).name() == SUPERVISOR:
                found[mark.parent.name] = pid
    return found


def kill(pid: int) -> bool:
    """As kill -9. False: it was gone already."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """A process that stands still, and goes on afterwards."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
