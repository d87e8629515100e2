"""A cgroup for the processes of an attempt, where the host lets us make one: version 2, else the controllers of version
1. It counts and limits what they use, and finds them all."""

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from workers.runtime.limits import AttemptLimits

ROOT = Path("/sys/fs/cgroup")
#: In which cgroups this process is.
OWN = Path("/proc/self/cgroup")
PREFIX = "shardyard."
#: Controllers that limit something, in both versions.
CONTROLLERS = ("memory", "pids", "cpu")
#: Where the worker's own processes go, since version 2 wants processes only in the leaves of a limited tree.
SERVICE = "shardyard-service"
#: A share of the processors for each device that an attempt has, in the units of each version.
_CPU_WEIGHT_V2, _CPU_SHARES_V1 = 100, 1024
_MAX_WEIGHT_V2 = 10_000
#: A box's cgroup is named after the process that made it.
_BOX = "box-"
#: How often controllers are tried to be enabled while another process comes into the tree meanwhile.
_ENABLE_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class JobCgroup:
    """`directories` by controller; version 2 has one for all, under "unified" and under each controller that it has."""

    directories: dict[str, Path]

    @property
    def limited(self) -> frozenset[str]:
        """Controllers by which it can limit what an attempt uses."""
        return frozenset(self.directories) & frozenset(CONTROLLERS)

    def enter(self) -> None:
        """Move the calling process, which has one thread, here; its children follow.

        Raises:
            OSError: the host refuses.
        """
        for directory in set(self.directories.values()):
            # Version 1 moves a thread by itself at once; to move a process it stops every fork of the host for 7 to
            # 20 ms.
            tasks = directory / "tasks"
            (tasks if tasks.exists() else directory / "cgroup.procs").write_text("0")

    def set_limits(self, limits: AttemptLimits, devices: int) -> None:
        """Limit an attempt that has so many devices. One more process than it may have: the first one is ours.

        Raises:
            OSError: the host refuses.
        """
        for controller, name, value in _limit_files(limits, devices, is_v2="unified" in self.directories):
            directory = self.directories.get(controller)
            if directory is not None and (directory / name).exists():
                (directory / name).write_text(str(value))

    def write_record(self, record: Path) -> None:
        """Note in a file where it is, for whoever has to clear up."""
        record.write_text("\n".join(sorted({str(directory) for directory in self.directories.values()})))

    def remove(self) -> None:
        """Remove it, as far as it is empty."""
        for directory in set(self.directories.values()):
            with contextlib.suppress(OSError):
                directory.rmdir()


def create_cgroup(name: str) -> JobCgroup | None:
    """Make a cgroup below this process's own; None where the host allows none."""
    directories: dict[str, Path] = {}
    for controllers, parent in _own_cgroups():
        path = parent / f"{PREFIX}{name}"
        try:
            path.mkdir(exist_ok=True)
        except OSError:
            continue
        if os.access(path / "cgroup.procs", os.W_OK):
            directories |= dict.fromkeys(controllers, path)
    return JobCgroup(directories) if directories else None


def enable_controllers() -> None:
    """Have cgroups of version 2 below this process's own limit what is in them: its processes move to a leaf. A host
    that allows nothing of that is no error; cgroups then have no limits."""
    own = _own_unified()
    if own is None:
        return
    own = own.parent if own.name == SERVICE else own  # systemd may have put us there (DelegateSubgroup)
    try:
        wanted = set(CONTROLLERS) & {*(own / "cgroup.controllers").read_text().split()}
        missing = wanted - {*(own / "cgroup.subtree_control").read_text().split()}
        if not missing:
            return
        for _ in range(_ENABLE_ATTEMPTS):
            if _try_to_enable(own, missing):
                return
    except OSError:
        return


