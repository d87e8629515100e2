"""The free space of file systems, measured against what the service reserves for itself."""

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

#: Of a file system that is small against the reserve in the settings, this part is kept instead.
SMALL_PART = 20
#: The most files (inodes) that are kept: an attempt, its log and its report need some dozens.
MAX_RESERVED_FILES = 10_000
#: A file system that was low is so until it has this many times its reserve.
RECOVERED_LEVEL = 1.5


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """What a file system has left, for accounts without rights. `name` says what lies there, `device` is its number
    (`st_dev`). One that does not count files has 0 of them, and keeps none."""

    name: str
    device: int
    free_bytes: int
    reserve_bytes: int
    free_files: int = 0
    reserve_files: int = 0

    @property
    def level(self) -> float:
        """Free space in units of the reserve: below 1 the service has less than it keeps for itself."""
        return min(_ratio(self.free_bytes, self.reserve_bytes), _ratio(self.free_files, self.reserve_files))

    @property
    def lacks_files(self) -> bool:
        """Whether it has fewer files left, for its reserve, than bytes."""
        return _ratio(self.free_files, self.reserve_files) < _ratio(self.free_bytes, self.reserve_bytes)

    @property
    def shortage(self) -> str:
        """What is left, in words."""
        if self.lacks_files:
            return f"{self.free_files:,} files free, and the service keeps {self.reserve_files:,} for itself"
        free, reserve = (f"{number / 1e6:,.0f} MB" for number in (self.free_bytes, self.reserve_bytes))
        return f"{free} free, and the service keeps {reserve} for itself"


def read_space(directory: Path, reserve_bytes: int, name: str = "") -> DiskSpace:
    """The space of the file system that `directory` is on. A small one keeps a twentieth of its size instead of
    `reserve_bytes`.

    Raises:
        OSError: there is no such directory, or its disk does not answer.
    """
    disk = os.statvfs(directory)
    return DiskSpace(
        name=name or str(directory),
        device=directory.stat().st_dev,
        free_bytes=disk.f_bavail * disk.f_frsize,
        reserve_bytes=min(reserve_bytes, disk.f_blocks * disk.f_frsize // SMALL_PART),
        free_files=disk.f_favail,
        reserve_files=min(MAX_RESERVED_FILES, disk.f_files // SMALL_PART) if reserve_bytes else 0,
    )


def read_spaces(directories: Mapping[str, Path], reserve_bytes: int) -> list[DiskSpace]:
    """The space of every file system that one of the directories is on, each once, under the first one's name.
    Directories that cannot be read are left out: whoever needs them says so."""
    found: dict[int, DiskSpace] = {}
    for name, directory in directories.items():
        try:
            space = read_space(directory, reserve_bytes, name)
        except OSError:
            continue
        found.setdefault(space.device, space)
    return list(found.values())


class LowDisks:
    """Which file systems have less free space than their reserve. One that was low is so until it has clearly more."""

    def __init__(self) -> None:
        self._low: frozenset[int] = frozenset()

    def update(self, spaces: Iterable[DiskSpace]) -> list[DiskSpace]:
        """Those of `spaces` that are low now, the worst first."""
        low = [space for space in spaces if space.level < (RECOVERED_LEVEL if space.device in self._low else 1)]
        self._low = frozenset(space.device for space in low)
        return sorted(low, key=lambda space: space.level)


def _ratio(free: int, reserve: int) -> float:
    return free / reserve if reserve else math.inf
