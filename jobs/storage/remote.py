"""The port to storage that is not mounted here, and what goes wrong there.

Paths are those of `jobs/files/paths.py`, relative to the root. A file is either appended to, by whoever knows how long
it is, or put whole: no call changes bytes that another one has stored.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Protocol

#: The most that one call of `append` or `read` moves.
CHUNK_BYTES = 4 * 1024 * 1024
#: The longest path, and the most parts that it has: below the least that file systems and object stores take.
MAX_PATH_BYTES, MAX_PARTS, MAX_NAME_BYTES = 900, 64, 255


class RemoteError(Exception):
    """A call failed for good: repeating it would not help."""


class RemoteUnavailable(RemoteError):
    """The remote does not answer, or not in time: the same call may succeed later, not before `retry_after` seconds
    where the remote has said so."""

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RemoteFull(RemoteUnavailable):
    """The remote has no room now."""


class RemoteRefused(RemoteError):
    """The credential may not do that, or there is none."""


class RemoteElsewhere(RemoteRefused):
    """The service keeps no files there; the message says where it does."""


class UnknownFile(RemoteError):
    """There is no such file."""


class OffsetMismatch(RemoteError):
    """An append did not begin where the file ends, and what is there is not what it brings."""

    def __init__(self, path: str, offset: int, size: int) -> None:
        super().__init__(f"{path} has {size} bytes: what begins at {offset} cannot be appended to it")
        self.size = size


class DigestMismatch(RemoteError):
    """What has arrived is not what was sent."""


class RemoteStorage(Protocol):
    """Every call has a deadline of its own, and may be repeated: what has been done is not done twice.

    All raise RemoteUnavailable, RemoteRefused, and ValueError for a path that cannot be one (`check_path`).
    `append_seconds`: how long what a file has grown by is best left alone, unless it is much; 0 where appending is
    cheap.
    """

    append_seconds: float

    def append(self, path: str, offset: int, data: bytes) -> None:
        """Have `data`, at most `CHUNK_BYTES`, follow the first `offset` bytes of a file, which is made with its first.

        Raises:
            OffsetMismatch: the file has another length. Bytes that it has already count as appended.
        """

    def put(self, path: str, file: Path, digest: str) -> None:
        """Store a whole file under a path, in the place of another one. Readers see the old or the new one. `digest`:
        its SHA-256 in hexadecimal digits.

        Raises:
            DigestMismatch: `file` is not what `digest` says.
        """

    def copy(self, source: str, path: str, size: int, digest: str) -> None:
        """Store under a path what another one has whole, with so many bytes and this digest; they do not travel. What
        is no such file is not copied, and not every remote copies what it has: then the file can be put.

        Raises:
            RemoteError: nothing was copied.
        """

    def size(self, path: str) -> int | None:
        """Bytes of a file; None where there is none."""

    def read(self, path: str, offset: int, limit: int) -> bytes:
        """At most `limit` bytes, and at most `CHUNK_BYTES`, from `offset` on; none behind the end.

        Raises:
            UnknownFile: there is no such file.
        """

    def read_parts(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """All bytes from `offset` on, in pieces of `CHUNK_BYTES` at most.

        Raises:
            UnknownFile: there is no such file.
        """

    def names(self, prefix: str) -> list[str]:
        """The paths of all files below a directory, sorted. Not for what many wait for: it may take seconds."""

    def remove(self, prefix: str) -> None:
        """Remove a file, or all below a directory. It may be gone already."""


def read_in_turn(remote: RemoteStorage, path: str, offset: int) -> Iterator[bytes]:
    """`read_parts` by one call of `read` after the other."""
    while data := remote.read(path, offset, CHUNK_BYTES):
        yield data
        offset += len(data)


def check_path(path: str) -> PurePosixPath:
    """The path of a file below the root.

    Raises:
        ValueError: it is not one, or would lead out of the root.
    """
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\0" in path:
        raise ValueError(f"{path[:100]!r} is not the path of a file below the storage's root")
    encoded = path.encode(errors="surrogateescape")
    longest = max(len(part.encode(errors="surrogateescape")) for part in parts)
    if len(encoded) > MAX_PATH_BYTES or len(parts) > MAX_PARTS or longest > MAX_NAME_BYTES:
        raise ValueError(f"a path may have {MAX_PATH_BYTES} bytes, {MAX_PARTS} parts and {MAX_NAME_BYTES} bytes a part")
    return PurePosixPath(path)


def digest_file(file: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits. Raises OSError."""
    with file.open("rb") as reader:
        return hashlib.file_digest(reader, "sha256").hexdigest()


def fetch_file(remote: RemoteStorage, path: str, into: Path) -> None:
    """Copy a file from the remote to a place here, which has it whole or not at all. What an earlier call has brought
    is not brought again.

    Raises:
        UnknownFile: there is no such file.
        OSError: there is no room here.
    """
    draft = into.with_name(f".{into.name}.fetched")
    with draft.open("ab") as writer:
        for data in remote.read_parts(path, writer.tell()):
            writer.write(data)
    draft.replace(into)
