"""Files and directories on disk: replaced at once, names that are synced, space that is allocated ahead, and trees of
users' programs, removed."""

import contextlib
import ctypes
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from jobs.support.directory_cursor import DirectoryCursor

_LOCK = ".lock"


def sync_directory(directory: Path) -> None:
    """Have the names in a directory on the disk: of files that were made, renamed or removed there.

    Raises:
        OSError: the disk refuses, or it is no directory.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, body: bytes) -> None:
    """Write a file so that a reader sees the old one or the new one. It is not synced: what need not outlive the host's
    power.

    Raises:
        OSError: the disk refuses.
    """
    draft = path.with_name(f".{path.name}.part")
    draft.write_bytes(body)
    draft.replace(path)


def replace_synced(path: Path, body: bytes) -> None:
    """As `replace_file`, and on the disk when this returns. Raises OSError."""
    draft = path.with_name(f".{path.name}.part")
    with draft.open("wb", buffering=0) as file:
        file.write(body)
        os.fsync(file.fileno())
    draft.replace(path)
    sync_directory(path.parent)


def write_private(path: Path, body: bytes) -> None:
    """As `replace_synced`, for what only the file's owner may read, from the first byte on. A file that has this
    already is left alone: a full disk must not keep a service from starting. Raises OSError."""
    if path.is_file() and stat.S_IMODE(path.stat().st_mode) == 0o600 and path.read_bytes() == body:
        return
    draft = path.with_name(f".{path.name}.part")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    sync_directory(path.parent)


@contextlib.contextmanager
def hold_directory(directory: Path) -> Iterator[bool]:
    """Whether this process has a directory for itself, which is made if need be: no other one holds it.

    Raises:
        OSError: it cannot be made, or cannot be locked.
    """
    directory.mkdir(parents=True, exist_ok=True)
    lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
    else:
        yield True
    finally:
        os.close(lock)


def overwrite_file(path: Path, body: bytes) -> None:
    """Write a file in place, made if need be: what it had allocated is used again, so a full disk takes a body that is
    no longer. Not for readers that come meanwhile.

    Raises:
        OSError: the disk refuses.
    """
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(file, body, 0)
        os.ftruncate(file, len(body))
    finally:
        os.close(file)


def write_at(file: int, body: bytes, offset: int) -> None:
    """Write all of a body into an open file; the system may take it in pieces.

    Raises:
        OSError: the disk refuses; a part may be written.
    """
    left = memoryview(body)
    while left:
        written = os.pwrite(file, left, offset)
        left, offset = left[written:], offset + written


def allocate_file(path: Path, size: int) -> None:
    """Have a file of `size` bytes whose space is allocated, made if need be.

    Raises:
        OSError: there is no room, or its file system cannot do that.
    """
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _allocate(file, 0, 0, size)
    finally:
        os.close(file)


def allocate_ahead(path: Path, size: int) -> None:
    """Allocate space for the next `size` bytes that are appended to a file, whose length stays as it is. Raises as
    `allocate_file` does, and where there is no such file."""
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        _allocate(file, _KEEP_SIZE, os.fstat(file).st_size, size)
    finally:
        os.close(file)


_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE


def _allocate(file: int, mode: int, offset: int, size: int) -> None:
    """The system call: `os.posix_fallocate` has no mode, and fills the file where its file system cannot allocate."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(file, mode, ctypes.c_int64(offset), ctypes.c_int64(size)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def read_plain_file(path: Path, most: int) -> bytes:
    """The first bytes of a file that a job may have replaced: a link is not followed, and a pipe not waited for.

    Raises:
        FileNotFoundError: there is no plain file.
        OSError: it cannot be read.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, a socket
            raise FileNotFoundError(errno.ENOENT, "not a plain file", str(path)) from error
        raise
    with open(file, "rb") as reader:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise FileNotFoundError(errno.ENOENT, "not a plain file", str(path))
        return reader.read(most)


def remove_path(path: Path) -> None:
    """Remove a file, or a directory and all in it, as `remove_tree` does. Raises OSError; it may be gone already."""
    try:
        path.unlink(missing_ok=True)
    except IsADirectoryError:
        remove_tree(path)


def remove_tree(directory: Path) -> None:
    """Remove a directory and all in it, however deep that is, and where directories are closed to their owner, whom we
    are. No link is followed. It may be gone already.

    Raises:
        OSError: something of it stays.
    """
    try:
        cursor = DirectoryCursor(directory.parent)
    except FileNotFoundError:
        return
    with contextlib.closing(cursor):
        stays = _remove_entries(cursor, directory.name)
    if stays is not None:
        raise OSError(f"{directory} cannot be removed: {stays}") from stays


def _remove_entries(cursor: DirectoryCursor, top: str) -> OSError | None:
    """Remove an entry of the cursor's directory with all that is below it. The first error, which stops nothing."""
    stays: OSError | None = None
    to_remove = [[top]]
    while to_remove:
        try:
            if to_remove[-1]:
                to_remove += _remove_entry(cursor, to_remove[-1].pop())
            elif len(to_remove) == 1:
                return stays
            else:
                name = cursor.names[-1]
                del to_remove[-cursor.leave() :]
                os.rmdir(name, dir_fd=cursor.fd)
        except FileNotFoundError:  # somebody else removes it, too
            continue
        except OSError as error:
            stays = stays or error
    return stays


def _remove_entry(cursor: DirectoryCursor, name: str) -> list[list[str]]:
    """Remove an entry, or enter it where it is a directory: what is to be removed in there. Raises OSError."""
    try:
        os.unlink(name, dir_fd=cursor.fd)
    except IsADirectoryError:
        _enter_closed(cursor, name)
        return [os.listdir(cursor.fd)]
    return []


def _enter_closed(cursor: DirectoryCursor, name: str) -> None:
    """Enter a directory that may be closed to its owner. Nothing is closed to root, whom a link that takes a name's
    place would lead astray."""
    try:
        cursor.enter(name)
    except PermissionError:
        if os.geteuid() == 0:
            raise
        os.chmod(name, stat.S_IRWXU, dir_fd=cursor.fd)
        cursor.enter(name)
    mode = stat.S_IMODE(os.fstat(cursor.fd).st_mode)
    if os.geteuid() != 0 and mode & stat.S_IRWXU != stat.S_IRWXU:
        os.fchmod(cursor.fd, mode | stat.S_IRWXU)
