"""What the kernel does to processes that exceed a cgroup's limits, and what is read of it. Needs root, and controllers
of version 1 or 2 that can be written to."""

import os
import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from workers.runtime.limits import AttemptLimits
from workers.supervisor.limits.cgroup_meter import CgroupMeter

ROOT = Path("/sys/fs/cgroup")
MIB = 1024 * 1024
LIMITS = AttemptLimits(32 * MIB, 5, 2**30, 2**30, 1000, 2**20, 2**20)
#: Where each controller is, and the file of its limit, under versions 1 and 2.
PLACES = {
    "memory": ((ROOT / "memory", "memory.limit_in_bytes"), (ROOT, "memory.max")),
    "pids": ((ROOT / "pids", "pids.max"), (ROOT, "pids.max")),
}


def make_cgroup(controller: str, limit: int) -> Path:
    """A cgroup with a limit; skips the test where there can be none."""
    for parent, file in PLACES[controller]:
        path = parent / f"shardyard-test-{uuid.uuid4().hex}"
        with suppress(OSError):
            path.mkdir()
            try:
                (path / file).write_text(str(limit))
            except OSError:
                path.rmdir()
                raise
            return path
    pytest.skip(f"no cgroup with the controller {controller} can be made here: that takes root")


@pytest.fixture
def cgroup() -> Iterator[Callable[[str, int], Path]]:
    made: list[Path] = []

    def make(controller: str, limit: int) -> Path:
        made.append(make_cgroup(controller, limit))
        return made[-1]

    yield make
    for path in made:
        path.rmdir()


def run_inside(path: Path, work: Callable[[], object]) -> int:
    """The status of a forked process that does `work` in a cgroup."""
    pid = os.fork()
    if pid == 0:
        try:
            (path / "cgroup.procs").write_text(str(os.getpid()))
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    return status


def test_a_process_that_the_kernel_has_killed_for_its_memory_is_a_breach(cgroup: Callable[[str, int], Path]) -> None:
    path = cgroup("memory", 32 * MIB)
    with suppress(OSError):
        (path / "memory.swap.max").write_text("0")
    meter = CgroupMeter(LIMITS, [path])
    assert run_inside(path, lambda: b"x" * MIB) == 0
    assert meter.check(0.0, at_once=True) is None
    assert run_inside(path, lambda: [b"x" * MIB for _ in range(200)]) == signal.SIGKILL
    breach = meter.check(0.0, at_once=True)
    assert breach is not None
    assert (breach.limit, breach.allowed) == ("memory", 32 * MIB)
    assert breach.used >= breach.allowed
    assert CgroupMeter(LIMITS, [path]).check(0.0) == breach  # a rank may be sooner than who watches it


def test_a_process_that_could_not_be_started_is_a_breach(cgroup: Callable[[str, int], Path]) -> None:
    path = cgroup("pids", 5)
    meter = CgroupMeter(LIMITS, [path])

    def fork(count: int) -> None:
        children = []
        with suppress(BlockingIOError):
            for _ in range(count):
                child = os.fork()
                if child == 0:
                    signal.pause()
                children.append(child)
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)

    assert run_inside(path, lambda: fork(4)) == 0
    assert meter.check(0.0, at_once=True) is None
    assert run_inside(path, lambda: fork(10)) == 0
    breach = meter.check(0.0, at_once=True)
    assert breach is not None
    assert (breach.limit, breach.used, breach.allowed) == ("processes", 5, 5)
