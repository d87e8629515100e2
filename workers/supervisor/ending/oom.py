"""Counts the processes that the kernel has killed for want of memory: SIGKILL alone does not say who sent it.

The count is that of this process's memory cgroup, which ranks share or lie below: `memory.events` under
version 2, `memory.oom_control` under version 1.
"""

from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")


def count_oom_kills(root: Path = CGROUP_ROOT, own: Path = Path("/proc/self/cgroup")) -> int | None:
    """Processes that the kernel's out-of-memory killer has killed here so far; None where it is not known."""
    for file in _counter_files(root, own):
        try:
            counts = dict(line.split() for line in file.read_text().splitlines())
            return int(counts["oom_kill"])
        except (OSError, ValueError, KeyError):
            continue
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
