"""The files of the service other than those of running attempts: in a directory they are read and written directly; in
a bucket, `api.bucket.bucket_files` does it."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from jobs.support import fs
from jobs.support.directory_cursor import walk_directories

#: The unit of st_blocks, whatever the blocks of the file system are.
BLOCK_BYTES = 512


class ServiceFiles(Protocol):
    """All paths are absolute, below the storage's root. All raise OSError, and StorageUnavailable."""

    def bring(self, path: Path) -> None:
        """Have a file here, if there is one, so that it can be read."""

    def bring_all(self, wanted: Sequence[Path]) -> None:
        """The same of several, at a time."""

    def exists(self, path: Path) -> bool: ...

    def publish(self, path: Path) -> None:
        """A file that was written here, and is on the disk, is there for all when this returns."""

    def remove(self, path: Path) -> None:
        """Remove a file, or all below a directory. It may be gone already."""

    def list_names(self, directory: Path) -> list[str]:
        """Names in a directory; none where there is no such directory."""

    def list_older(self, directory: Path, before: float) -> list[Path]:
        """Files in the directories of a directory that were written before a time, in seconds since the epoch."""

    def modified_at(self, path: Path) -> float | None:
        """When a file was written, in seconds since the epoch; None where there is none."""

    def count_bytes(self, directory: Path) -> int:
        """Bytes that the files below a directory take; 0 where there is none."""


class MountedFiles:
    """ServiceFiles in a directory."""

    def bring(self, path: Path) -> None:
        return

    def bring_all(self, wanted: Sequence[Path]) -> None:
        return

    def exists(self, path: Path) -> bool:
        return path.exists()

    def publish(self, path: Path) -> None:
        return

    def remove(self, path: Path) -> None:
        fs.remove_path(path)

    def list_names(self, directory: Path) -> list[str]:
        try:
            return os.listdir(directory)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def list_older(self, directory: Path, before: float) -> list[Path]:
        found = []
        for path in directory.glob("*/*"):
            with suppress(OSError):  # it was removed meanwhile, or cannot be looked at
                if path.lstat().st_mtime < before:
                    found.append(path)
        return found

    def modified_at(self, path: Path) -> float | None:
        try:
            return path.lstat().st_mtime
        except FileNotFoundError:
            return None

    def count_bytes(self, directory: Path) -> int:
        total = 0
        with suppress(FileNotFoundError):  # a directory may go while it is read: what is left of it counts next time
            for opened, names in walk_directories(directory):
                for name in names:
                    with suppress(FileNotFoundError):
                        total += os.stat(name, dir_fd=opened, follow_symlinks=False).st_blocks * BLOCK_BYTES
        return total


MOUNTED = MountedFiles()
