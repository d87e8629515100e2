"""Copies the storage directory into a back-up, entry by entry: nothing in it can stop that, or lead elsewhere.

Programs of users may still write while their files are copied. Each entry is looked at before it is opened, without
following a link, and once more when it is open. A directory is walked by its descriptor, with a list of the directories
that are still to enter instead of recursion. What cannot be kept is counted as left out.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from jobs.support.directory_cursor import DirectoryCursor
from shardyard.service.backup.file_list import (
    EnteredDirectory,
    FileContents,
    FileListWriter,
    LeftDirectories,
    SharedFile,
    StoredFile,
    StoredLink,
    quote_name,
)
from shardyard.service.backup.left_out import MAX_ENTRIES, Cause, LeftOutCounter
from shardyard.service.backup.manifest import SHARED, STORAGE, StoredTotals
from shardyard.service.backup.selection import ENTRY_DEPTH, StorageSelection, is_of_program
from shardyard.service.backup.sparse_copy import SourceUnreadable, copy_contents, is_sparse

#: Opening a pipe without O_NONBLOCK would wait for a writer.
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_WRITE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CAUSES: Final[dict[int, Cause]] = {
    stat.S_IFLNK: "link",
    stat.S_IFSOCK: "socket",
    stat.S_IFIFO: "pipe",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}
#: What was a file a moment before.
_UNREAD: Final[dict[int, Cause]] = {
    errno.ENOENT: "vanished",
    errno.ELOOP: "changed",
    errno.ENXIO: "changed",
    errno.ENOTDIR: "changed",
}
#: What a disk that takes fewer names, or smaller files, than that of the storage answers.
_REFUSED_NAME: Final = frozenset(
    (errno.EILSEQ, errno.EINVAL, errno.ENAMETOOLONG, errno.EEXIST, errno.EFBIG, errno.EISDIR, errno.ENOTDIR)
)


class _LeftOut(Exception):
    """One entry cannot be kept."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause)
        self.cause: Cause = cause


class _SharedContents(NamedTuple):
    """A file with several names that was copied: its number, and its size and time then."""

    number: int
    stamp: tuple[int, int]