def _try_to_enable(own: Path, controllers: set[str]) -> bool:
    """Empty a cgroup into its leaf, and enable controllers in it; False where a process, perhaps of another worker that
    starts now, has come into it meanwhile. Raises OSError where the host refuses."""
    if (own / "cgroup.type").exists():  # else it is the host's own, which may have processes beside the others
        leaf = own / SERVICE
        leaf.mkdir(exist_ok=True)
        for pid in (own / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                (leaf / "cgroup.procs").write_text(pid)
    try:
        (own / "cgroup.subtree_control").write_text(" ".join(f"+{controller}" for controller in sorted(controllers)))
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True


def remove_unused_cgroups() -> None:
    """Remove what boxes have left whose makers were killed. One that its maker is about to use looks as empty."""
    for _, parent in _own_cgroups():
        for path in parent.glob(f"{PREFIX}{_BOX}*"):
            maker = path.name.removeprefix(f"{PREFIX}{_BOX}").partition("-")[0]
            if not (Path("/proc") / maker).exists():
                with contextlib.suppress(OSError):
                    path.rmdir()


def create_box_cgroup() -> JobCgroup | None:
    """A cgroup for a box that this process makes; None where the host allows none."""
    return create_cgroup(f"{_BOX}{os.getpid()}-{time.monotonic_ns()}")


def cgroup_members(record: Path) -> list[int]:
    """Processes of the cgroup that a file names."""
    found: set[int] = set()
    for directory in read_record(record):
        with contextlib.suppress(OSError, ValueError):
            found.update(int(pid) for pid in (directory / "cgroup.procs").read_text().split())
    return sorted(found)


def remove_cgroup(record: Path) -> None:
    for directory in read_record(record):
        with contextlib.suppress(OSError):
            directory.rmdir()


def read_record(record: Path) -> list[Path]:
    """Directories of the cgroup that a file names; none where there is no such file."""
    try:
        return [Path(line) for line in record.read_text().splitlines() if line]
    except OSError:
        return []


def _limit_files(limits: AttemptLimits, devices: int, *, is_v2: bool) -> list[tuple[str, str, int]]:
    """(controller, file, value). Memory first: version 1 wants it below that of memory and swap together."""
    processes = ("pids", "pids.max", limits.processes + 1)
    if is_v2:
        return [
            ("memory", "memory.max", limits.memory_bytes),
            ("memory", "memory.swap.max", 0),
            processes,
            ("cpu", "cpu.weight", min(_CPU_WEIGHT_V2 * devices, _MAX_WEIGHT_V2)),
        ]
    return [
        ("memory", "memory.limit_in_bytes", limits.memory_bytes),
        ("memory", "memory.memsw.limit_in_bytes", limits.memory_bytes),
        processes,
        ("cpu", "cpu.shares", _CPU_SHARES_V1 * devices),
    ]


def _own_cgroups() -> Iterator[tuple[tuple[str, ...], Path]]:
    """Directories in which this process may have cgroups made, each with its controllers."""
    own = _own_unified()
    if own is not None:
        parent = own.parent if own.name == SERVICE else own
        with contextlib.suppress(OSError):
            enabled = (parent / "cgroup.subtree_control").read_text().split()
            yield ("unified", *(controller for controller in CONTROLLERS if controller in enabled)), parent
        return
    for controllers, path in _read_own_cgroups():
        for controller in CONTROLLERS:
            if controller in controllers:
                yield (controller,), ROOT / controller / path.lstrip("/")


def _own_unified() -> Path | None:
    """The cgroup of this process, where the host has version 2 alone."""
    if not (ROOT / "cgroup.controllers").exists():
        return None
    found = [path for controllers, path in _read_own_cgroups() if controllers == [""]]
    return ROOT / found[0].lstrip("/") if found else None


def _read_own_cgroups() -> list[tuple[list[str], str]]:
    try:
        lines = OWN.read_text().splitlines()
    except OSError:
        return []
    fields = [line.split(":", 2) for line in lines]
    return [(controllers.split(","), path) for _, controllers, path in fields]
