"""Moves files out of a script's working directory into the storage, and takes ownership of them.

What ranks wrote is not trusted. Every directory on the way to a file is opened from the one above it, and no link is
followed. A file is renamed where both directories are in one file system, into a directory that only the service can
enter, and checked there; otherwise the contents of an open, checked file are copied. Under its final name a file is
always whole.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from workers.supervisor.user_files.left_out import FoundFile

#: What the storage directory must have left after a copy: room for the report and the logs of running jobs.
RESERVED_BYTES: Final = 64 * 1024 * 1024
_CHUNK_BYTES: Final = 8 * 1024 * 1024
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Opening a pipe without O_NONBLOCK would wait for a writer.
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MODE: Final = 0o640


class MoveRefused(Exception):
    """The file is not, or no longer, a plain file of the ranks' account."""


class TimeIsUp(Exception):
    """There was no time left to copy the file."""


class FileMover:
    """Moves files from the open directory `source` below `target`, which only the service can enter. `draft` is where a
    copy is written first; `uid` is whom the files must belong to, where the ranks have an account."""

    def __init__(self, source: int, target: Path, draft: Path, uid: int | None, is_time_up: Callable[[], bool]) -> None:
        self._source = source
        self._target = target
        self._draft = draft
        self._uid = uid
        self._is_time_up = is_time_up
        self._is_one_file_system = True  # until a rename shows that it is not
        self._directories: set[Path] = set()  # that were made

    def move(self, file: FoundFile) -> None:
        """Move one file, whose path is as the selection has found it.

        Raises:
            MoveRefused: it is not what was found.
            TimeIsUp: the copy was given up.
            OSError: it cannot be read, or the disk refuses.
        """
        target = self._target / file.path
        if target.parent not in self._directories:
            target.parent.mkdir(parents=True, exist_ok=True)
            self._directories.add(target.parent)
        with self._open_parent(file.path) as (parent, name):
            if self._is_one_file_system:
                try:
                    os.rename(name, target, src_dir_fd=parent)
                except OSError as error:
                    if error.errno != errno.EXDEV:
                        raise
                    self._is_one_file_system = False
                else:
                    self._own_renamed(target, file)
                    return
            self._copy(parent, name, file)
            self._draft.rename(target)

    @contextlib.contextmanager
    def _open_parent(self, path: str) -> Iterator[tuple[int, str]]:
        """The directory that a file lies in, open, and the name of the file there."""
        *steps, name = path.split("/")
        directory = os.dup(self._source)
        try:
            for step in steps:
                parent, directory = directory, self._step_into(directory, step)
                os.close(parent)
            yield directory, name
        finally:
            os.close(directory)

    @staticmethod
    def _step_into(directory: int, name: str) -> int:
        return os.open(name, _DIRECTORY, dir_fd=directory)

    def _own_renamed(self, target: Path, file: FoundFile) -> None:
        """Take ownership of a file that was just renamed, or remove it again."""
        try:
            descriptor = os.open(target, _FILE)
            try:
                self._check_plain(descriptor, file)
                if self._uid is not None:
                    os.fchown(descriptor, os.geteuid(), os.getegid())
                os.fchmod(descriptor, _MODE)
            finally:
                os.close(descriptor)
        except (OSError, MoveRefused) as error:
            with contextlib.suppress(OSError):
                target.unlink()
            raise MoveRefused(f"{file.path} is no longer a regular file") from error

    def _check_plain(self, descriptor: int, file: FoundFile) -> None:
        found = os.fstat(descriptor)
        is_plain = stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and found.st_size == file.bytes
        if not is_plain or self._uid not in (None, found.st_uid):
            raise MoveRefused(f"{file.path} has changed")

    def _copy(self, parent: int, name: str, file: FoundFile) -> None:
        """Copy a file to the draft, which is removed again where that fails."""
        if self._is_time_up():
            raise TimeIsUp(file.path)
        self._check_room(file.bytes)
        with contextlib.ExitStack() as stack:
            reader = os.open(name, _FILE, dir_fd=parent)
            stack.callback(os.close, reader)
            self._check_plain(reader, file)
            writer = os.open(self._draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, _MODE)
            stack.callback(os.close, writer)
            try:
                self._send_contents(reader, writer, file)
                os.fchmod(writer, _MODE)
                os.utime(writer, ns=(file.mtime_ns, file.mtime_ns))
            except BaseException:
                self._draft.unlink(missing_ok=True)
                raise

    def _send_contents(self, reader: int, writer: int, file: FoundFile) -> None:
        left = file.bytes
        while left:
            if self._is_time_up():
                raise TimeIsUp(file.path)
            sent = os.sendfile(writer, reader, None, min(left, _CHUNK_BYTES))
            if not sent:
                raise MoveRefused(f"{file.path} has become shorter")
            left -= sent

    def _check_room(self, size: int) -> None:
        disk = os.statvfs(self._target)
        if disk.f_bavail * disk.f_frsize < size + RESERVED_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
