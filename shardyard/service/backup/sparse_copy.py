"""Copies the contents of an open file and hashes them; a hole stays a hole, however large it is."""

import errno
import hashlib
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from jobs.support import fs

#: Read at a time; a hash of a sparse file depends on it.
WINDOW_BYTES: Final = 1024 * 1024
#: A block of zeros is written as a hole.
_BLOCK_BYTES: Final = 4096
_ZEROS: Final = bytes(_BLOCK_BYTES)
_RUN: Final = struct.Struct("<QQ")
_SIZE: Final = struct.Struct("<Q")

Check = Callable[[], None]


class SourceUnreadable(Exception):
    """A file cannot be read to its end; the message says why."""


@dataclass(frozen=True, slots=True)
class CopiedContents:
    """What was copied: bytes up to the end, bytes that are no hole in the copy, and the hash of the contents."""

    bytes: int
    stored: int
    sha256: str


def is_sparse(status: os.stat_result) -> bool:
    """Whether a file takes less room than it is long."""
    return status.st_blocks * 512 < status.st_size


def copy_contents(reader: int, writer: int, size: int, *, sparse: bool, check: Check = lambda: None) -> CopiedContents:
    """Copy the first `size` bytes to an empty file, or up to the end where the file has become shorter. `check` is
    called for each piece, and may raise.

    The hash is the SHA-256 of the contents. Of a `sparse` file, most of which nobody wants to read, it is that of its
    runs of blocks that are not all zero, each after its place and length, and of the size: equal contents have equal
    hashes wherever the file system has put the holes.

    Raises:
        SourceUnreadable: the disk does not give the contents.
        OSError: the copy cannot be written.
    """
    digest, stored, end = hashlib.sha256(), 0, 0
    for place, piece in _read_pieces(reader, size, sparse=sparse):
        check()
        if not sparse:
            digest.update(piece)
            end = place + len(piece)
        for begin, stop in _find_runs(piece):
            run = piece[begin:stop]
            if sparse:
                digest.update(_RUN.pack(place + begin, len(run)))
                digest.update(run)
            fs.write_at(writer, run, place + begin)
            stored += len(run)
    if sparse:
        end = min(size, os.fstat(reader).st_size)
        digest.update(_SIZE.pack(end))
    os.ftruncate(writer, end)
    return CopiedContents(end, stored, digest.hexdigest())


def _read_pieces(reader: int, size: int, *, sparse: bool) -> Iterator[tuple[int, bytes]]:
    """Places and contents of a file's windows; of a sparse file's, those that have data."""
    place = 0
    try:
        while place < size:
            if sparse:
                data = _find_data(reader, place)
                if data is None or data >= size:
                    return
                place = data - data % WINDOW_BYTES
            wanted = min(WINDOW_BYTES, size - place)
            piece = os.pread(reader, wanted, place)
            if piece:
                yield place, piece
            if len(piece) < wanted:  # it has become shorter
                return
            place += wanted
    except OSError as error:
        raise SourceUnreadable(error.strerror or str(error)) from error


def _find_data(reader: int, place: int) -> int | None:
    """Where data begins at or after a place; None where there is none any more."""
    try:
        return os.lseek(reader, place, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):  # a file system that does not say
            return place
        raise


def _find_runs(piece: bytes) -> Iterator[tuple[int, int]]:
    """Begin and end of the longest runs of blocks that are not all zero."""
    begin: int | None = None
    for place in range(0, len(piece), _BLOCK_BYTES):
        rest = len(piece) - place
        if piece.startswith(_ZEROS if rest >= _BLOCK_BYTES else _ZEROS[:rest], place):
            if begin is not None:
                yield begin, place
            begin = None
        elif begin is None:
            begin = place
    if begin is not None:
        yield begin, len(piece)