class StorageCopy:
    """One walk over a storage directory. `is_time_up` is asked in the directories that programs fill."""

    def __init__(
        self,
        selection: StorageSelection,
        back_up: Path,
        steps: FileListWriter,
        left_out: LeftOutCounter,
        is_time_up: Callable[[], bool],
    ) -> None:
        self._selection = selection
        self._steps = steps
        self._left_out = left_out
        self._is_time_up = is_time_up
        self._source = DirectoryCursor(selection.storage)
        self._target = DirectoryCursor(back_up / STORAGE)
        self._shared_directory = back_up / SHARED
        self._shared: dict[tuple[int, int], _SharedContents] = {}
        self._shared_count = 0
        self._entries = 0  # of the directory of an attempt that the walk is in
        self._directories, self._files, self._bytes = 0, 0, 0

    def run(self) -> StoredTotals:
        """Copy everything.

        Raises:
            OSError: the storage directory itself cannot be read, or the back-up cannot be written.
        """
        with contextlib.closing(self._source), contextlib.closing(self._target):
            to_enter = [self._copy_entries()]
            while to_enter:
                if to_enter[-1]:
                    if self._enter(to_enter[-1].pop()):
                        to_enter.append(self._copy_entries())
                else:
                    del to_enter[-(self._leave() if len(to_enter) > 1 else 1) :]
        return StoredTotals(directories=self._directories, files=self._files, bytes=self._bytes)

    # -- directories -------------------------------------------------------------------------------

    def _enter(self, name: str) -> bool:
        """Go into a directory on both sides, unless it cannot be kept."""
        try:
            self._require_budget()
            with _reading():
                self._source.enter(name)
        except _LeftOut as left_out:
            self._left_out.add(left_out.cause, [*self._source.names, name])
            return False
        try:
            with _naming():
                os.mkdir(name, 0o700, dir_fd=self._target.fd)
                self._target.enter(name)
        except _LeftOut as left_out:
            self._left_out.add(left_out.cause, self._source.names)
            self._source.leave()
            return False
        if len(self._source.names) == ENTRY_DEPTH:
            self._entries = 0
        self._directories += 1
        mode = stat.S_IMODE(os.fstat(self._source.fd).st_mode)
        self._steps.add(EnteredDirectory(quote_name(name), mode & 0o777))
        return True

    def _leave(self) -> int:
        """Go back to the directory above, or further where that was moved meanwhile; how many were left."""
        left = self._source.leave()
        if left > 1:
            self._left_out.add("vanished", self._target.names[: 1 - left])
        for _ in range(left):
            self._target.leave()
        if self._target.names != self._source.names:
            raise OSError(errno.ESTALE, "a directory of the back-up was moved while it was written")
        self._steps.add(LeftDirectories(left))
        return left

    def _copy_entries(self) -> list[str]:
        """Copy the files of the current directory; the names of the directories in it that are to be entered."""
        directories = []
        here = self._source.names
        try:
            for name in _list_names(self._source.fd):
                if self._selection.has([*here[:ENTRY_DEPTH], name]):
                    self._require_budget()
                    self._entries += 1
                    if self._copy_entry(name):
                        directories.append(name)
        except _LeftOut as left_out:
            if not here:
                raise OSError(errno.EIO, "the storage directory cannot be read") from left_out
            self._left_out.add(left_out.cause, here)
            return []
        # the last is entered first: what a program may fill without end waits for the service's own files
        return sorted(directories, key=lambda name: not is_of_program([*here, name]))

    def _require_budget(self) -> None:
        if len(self._source.names) >= ENTRY_DEPTH and self._entries >= MAX_ENTRIES:
            raise _LeftOut("count")
        self._require_time()

    def _require_time(self) -> None:
        if is_of_program(self._source.names) and self._is_time_up():
            raise _LeftOut("deadline")

    # -- files -------------------------------------------------------------------------------------

    def _copy_entry(self, name: str) -> bool:
        """Copy one entry of the current directory. True for a directory, which is entered later."""
        try:
            if self._is_directory(name):
                return True
            with _open_plain_file(name, self._source.fd) as (reader, status):
                if status.st_nlink > 1:
                    self._copy_shared(name, reader, status)
                else:
                    copied = self._copy_contents(reader, status, name, self._target.fd)
                    self._steps.add(StoredFile(quote_name(name), copied))
            self._files += 1
        except _LeftOut as left_out:
            self._left_out.add(left_out.cause, [*self._source.names, name])
        return False

    def _is_directory(self, name: str) -> bool:
        """Looks at an entry before anything opens it; what is no file either is left out."""
        with _reading():
            kind = stat.S_IFMT(os.stat(name, dir_fd=self._source.fd, follow_symlinks=False).st_mode)
        if kind in _CAUSES:
            raise _LeftOut(_CAUSES[kind])
        return kind == stat.S_IFDIR

    def _copy_shared(self, name: str, reader: int, status: os.stat_result) -> None:
        """Copy a file with several names when the first of them is met."""
        identity, stamp = (status.st_dev, status.st_ino), (status.st_size, status.st_mtime_ns)
        known = self._shared.get(identity)
        if known is None or known.stamp != stamp:
            self._shared_count += 1
            number = self._shared_count
            copied = self._copy_contents(reader, status, str(self._shared_directory / str(number)), None)
            self._steps.add(SharedFile(number, copied))
            known = _SharedContents(number, stamp)
            self._shared[identity] = known
        self._steps.add(StoredLink(quote_name(name), known.number))

    def _copy_contents(self, reader: int, status: os.stat_result, name: str, directory: int | None) -> FileContents:
        with _naming():
            writer = os.open(name, _WRITE, 0o600, dir_fd=directory)
        try:
            with _naming():
                copied = copy_contents(
                    reader, writer, status.st_size, sparse=is_sparse(status), check=self._require_time
                )
            os.utime(writer, ns=(status.st_mtime_ns, status.st_mtime_ns))
        except BaseException as error:
            os.unlink(name, dir_fd=directory)
            if isinstance(error, SourceUnreadable):
                raise _LeftOut("unreadable") from error
            raise
        finally:
            os.close(writer)
        self._bytes += copied.stored
        return FileContents(
            bytes=copied.bytes,
            sha256=copied.sha256,
            mode=stat.S_IMODE(status.st_mode) & 0o777,
            modified_ns=status.st_mtime_ns,
            sparse=is_sparse(status),
        )


def _list_names(directory: int) -> Iterator[str]:
    with _reading(), os.scandir(directory) as entries:
        for entry in entries:
            yield entry.name


@contextlib.contextmanager
def _open_plain_file(name: str, directory: int) -> Iterator[tuple[int, os.stat_result]]:
    """A file of a directory, open, and what it is now."""
    with _reading():
        reader = os.open(name, _READ, dir_fd=directory)
    try:
        status = os.fstat(reader)
        if not stat.S_ISREG(status.st_mode):
            raise _LeftOut("changed")
        yield reader, status
    finally:
        os.close(reader)


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    """What the storage does not give is left out."""
    try:
        yield
    except OSError as error:
        raise _LeftOut(_UNREAD.get(error.errno or 0, "unreadable")) from error


@contextlib.contextmanager
def _naming() -> Iterator[None]:
    """What the disk of the back-up does not take for its name or size is left out; a full disk ends the back-up."""
    try:
        yield
    except OSError as error:
        if error.errno in _REFUSED_NAME:
            raise _LeftOut("name") from error
        raise
