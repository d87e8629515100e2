"""Measures what an attempt has on disk: bytes and files below the directories that are its own.

A walk over all files takes as long as there are files, so walks are far apart. Between them the free space of the file
systems says how much can have been written at most: when that may be all that was left, the next walk comes at once.
A file that was removed and is still open takes space too, and is found among what the processes have open.
"""

import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from workers.runtime.limits import AttemptLimits
from workers.supervisor.limits.background_meter import BackgroundMeter
from workers.supervisor.limits.breach import LimitBreach
from workers.supervisor.limits.disk_room import DiskRoom
from workers.supervisor.limits.process_meter import ListProcesses
from workers.supervisor.limits.tree_walk import MAX_DEPTH, TreeUsage, add_tree

#: How often the free space is looked at.
LOOK_SECONDS = 0.25
#: Between the end of a walk and the next one: at least this, and so many times what the walk has taken. The second
#: factor is for one that free space has called for: other attempts may be what writes.
WALK_SECONDS = 1.0
WALK_FACTOR, HURRIED_FACTOR = 10, 3
#: Open files that are looked at in one measurement.
MAX_OPEN_FILES = 65_536
TOO_DEEP = f"Directories nested more than {MAX_DEPTH} deep cannot be counted, and are not allowed: use fewer levels."


IsEnough = Callable[[TreeUsage], bool]


@dataclass(frozen=True, slots=True)
class FreeSpace:
    """Of all file systems that the attempt writes to together. `files` is None where one of them has no fixed number of
    files."""

    bytes: int
    files: int | None


class DiskMeter(BackgroundMeter):
    """`directories` are the attempt's own; some of them may not be there. `list_processes` is called by another
    thread. `room`, where it is given, is told what was found."""

    def __init__(
        self,
        limits: AttemptLimits,
        directories: Sequence[Path],
        list_processes: ListProcesses,
        room: DiskRoom | None = None,
    ) -> None:
        self._limits = limits
        self._room = room
        self._directories = directories
        self._list_processes = list_processes
        self._usage = TreeUsage()  # of the last walk
        self._free = read_free_space(directories)  # before it
        self._walk_at = time.monotonic() + WALK_SECONDS
        self._hurry_at = 0.0
        super().__init__("disk")

    def measure(self) -> float:
        now, free = time.monotonic(), read_free_space(self._directories)
        shrinks = free != self._free and self._is_room_short()
        if now >= self._walk_at or (now >= self._hurry_at and (shrinks or self._may_be_over(free))):
            self._walk(free)
            took = time.monotonic() - now
            self._walk_at = time.monotonic() + max(WALK_SECONDS, WALK_FACTOR * took)
            self._hurry_at = time.monotonic() + HURRIED_FACTOR * took
        return LOOK_SECONDS

    def close(self) -> None:
        """Measure once more where that may matter: what was written last counts, too."""
        super().close()
        if self.breach is not None or self._thread.is_alive():
            return
        with suppress(OSError):
            free = read_free_space(self._directories)
            if self._may_be_over(free) or free.files is None or self._is_room_short():
                self._walk(free)

    def _walk(self, free: FreeSpace) -> None:
        self._free = free
        self._usage = measure_directories(self._directories, self._list_processes, self._is_enough)
        if self._room is not None:
            self._room.report(self._usage)
        self.breach = self._find_breach()

    def _is_room_short(self) -> bool:
        return self._room is not None and self._room.look()

    def _may_be_over(self, free: FreeSpace) -> bool:
        """Whether half of what was left can have been written since the last walk."""
        left_bytes = self._limits.disk_bytes - self._usage.bytes
        left_files = self._limits.files - self._usage.entries
        fewer_files = (self._free.files or 0) - (free.files or 0)
        return self._free.bytes - free.bytes > left_bytes // 2 or fewer_files > left_files // 2

    def _is_enough(self, usage: TreeUsage) -> bool:
        """Whether a walk need not go on."""
        over = usage.bytes > self._limits.disk_bytes or usage.entries > self._limits.files
        return over or usage.is_too_deep

    def _find_breach(self) -> LimitBreach | None:
        usage, limits = self._usage, self._limits
        if usage.bytes > limits.disk_bytes:
            return LimitBreach("disk", usage.bytes, limits.disk_bytes)
        if usage.entries > limits.files:
            return LimitBreach("files", usage.entries, limits.files)
        return LimitBreach("files", usage.entries, limits.files, TOO_DEEP) if usage.is_too_deep else None


def measure_directories(directories: Sequence[Path], list_processes: ListProcesses, is_enough: IsEnough) -> TreeUsage:
    """What is below the directories, and what the processes have open of it that has no name any more."""
    usage = TreeUsage()
    for directory in directories:
        add_tree(directory, usage, is_enough)
    devices = _devices_of(directories)
    for status in _open_files(list_processes):
        if status.st_nlink == 0 and status.st_dev in devices:
            usage.add_bytes(status)
        if is_enough(usage):
            break
    return usage


def read_free_space(directories: Sequence[Path]) -> FreeSpace:
    """What is free below these directories. Raises OSError where the system does not say."""
    found = {device: os.statvfs(path) for device, path in _devices_of(directories).items()}
    files = [one.f_ffree if one.f_files else None for one in found.values()]
    known = [count for count in files if count is not None]
    free = sum(one.f_bavail * one.f_frsize for one in found.values())
    return FreeSpace(free, sum(known) if len(known) == len(files) else None)


def _devices_of(directories: Sequence[Path]) -> dict[int, Path]:
    """The file systems of those directories that are there."""
    devices: dict[int, Path] = {}
    for directory in directories:
        with suppress(OSError):
            devices.setdefault(os.stat(directory).st_dev, directory)
    return devices


def _open_files(list_processes: ListProcesses) -> Iterator[os.stat_result]:
    """Plain files that processes have open, one time for each descriptor."""
    looked_at = 0
    for pid in list_processes():
        with suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                looked_at += 1
                if looked_at > MAX_OPEN_FILES:
                    return
                with suppress(OSError):
                    status = os.stat(f"/proc/{pid}/fd/{fd}")
                    if stat.S_ISREG(status.st_mode):
                        yield status
