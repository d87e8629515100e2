"""Where copies of files from a bucket are kept on the API's host, and how much room they may take.

    <state directory>/.bucket/<digest of the bucket's URL>/<number>/.lock
                                                                   /files/...   copies, by the paths of the storage
                                                                   /unsent/...  written here, and not in the bucket yet

Each process has a number of its own, so that nobody else removes or extends its copies.
"""

import errno
import fcntl
import hashlib
import os
import time
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Self

import structlog

log = structlog.get_logger(__name__)

MAX_PROCESSES = 64
#: Copies that were used so lately are not removed: whoever asked for them may be about to open them.
USED_SECONDS = 60.0
#: Of a copy on its way, which is not removed.
DRAFT_SUFFIX = ".fetched"
#: What is left of the room when copies had to go.
TRIMMED_SHARE = 0.8


class CacheRoom:
    """The directory of this process, until it is closed. `files` has the copies, `unsent` what is still to be sent."""

    def __init__(self, directory: Path, lock: int, most_bytes: int) -> None:
        self.files, self.unsent = directory / "files", directory / "unsent"
        self._lock = lock
        self._most_bytes = most_bytes
        self._taken = 0
        self._counting = Lock()

    @classmethod
    def claim(cls, state_dir: Path, url: str, most_bytes: int) -> Self:
        """The first directory that no living process has.

        Raises:
            OSError: it cannot be made, or there are too many processes.
        """
        above = state_dir / ".bucket" / hashlib.sha256(url.encode()).hexdigest()[:16]
        for number in range(MAX_PROCESSES):
            directory = above / str(number)
            for each in (directory, directory / "files", directory / "unsent"):
                each.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                continue
            room = cls(directory, lock, most_bytes)
            for draft in room.files.rglob(f".*{DRAFT_SUFFIX}"):
                draft.unlink()
            room.count()
            return room
        raise OSError(errno.EBUSY, f"{MAX_PROCESSES} processes use {above}")

    def close(self) -> None:
        os.close(self._lock)

    def touch(self, path: Path) -> bool:
        """Whether there is a copy, which is in use now."""
        try:
            os.utime(path, (time.time(), path.lstat().st_mtime))
        except FileNotFoundError:
            return False
        return True

    def add(self, count: int) -> None:
        """So many bytes are about to be written: others may have to go."""
        with self._counting:
            self._taken += count
            if self._taken > self._most_bytes:
                self._remove_oldest(int(self._most_bytes * TRIMMED_SHARE))

    def empty(self) -> None:
        """Remove all copies that are not in use: the disk is low."""
        with self._counting:
            self._remove_oldest(0)

    def count(self) -> None:
        with self._counting:
            self._taken = sum(status.st_blocks * 512 for status, _ in _files_below(self.files))

    def _remove_oldest(self, wanted: int) -> None:
        found = sorted(_files_below(self.files), key=lambda one: one[0].st_atime)
        self._taken = sum(status.st_blocks * 512 for status, _ in found)
        before, oldest = self._taken, time.time() - USED_SECONDS
        for status, path in found:
            if self._taken <= wanted or status.st_atime > oldest:
                break
            if path.name.startswith("."):  # one on its way, or the mark of the storage
                continue
            path.unlink(missing_ok=True)
            with suppress(OSError):  # it has others
                path.parent.rmdir()
            self._taken -= status.st_blocks * 512
        log.info("copies_removed", bytes=before - self._taken, left=self._taken)


def _files_below(top: Path) -> list[tuple[os.stat_result, Path]]:
    found = []
    for directory, _, names in os.walk(top):
        for name in names:
            with suppress(FileNotFoundError):
                path = Path(directory) / name
                found.append((path.lstat(), path))
    return found
