"""A memory cgroup whose processes the kernel kills when they have too much."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.faults.scene.machine import CGROUP_V2, MEMORY_V1


@dataclass(frozen=True)
class MemoryGroup:
    path: Path

    def add(self, pid: int) -> None:
        """Have a process, and what it starts from now on, in the group."""
        (self.path / "cgroup.procs").write_text(str(pid))

    def kills(self) -> int:
        """How many processes the kernel has killed here."""
        version_1 = self.path / "memory.oom_control"
        table = version_1 if version_1.exists() else self.path / "memory.events"
        counts = dict(line.split() for line in table.read_text().splitlines())
        return int(counts.get("oom_kill", 0))


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[MemoryGroup]:
    """A new group. Its processes must have ended when this ends."""
    parent, limit = (MEMORY_V1, "memory.limit_in_bytes") if MEMORY_V1.is_dir() else (CGROUP_V2, "memory.max")
    path = parent / f"sy-memory-{os.getpid()}"
    path.mkdir()
    try:
        (path / limit).write_text(str(limit_bytes))
        yield MemoryGroup(path)
    finally:
        for pid in (path / "cgroup.procs").read_text().split():
            (parent / "cgroup.procs").write_text(pid)
        path.rmdir()
