"""A process that survives SIGKILL for as long as this lasts: the kernel keeps what is frozen in a version-1 cgroup
from everything, its own death too, as it does with a process that hangs in a driver."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.faults.scene.machine import FREEZER

FREEZE_SECONDS = 5.0


@contextmanager
def undying(pid: int) -> Iterator[None]:
    group = FREEZER / f"sy-frozen-{os.getpid()}"
    group.mkdir()
    state = group / "freezer.state"
    try:
        (group / "cgroup.procs").write_text(str(pid))
        state.write_text("FROZEN")
        deadline = time.monotonic() + FREEZE_SECONDS
        while state.read_text().strip() != "FROZEN":
            if time.monotonic() > deadline:
                raise TimeoutError(f"process {pid} does not freeze")
            time.sleep(0.01)
        yield
    finally:
        state.write_text("THAWED")
        _remove(group)


def _remove(group: Path) -> None:
    """Give back what is in a group, and remove it. A process that is just dying is in it to its end."""
    deadline = time.monotonic() + FREEZE_SECONDS
    while True:
        with suppress(OSError):
            for left in (group / "cgroup.procs").read_text().split():
                (FREEZER / "cgroup.procs").write_text(left)
            group.rmdir()
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes do not leave {group}")
        time.sleep(0.05)
