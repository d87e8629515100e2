"""The list of what a back-up holds of the storage directory: one step of a walk in each line, as JSON.

    {"do":"enter","name":"jobs","mode":448}
    {"do":"file","name":"model.pt","contents":{"bytes":...,"sha256":"...","mode":420,"modified_ns":...}}
    {"do":"leave"}

A step names an entry of the directory that the walk is in. So a name is short however deep it lies, and no name can
lead out. Bytes of a name that are no letters, digits or `_.-~` are written as `%1b`, so that any name fits into a line.
"""

import hashlib
import io
import os
from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO, Final, Self
from urllib.parse import quote_from_bytes, unquote_to_bytes

import msgspec
import zstandard

from shardyard.service.backup.small_files import BackedUpFile

#: A line is shorter: a name has 255 bytes at most.
_MAX_LINE_BYTES: Final = 16 * 1024
_MAX_NAME_BYTES: Final = 255
#: Modes of directories in back-ups whose lists do not have them.
_USUAL_MODE: Final = 0o755


class EnteredDirectory(msgspec.Struct, frozen=True, tag="enter", tag_field="do"):
    """`name` as all names here: written as above."""

    name: str
    mode: int


class LeftDirectories(msgspec.Struct, frozen=True, tag="leave", tag_field="do", omit_defaults=True):
    levels: int = 1


class FileContents(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a plain file holds. A `sparse` one is hashed in its own way. `mode` and `modified_ns` None: as the file in
    the back-up has them."""

    bytes: int
    sha256: str
    mode: int | None = None
    modified_ns: int | None = None
    sparse: bool = False


class StoredFile(msgspec.Struct, frozen=True, tag="file", tag_field="do"):
    name: str
    contents: FileContents


class SharedFile(msgspec.Struct, frozen=True, tag="shared", tag_field="do"):
    """A file with several names, which follow as `StoredLink`. Its name in the back-up is `number`."""

    number: int
    contents: FileContents


class StoredLink(msgspec.Struct, frozen=True, tag="link", tag_field="do"):
    """One of the names of a shared file."""

    name: str
    number: int


WalkStep = EnteredDirectory | LeftDirectories | StoredFile | SharedFile | StoredLink
_decoder = msgspec.json.Decoder(WalkStep)


class ListDamaged(Exception):
    """The list is not what was written; the message says where."""


def quote_name(name: str) -> str:
    """A name as the list has it; `name` as `os.listdir` gives it."""
    return quote_from_bytes(os.fsencode(name), safe="")


def unquote_name(quoted: str) -> str:
    """The name of one entry of a directory.

    Raises:
        ListDamaged: it would lead elsewhere, or no directory can have it.
    """
    name = unquote_to_bytes(quoted)
    if name in (b"", b".", b"..") or b"/" in name or b"\0" in name or len(name) > _MAX_NAME_BYTES:
        raise ListDamaged(f"it names {quoted[:100]!r}, which is not the name of a file")
    return os.fsdecode(name)


class FileListWriter:
    """Writes the list to a new file, compressed. A context; `written` is known when it is left.

    Raises:
        OSError: the disk refuses.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")
        self._compressor = zstandard.ZstdCompressor().compressobj()
        self._digest, self._bytes = hashlib.sha256(), 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        with self._file:
            if failed is None:
                self._write(self._compressor.flush())

    @property
    def written(self) -> BackedUpFile:
        return BackedUpFile(self._bytes, self._digest.hexdigest())

    def add(self, step: WalkStep) -> None:
        self._write(self._compressor.compress(msgspec.json.encode(step) + b"\n"))

    def _write(self, body: bytes) -> None:
        self._file.write(body)
        self._digest.update(body)
        self._bytes += len(body)


def read_file_list(file: BinaryIO) -> Iterator[WalkStep]:
    """The steps of a list, in their order.

    Raises:
        ListDamaged: it cannot be read.
    """
    try:
        with io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(file)) as lines:
            while line := lines.readline(_MAX_LINE_BYTES):
                yield _decoder.decode(line)
    except (zstandard.ZstdError, msgspec.MsgspecError) as error:
        raise ListDamaged(str(error)) from error


def list_paths(files: Mapping[tuple[str, ...], BackedUpFile]) -> Iterator[WalkStep]:
    """The steps that lead to files which are known by their paths, as in the first format."""
    here: list[str] = []
    for path in sorted(files):
        *directories, name = path
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(here, directories, strict=False)))
        if len(here) > common:
            yield LeftDirectories(len(here) - common)
        yield from (EnteredDirectory(quote_name(step), _USUAL_MODE) for step in directories[common:])
        here = directories
        yield StoredFile(quote_name(name), FileContents(bytes=files[path].bytes, sha256=files[path].sha256))
