"""The files beside the manifest of a back-up: written and copied with the hash that the manifest has."""

import hashlib
import os
import stat
from pathlib import Path

import msgspec

from shardyard.service.backup.sparse_copy import copy_contents


class BackedUpFile(msgspec.Struct, frozen=True, array_like=True):
    bytes: int
    sha256: str


def write_file(path: Path, body: bytes) -> BackedUpFile:
    """Write a new file, synced. Raises OSError."""
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    return BackedUpFile(len(body), hashlib.sha256(body).hexdigest())


def copy_file(source: Path, target: Path) -> BackedUpFile:
    """Copy one of the service's own files, with its mode, to a new one.

    Raises:
        FileNotFoundError: it is gone, or no plain file.
        OSError: the disk refuses.
    """
    if source.is_symlink():
        raise FileNotFoundError(f"{source} is a link")
    with open(source, "rb", opener=_open_without_waiting) as reader:
        status = os.fstat(reader.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise FileNotFoundError(f"{source} is not a plain file")
        with open(target, "xb", opener=lambda name, flags: os.open(name, flags, status.st_mode & 0o777)) as writer:
            copied = copy_contents(reader.fileno(), writer.fileno(), status.st_size, sparse=False)
    return BackedUpFile(copied.bytes, copied.sha256)


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
