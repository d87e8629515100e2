"""A directory as remote storage: the API's side of what nodes carry to it, and the first that the contract is tried on.

Every step of a path is opened by its name within the one before, and no link is followed: what lies there may be named
by users' programs.
"""

import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader, BufferedWriter
from pathlib import Path, PurePosixPath

from jobs.storage.remote import (
    CHUNK_BYTES,
    DigestMismatch,
    OffsetMismatch,
    RemoteError,
    RemoteFull,
    RemoteUnavailable,
    UnknownFile,
    check_path,
    read_in_turn,
)
from jobs.support import fs

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
#: How a system says that it copies no such files by itself.
_NOT_COPIED = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
_COPY_BYTES = 64 * 1024 * 1024


class DirectoryStorage:
    """RemoteStorage in a directory of this host."""

    append_seconds = 0.0

    def __init__(self, root: Path) -> None:
        self._root = root

    def append(self, path: str, offset: int, data: bytes) -> None:
        if len(data) > CHUNK_BYTES:
            raise ValueError(f"at most {CHUNK_BYTES} bytes are appended at a time")
        file = self.open_file(path, os.O_RDWR | os.O_CREAT, make=True)
        try:
            with _translated(path):
                self._append(path, file, offset, data)
        finally:
            os.close(file)

    def _append(self, path: str, file: int, offset: int, data: bytes) -> None:
        size = os.fstat(file).st_size
        known = max(0, min(size - offset, len(data)))
        if offset > size or os.pread(file, known, offset) != data[:known]:
            raise OffsetMismatch(path, offset, size)
        fs.write_at(file, data[known:], offset + known)

    def put(self, path: str, file: Path, digest: str) -> None:
        check_path(path)
        with _translated(path), file.open("rb") as reader:
            self._store(path, reader, digest)

    def copy(self, source: str, path: str, size: int, digest: str) -> None:
        check_path(path)
        with open(self.open_file(source), "rb") as reader, _translated(path):
            if os.fstat(reader.fileno()).st_size != size:
                raise DigestMismatch(f"{source} has not {size} bytes")
            self._store(path, reader, digest)

    def _store(self, path: str, reader: BufferedReader, digest: str) -> None:
        with self._parent(check_path(path), make=True) as (parent, name):
            draft = f".{hashlib.sha256(name.encode(errors='surrogateescape')).hexdigest()[:16]}.{digest[:16]}.part"
            target = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _FILE, 0o600, dir_fd=parent)
            try:
                with open(target, "wb") as writer:
                    _copy_contents(reader, writer)
                    writer.flush()
                    os.fsync(writer.fileno())
                with open(os.open(draft, os.O_RDONLY | _FILE, dir_fd=parent), "rb") as stored:
                    _require_digest(stored, path, digest)
                os.replace(draft, name, src_dir_fd=parent, dst_dir_fd=parent)
                os.fsync(parent)
            except BaseException:
                with suppress(OSError):
                    os.unlink(draft, dir_fd=parent)
                raise

    def adopt(self, path: str, draft: str) -> None:
        """Have a file of the storage, which is on the disk, take a path, and any other's place there.

        Raises:
            UnknownFile: there is no such draft.
        """
        with (
            _translated(path),
            self._parent(check_path(draft), make=False) as (source, draft_name),
            self._parent(check_path(path), make=True) as (parent, name),
        ):
            os.replace(draft_name, name, src_dir_fd=source, dst_dir_fd=parent)
            os.fsync(parent)

    def open_file(self, path: str, flags: int = os.O_RDONLY, *, make: bool = False) -> int:
        """The descriptor of a plain file, which whoever has it closes.

        Raises:
            UnknownFile: there is no such file.
        """
        with _translated(path), self._parent(check_path(path), make=make) as (parent, name):
            file = os.open(name, flags | _FILE, 0o600, dir_fd=parent)
            if stat.S_ISREG(os.fstat(file).st_mode):
                return file
            os.close(file)
            raise UnknownFile(f"{path}: there is no plain file")

    def open_directory(self, path: str) -> int:
        """The descriptor of a directory, which whoever has it closes.

        Raises:
            UnknownFile: there is no such directory.
        """
        with _translated(path), self._parent(check_path(path), make=False) as (parent, name):
            return os.open(name, _DIRECTORY, dir_fd=parent)

    def size(self, path: str) -> int | None:
        try:
            with self._opened(path) as file:
                return os.fstat(file).st_size
        except UnknownFile:
            return None

    def read(self, path: str, offset: int, limit: int) -> bytes:
        with self._opened(path) as file:
            return os.pread(file, min(limit, CHUNK_BYTES), offset)

    def read_parts(self, path: str, offset: int = 0) -> Iterator[bytes]:
        return read_in_turn(self, path, offset)

    def names(self, prefix: str) -> list[str]:
        top = self._root / check_path(prefix)
        found: list[str] = []
        for directory, _, files in os.walk(top):
            found += (str((Path(directory) / name).relative_to(self._root)) for name in files)
        return sorted(found)

    def remove(self, prefix: str) -> None:
        with _translated(prefix):
            try:
                with self._parent(check_path(prefix), make=False) as (parent, name):
                    os.unlink(name, dir_fd=parent)
            except FileNotFoundError:
                return
            except IsADirectoryError:
                fs.remove_tree(self._root / prefix)

    @contextmanager
    def _opened(self, path: str) -> Iterator[int]:
        file = self.open_file(path)
        try:
            with _translated(path):
                yield file
        finally:
            os.close(file)

    @contextmanager
    def _parent(self, path: PurePosixPath, *, make: bool) -> Iterator[tuple[int, str]]:
        """The directory that a path lies in, opened, and its last name."""
        directory = os.open(self._root, _DIRECTORY)
        try:
            for part in path.parts[:-1]:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(part, 0o700, dir_fd=directory)
                        os.fsync(directory)
                inner = os.open(part, _DIRECTORY, dir_fd=directory)
                os.close(directory)
                directory = inner
            yield directory, path.name
        finally:
            os.close(directory)


def _copy_contents(reader: BufferedReader, writer: BufferedWriter) -> None:
    """By the system, where it can: some file systems share what is the same, and servers of others copy on their
    side."""
    try:
        while os.copy_file_range(reader.fileno(), writer.fileno(), _COPY_BYTES):
            pass
    except OSError as error:
        if error.errno not in _NOT_COPIED:
            raise
        shutil.copyfileobj(reader, writer, CHUNK_BYTES)


def _require_digest(stored: BufferedReader, path: str, digest: str) -> None:
    if hashlib.file_digest(stored, "sha256").hexdigest() != digest:
        raise DigestMismatch(f"{path}: what was stored is not what was sent")


@contextmanager
def _translated(path: str) -> Iterator[None]:
    """Errors of the system as those of the port."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise RemoteFull(f"{path}: {error.strerror}") from error
        if error.errno in _NOT_THERE:
            raise UnknownFile(f"{path}: there is no such file") from error
        if error.errno in (errno.EIO, errno.ESTALE, errno.ETIMEDOUT):
            raise RemoteUnavailable(f"{path}: {error.strerror}") from error
        raise RemoteError(f"{path}: {error.strerror}") from error
