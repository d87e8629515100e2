"""Counts the processes that the kernel has killed for want of memory: SIGKILL alone does not say who sent it.

The count is that of this process's memory cgroup, which ranks share or lie below, and of their own below it:
`memory.events` under version 2, `memory.oom_control` under version 1, which counts each cgroup by itself.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

_COUNTERS = ("memory.events", "memory.oom_control")
CGROUP_ROOT = Path("/sys/fs/cgroup")


def count_oom_kills(
    directories: Sequence[Path] = (), root: Path = CGROUP_ROOT, own: Path = Path("/proc/self/cgroup")
) -> int | None:
    """Processes that the kernel's out-of-memory killer has killed here so far; None where it is not known.
    `directories` are those of the ranks' own cgroup."""
    here = (_read_count(file) for file in _counter_files(root, own))
    first = next((count for count in here if count is not None), None)
    below = [_read_count(directory / name) for directory in directories for name in _COUNTERS]
    known = [count for count in (first, *below) if count is not None]
    return sum(known) if known else None


def watch_oom_kills(cgroups: Sequence[Path]) -> Callable[[], bool]:
    """What says whether the kernel has killed in these cgroups for want of memory from now on."""
    before = count_oom_kills(cgroups)
    return lambda: count_oom_kills(cgroups) != before


def _read_count(file: Path) -> int | None:
    try:
        return int(dict(line.split() for line in file.read_text().splitlines())["oom_kill"])
    except (OSError, ValueError, KeyError):
        return None


def _counter_files(root: Path, own: Path) -> list[Path]:
    """Files that may have the count. In a container the cgroup's own path does not exist; the mount is its root."""
    try:
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    except (OSError, ValueError):
        return []
    places = []
    for number, controllers, path in lines:
        relative = path.lstrip("/")
        if number == "0":
            places += [root / relative / "memory.events", root / "memory.events"]
        elif "memory" in controllers.split(","):
            places += [root / "memory" / relative / "memory.oom_control", root / "memory" / "memory.oom_control"]
    return places
