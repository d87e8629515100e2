"""Opens files below the operator's data directory, and no others.

A job names a file by its path within the directory. Symbolic links and `..` are followed as long as
they end inside; then the file is opened by its real path, one directory at a time and without
following links, so that a link put there in the meantime opens nothing.
"""

import os
import stat
from pathlib import Path
from typing import BinaryIO

from workers.runtime.context import RejectedByWorker

MAX_PATH = 4096


class DataRoot:
    """The directory that the operator lets jobs read (`SHARDYARD_DATA_ROOT`); None when there is none."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def open(self, path: str, field: str) -> BinaryIO:
        """The regular file at `path` within the directory, for reading.

        Raises:
            RejectedByWorker: there is no data directory, or no such file in it; `field` is named.
        """
        parts = self._path_parts(path, field)
        try:
            return _open_regular(self._real_root(field), parts)
        except OSError as error:
            raise RejectedByWorker(f"{field}: cannot open {path!r}: {_error_text(error)}") from None

    def names(self, path: str, field: str) -> frozenset[str]:
        """Names in the directory at `path`; none where there is no such directory.

        Raises:
            RejectedByWorker: there is no data directory, or `path` leads out of it.
        """
        parts = self._path_parts(path, field)
        try:
            return frozenset(os.listdir(self._real_root(field).joinpath(*parts)))
        except OSError:
            return frozenset()

    def _real_root(self, field: str) -> Path:
        if self._path is None:
            raise RejectedByWorker(
                f"{field}: this worker has no directory from which jobs may read; "
                "ask the operator to set SHARDYARD_DATA_ROOT"
            )
        return Path(os.path.realpath(self._path))

    def _path_parts(self, path: str, field: str) -> tuple[str, ...]:
        """The real path, without any link, from the root on."""
        root = self._real_root(field)
        if os.path.isabs(path) or "\0" in path or not path or len(path) > MAX_PATH:
            raise RejectedByWorker(
                f"{field}: {path[:80]!r} is not a path within the data directory; write it from there"
            )
        real = Path(os.path.realpath(root / path))
        if not real.is_relative_to(root):
            raise RejectedByWorker(f"{field}: {path!r} leads out of the data directory, and nothing there may be read")
        return real.relative_to(root).parts


def _open_regular(root: Path, parts: tuple[str, ...]) -> BinaryIO:
    *directories, name = parts or (".",)
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    at = os.open(root, flags | os.O_DIRECTORY)
    try:
        for directory in directories:
            below = os.open(directory, flags | os.O_DIRECTORY, dir_fd=at)
            os.close(at)
            at = below
        file = os.open(name, flags | os.O_NONBLOCK, dir_fd=at)  # opening a named pipe must not block the rank
    finally:
        os.close(at)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError("not a regular file")
    return os.fdopen(file, "rb")


def _error_text(error: OSError) -> str:
    return error.strerror.lower() if error.strerror else str(error)
