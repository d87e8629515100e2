"""Storage directories as programs leave them, backed up, restored and compared."""

import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

from jobs.support.directory_cursor import DirectoryCursor
from shardyard.service.backup.file_list import FileListWriter, WalkStep, read_file_list
from shardyard.service.backup.left_out import LeftOutCounter, LeftOutEntries
from shardyard.service.backup.manifest import SHARED, STORAGE, StoredTotals
from shardyard.service.backup.selection import StorageSelection
from shardyard.service.backup.storage_copy import StorageCopy
from shardyard.service.backup.storage_restore import restore_storage

JOB = "t/j"
LIST = "list"


class BackedUpTree:
    """A storage directory with the artifacts of one attempt, and where its back-up and what is made of that go."""

    def __init__(self, directory: Path) -> None:
        self.storage, self.back_up, self.restored = (directory / name for name in ("storage", "copy", "restored"))
        self.attempt = self.storage / "jobs" / JOB / "1"
        self.artifacts = self.attempt / "artifacts"
        self.artifacts.mkdir(parents=True)
        for path in (self.back_up / STORAGE, self.back_up / SHARED, self.restored):
            path.mkdir(parents=True)

    def copy(self, is_time_up: Callable[[], bool] = lambda: False) -> tuple[StoredTotals, dict[str, LeftOutEntries]]:
        """Back it up; what that has, and what was left out, by cause."""
        left_out = LeftOutCounter()
        with FileListWriter(self.back_up / LIST) as steps:
            copy = StorageCopy(StorageSelection(self.storage, {JOB: 1}), self.back_up, steps, left_out, is_time_up)
            stored = copy.run()
        return stored, {found.cause: found for found in left_out.list_causes()}

    def steps(self) -> list[WalkStep]:
        with (self.back_up / LIST).open("rb") as file:
            return list(read_file_list(file))

    def restore(self) -> None:
        restore_storage(self.back_up, self.restored, self.steps())
        assert os.listdir(self.restored) == [STORAGE]

    def round_trip(self) -> dict[str, LeftOutEntries]:
        """Back up and restore, and check that all is as it was; what was left out, by cause."""
        _, left_out = self.copy()
        self.restore()
        assert describe_tree(self.restored / STORAGE) == describe_tree(self.storage)
        return left_out


def make_below(top: Path, name: str, levels: int, body: bytes) -> None:
    """A file below so many directories, which may be deeper than a path can say."""
    with contextlib.closing(DirectoryCursor(top)) as cursor:
        for _ in range(levels):
            os.mkdir(name, dir_fd=cursor.fd)
            cursor.enter(name)
        file = os.open("file", os.O_WRONLY | os.O_CREAT, 0o640, dir_fd=cursor.fd)
        os.write(file, body)
        os.close(file)


def describe_tree(top: Path) -> list[tuple[object, ...]]:
    """Every directory and plain file: its depth, name, mode, size, the time of a file, and its contents."""
    found: list[tuple[object, ...]] = []
    with contextlib.closing(DirectoryCursor(top)) as cursor:
        to_enter = [_describe_here(cursor, found)]
        while to_enter:
            if to_enter[-1]:
                cursor.enter(to_enter[-1].pop())
                to_enter.append(_describe_here(cursor, found))
            else:
                to_enter.pop()
                if to_enter:
                    cursor.leave()
    return found


def _describe_here(cursor: DirectoryCursor, found: list[tuple[object, ...]]) -> list[str]:
    directories = []
    for name in sorted(os.listdir(cursor.fd)):
        status = os.stat(name, dir_fd=cursor.fd, follow_symlinks=False)
        where = len(cursor.names), os.fsencode(name), stat.S_IMODE(status.st_mode)
        if stat.S_ISDIR(status.st_mode):
            directories.append(name)
            found.append(where)
        elif stat.S_ISREG(status.st_mode):
            file = os.open(name, os.O_RDONLY, dir_fd=cursor.fd)
            body = os.read(file, min(status.st_size, 1 << 20))
            os.close(file)
            found.append((*where, status.st_size, status.st_mtime_ns, status.st_nlink, body))
    return directories
