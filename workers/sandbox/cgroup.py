"""A cgroup for the ranks of an attempt, where the host lets us make one: version 2, else version 1's pids.

Only used to find processes. Where no cgroup is writable the other three marks of `workers.supervisor.process_sweep` do.
"""

import contextlib
import os
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


def create_cgroup(record: Path, name: str) -> Path | None:
    """Make a cgroup below this process's own and note its path in the file `record`."""
    for parent in _own_cgroups():
        path = parent / f"shardyard.{name}"
        try:
            path.mkdir(exist_ok=True)
            if not os.access(path / "cgroup.procs", os.W_OK):
                continue
        except OSError:
            continue
        record.write_text(str(path))
        return path
    return None


def enter_cgroup(path: Path) -> None:
    """Move the calling process, which has one thread, into a cgroup; its children follow. A host that refuses is no
    error."""
    # Version 1 moves a thread by itself at once; to move a process it stops every fork of the host for 7 to 20 ms.
    tasks = path / "tasks"
    with contextlib.suppress(OSError):
        (tasks if tasks.exists() else path / "cgroup.procs").write_text("0")


def cgroup_members(record: Path) -> list[int]:
    try:
        return [int(pid) for pid in (Path(record.read_text()) / "cgroup.procs").read_text().split()]
    except (OSError, ValueError):
        return []


def remove_cgroup(record: Path) -> None:
    with contextlib.suppress(OSError):
        Path(record.read_text()).rmdir()


def _own_cgroups() -> list[Path]:
    """Directories of this process's own cgroups: the unified hierarchy first."""
    found: dict[str, Path] = {}
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" and (ROOT / "cgroup.controllers").exists():
            found["v2"] = ROOT / path.lstrip("/")
        elif controllers == "pids":
            found["v1"] = ROOT / "pids" / path.lstrip("/")
    return [found[key] for key in ("v2", "v1") if key in found]
