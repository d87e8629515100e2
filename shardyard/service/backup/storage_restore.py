"""Makes a storage directory from a back-up, by the steps of its list of files.

The list decides what is made, and the back-up only gives the contents: whatever else lies in it is not looked at. No
link in it is followed, and what it holds must be what the list says.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from jobs.support import fs
from jobs.support.directory_cursor import DirectoryCursor
from shardyard.service.backup.file_list import (
    EnteredDirectory,
    FileContents,
    LeftDirectories,
    ListDamaged,
    SharedFile,
    StoredFile,
    StoredLink,
    WalkStep,
    unquote_name,
)
from shardyard.service.backup.left_out import show_path
from shardyard.service.backup.manifest import SHARED, STORAGE
from shardyard.service.backup.refusals import BackupError
from shardyard.service.backup.sparse_copy import SourceUnreadable, copy_contents

_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_WRITE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
#: Where files with several names are made first; gone when all have their names.
_SHARED: Final = ".shared"
#: What a file system answers that has no hard links, or no more of them for one file.
_NO_LINKS: Final = frozenset((errno.EMLINK, errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS))


class _Place(NamedTuple):
    """A file: its name, and the open directory that it lies in (None: the name is a path)."""

    name: str
    directory: int | None


def restore_storage(source: Path, part: Path, steps: Iterable[WalkStep]) -> None:
    """Make `part/storage`, which is new, from the back-up `source`.

    Raises:
        BackupError: a file is missing or is not what was saved, or the list is damaged.
        OSError: the disk refuses.
    """
    if not (source / STORAGE).is_dir():
        raise BackupError(f"the back-up is not complete: {STORAGE} is missing")
    (part / STORAGE).mkdir()
    (part / _SHARED).mkdir(mode=0o700)
    try:
        with contextlib.closing(_StorageRestore(source, part)) as restore:
            for step in steps:
                restore.take(step)
    except ListDamaged as error:
        raise BackupError(f"the back-up is damaged: its list of files cannot be used: {error}") from error
    finally:
        fs.remove_tree(part / _SHARED)


class _StorageRestore:
    """One walk through a back-up and the storage directory that is made from it, side by side."""

    def __init__(self, source: Path, part: Path) -> None:
        self._given = DirectoryCursor(source / STORAGE)
        self._made = DirectoryCursor(part / STORAGE)
        self._given_shared, self._made_shared = source / SHARED, part / _SHARED
        self._modes: list[int] = []  # of the directories that were entered

    def close(self) -> None:
        self._given.close()
        self._made.close()

    def take(self, step: WalkStep) -> None:
        match step:
            case EnteredDirectory(name=name, mode=mode):
                self._enter(unquote_name(name), mode)
            case LeftDirectories(levels=levels):
                self._leave(levels)
            case StoredFile(name=quoted, contents=contents):
                name = unquote_name(quoted)
                shown = [STORAGE, *self._made.names, name]
                _copy_checked(_Place(name, self._given.fd), _Place(name, self._made.fd), contents, shown)
            case SharedFile(number=number, contents=contents):
                given, made = (str(top / str(number)) for top in (self._given_shared, self._made_shared))
                _copy_checked(_Place(given, None), _Place(made, None), contents, [SHARED, str(number)])
            case StoredLink(name=name, number=number):
                self._link(number, unquote_name(name))

    def _enter(self, name: str, mode: int) -> None:
        with _required([STORAGE, *self._made.names, name], OSError):
            self._given.enter(name)
        os.mkdir(name, 0o700, dir_fd=self._made.fd)
        self._made.enter(name)
        self._modes.append(mode)

    def _leave(self, levels: int) -> None:
        if not 0 < levels <= len(self._modes):
            raise ListDamaged("it leaves more directories than it has entered")
        for _ in range(levels):
            # no directory is closed to its owner, who has to walk there again
            os.fchmod(self._made.fd, self._modes.pop() & 0o777 | stat.S_IRWXU)
            if self._given.leave() != 1 or self._made.leave() != 1:
                raise OSError(errno.ESTALE, "a directory was moved while it was copied")

    def _link(self, number: int, name: str) -> None:
        """Give a shared file one of its names; a copy where the file system has no hard links."""
        made = str(self._made_shared / str(number))
        try:
            os.link(made, name, dst_dir_fd=self._made.fd, follow_symlinks=False)
        except FileNotFoundError as error:
            raise ListDamaged(f"it names the shared file {number} before it has it") from error
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            with _opened(made, _READ, None) as reader, _opened(name, _WRITE, self._made.fd) as writer:
                status = os.fstat(reader)
                copy_contents(reader, writer, status.st_size, sparse=True)
                _set_mode(writer, status.st_mode, status.st_mtime_ns)


def _copy_checked(given: _Place, made: _Place, contents: FileContents, shown: list[str]) -> None:
    """Copy a file of the back-up, which must have these contents; `shown` is its path for a message."""
    with contextlib.ExitStack() as stack:
        with _required(shown, OSError, SourceUnreadable):
            reader = stack.enter_context(_opened(given.name, _READ, given.directory))
            status = os.fstat(reader)
            if not stat.S_ISREG(status.st_mode):
                raise SourceUnreadable("it is not a plain file")
        writer = stack.enter_context(_opened(made.name, _WRITE, made.directory))
        with _required(shown, SourceUnreadable):
            copied = copy_contents(reader, writer, status.st_size, sparse=contents.sparse)
        if (copied.bytes, copied.sha256) != (contents.bytes, contents.sha256):
            raise BackupError(
                f"the back-up is damaged: {show_path(shown)} is not what was saved (its SHA-256 is another)"
            )
        mode = status.st_mode if contents.mode is None else contents.mode
        _set_mode(writer, mode, status.st_mtime_ns if contents.modified_ns is None else contents.modified_ns)


def _set_mode(file: int, mode: int, modified_ns: int) -> None:
    os.fchmod(file, stat.S_IMODE(mode) & 0o777)
    os.utime(file, ns=(modified_ns, modified_ns))


@contextlib.contextmanager
def _opened(name: str, flags: int, directory: int | None) -> Iterator[int]:
    descriptor = os.open(name, flags, 0o600, dir_fd=directory)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _required(shown: list[str], *failures: type[Exception]) -> Iterator[None]:
    """What the list names must be there, and give its contents."""
    try:
        yield
    except failures as error:
        why = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read: {error}"
        raise BackupError(f"the back-up is not complete: {show_path(shown)} {why}") from error
