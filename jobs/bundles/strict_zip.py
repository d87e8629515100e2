"""A strict reader of zip files, which may be hostile.

The usual readers are lenient: they skip what stands before and after an archive, believe one header where two
disagree, and let entries share their bytes. Here a zip has one reading or none: local headers and data follow each
other without a gap from the first byte up to the central directory, both headers of an entry agree, and the data
unpack to exactly what the headers said.

    [local header, data, descriptor?]...  central directory  end record
"""

import stat
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

from shardyard.contract.bundle_rules import quote_path
from shardyard.contract.errors import BadBundle

STORED: Final = 0
DEFLATED: Final = 8
#: Longest comment at the end; `git archive` writes a commit's id there.
MAX_COMMENT_BYTES = 1024
#: Largest central directory that is read at all.
MAX_DIRECTORY_BYTES = 16 * 1024 * 1024
CHUNK = 256 * 1024

_END = struct.Struct("<4s4H2LH")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_DESCRIPTOR = struct.Struct("<3L")
_EXTRA = struct.Struct("<2H")

_ENCRYPTED = 1 << 0 | 1 << 6 | 1 << 13
_DESCRIBED = 1 << 3  # checksum and sizes stand behind the data
_PATCHED = 1 << 5
_UTF8 = 1 << 11
_AGREED_FLAGS = _ENCRYPTED | _DESCRIBED | _PATCHED | _UTF8

_REFUSED_EXTRAS = {
    0x0001: "uses zip64, which no file within the limits needs; pack it without",
    0x7075: "has a second name; pack with names in UTF-8",
    0x9901: "is encrypted; pack without a password",
}


@dataclass(frozen=True, slots=True)
class ZipEntry:
    """One file or directory of a zip; sizes in bytes, `data` is where its packed bytes begin."""

    name: str
    is_directory: bool
    executable: bool
    method: int
    checksum: int
    packed: int
    size: int
    data: int


@dataclass(frozen=True, slots=True)
class _DirectoryHeader:
    """An entry of the central directory, before it is held against its local header."""

    flags: int
    method: int
    checksum: int
    packed: int
    size: int
    mode: int
    offset: int
    raw_name: bytes
    name: str


def read_entries(file: BinaryIO, size: int, max_entries: int) -> list[ZipEntry]:
    """Entries of a zip of `size` bytes, in the order of their data. Reads headers only, in bounded memory.

    Raises:
        BadBundle: it is no zip, or one with more than one reading.
    """
    count, start, length = _end_record(file, size, max_entries)
    headers = sorted(_central_directory(file, count, start, length), key=lambda header: header.offset)
    entries: list[ZipEntry] = []
    position = 0
    for header in headers:
        if header.offset != position:
            raise BadBundle(f"{quote_path(header.name)} overlaps another entry, or there are bytes before it")
        data = _check_local_header(file, header)
        position = data + header.packed
        if header.flags & _DESCRIBED:
            position += _descriptor_bytes(file, header, position)
        if position > start:
            raise BadBundle(f"{quote_path(header.name)} reaches into the central directory")
        entries.append(_make_entry(header, data))
    if position != start:
        raise BadBundle("there are bytes between the last entry and the central directory")
    return entries


def unpack_entry(file: BinaryIO, entry: ZipEntry) -> Iterator[bytes]:
    """Contents of an entry in chunks of at most `CHUNK` bytes, never more than it announced.

    Raises:
        BadBundle: the data are not what the headers say.
    """
    size, checksum = 0, 0
    for chunk in _read_stored(file, entry) if entry.method == STORED else _read_inflated(file, entry):
        size += len(chunk)
        if size > entry.size:
            raise BadBundle(f"{quote_path(entry.name)} unpacks to more than the {entry.size} bytes that it announces")
        checksum = zlib.crc32(chunk, checksum)
        yield chunk
    if size != entry.size or checksum != entry.checksum:
        raise BadBundle(f"{quote_path(entry.name)} does not unpack to what its header says; pack it again")


def _end_record(file: BinaryIO, size: int, max_entries: int) -> tuple[int, int, int]:
    """Number of entries, offset and bytes of the central directory, which must end where the end record begins."""
    tail_bytes = min(size, _END.size + MAX_COMMENT_BYTES)
    file.seek(size - tail_bytes)
    tail = file.read(tail_bytes)
    at = tail.rfind(b"PK\x05\x06")  # the last one: a comment that holds another would be another reading
    if not 0 <= at <= len(tail) - _END.size:
        raise BadBundle(f"not a zip file, or followed by something other than a comment of {MAX_COMMENT_BYTES} bytes")
    _, disk, first_disk, here, count, length, start, comment = _END.unpack_from(tail, at)
    if at + _END.size + comment != len(tail):
        raise BadBundle("the zip is followed by something else, or its comment is not as long as it says")
    if 0xFFFF in (here, count) or 0xFFFFFFFF in (length, start):
        raise BadBundle(f"the zip {_REFUSED_EXTRAS[0x0001]}")
    if disk or first_disk or here != count:
        raise BadBundle("the zip is a part of several; pack it as one file")
    if count > max_entries:
        raise BadBundle(f"the zip has {count} entries; at most {max_entries} are taken")
    if length > MAX_DIRECTORY_BYTES:
        raise BadBundle(f"the zip's directory has {length} bytes; at most {MAX_DIRECTORY_BYTES} are read")
    if start + length != size - tail_bytes + at:
        raise BadBundle("the zip's directory is not where its end record says: bytes stand before or after it")
    return count, start, length


def _central_directory(file: BinaryIO, count: int, start: int, length: int) -> Iterator[_DirectoryHeader]:
    file.seek(start)
    directory = file.read(length)
    at = 0
    for _ in range(count):
        if at + _CENTRAL.size > len(directory) or not directory.startswith(b"PK\x01\x02", at):
            raise BadBundle("the zip's directory is shorter than its number of entries")
        fields = _CENTRAL.unpack_from(directory, at)
        name_bytes, extra_bytes, comment_bytes = fields[10:13]
        names_at = at + _CENTRAL.size
        raw_name = directory[names_at : names_at + name_bytes]
        extra = directory[names_at + name_bytes : names_at + name_bytes + extra_bytes]
        at = names_at + name_bytes + extra_bytes + comment_bytes
        header = _DirectoryHeader(
            flags=fields[3],
            method=fields[4],
            checksum=fields[7],
            packed=fields[8],
            size=fields[9],
            mode=fields[15] >> 16,
            offset=fields[16],
            raw_name=raw_name,
            name=_decode_name(raw_name),
        )
        _check_extra(extra, header.name)
        _check_header(header, disk=fields[13])
        yield header
    if at != len(directory):
        raise BadBundle("the zip's directory is not as long as its entries")


def _decode_name(raw_name: bytes) -> str:
    """A name as UTF-8, marked as such or not: what Linux and macOS write today leaves the mark out."""
    try:
        return raw_name.decode()
    except UnicodeDecodeError:
        raise BadBundle(f"the name {raw_name[:100]!r} is not in UTF-8; pack with names in UTF-8") from None


def _check_header(header: _DirectoryHeader, disk: int) -> None:
    """Rules that need the directory's word only."""
    wrong = ""
    kind = stat.S_IFMT(header.mode)
    if 0xFFFFFFFF in (header.packed, header.size, header.offset):
        wrong = _REFUSED_EXTRAS[0x0001]
    elif header.flags & _ENCRYPTED:
        wrong = _REFUSED_EXTRAS[0x9901]
    elif header.flags & _PATCHED or disk:
        wrong = "is a part of something else; pack it as one file"
    elif header.method not in (STORED, DEFLATED):
        wrong = f"is packed with method {header.method}; pack with deflate, or store"
    elif kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        wrong = "is a link or a device; only regular files and directories are taken"
    elif kind and (kind == stat.S_IFDIR) != header.name.endswith("/"):
        wrong = "is a directory by its name or by its mode, but not by both"
    elif header.name.endswith("/") and (header.size or header.checksum):
        wrong = "is a directory with contents"
    elif header.method == STORED and header.packed != header.size:
        wrong = "is stored, but has two sizes"
    if wrong:
        raise BadBundle(f"{quote_path(header.name)} {wrong}")


def _check_extra(extra: bytes, name: str) -> None:
    at = 0
    while at < len(extra):
        if at + _EXTRA.size > len(extra):
            raise BadBundle(f"{quote_path(name)} has a broken extra field")
        kind, length = _EXTRA.unpack_from(extra, at)
        at += _EXTRA.size + length
        if at > len(extra):
            raise BadBundle(f"{quote_path(name)} has a broken extra field")
        if kind in _REFUSED_EXTRAS:
            raise BadBundle(f"{quote_path(name)} {_REFUSED_EXTRAS[kind]}")


def _check_local_header(file: BinaryIO, header: _DirectoryHeader) -> int:
    """Hold the header before the data against the directory's; gives where the data begin."""
    file.seek(header.offset)
    raw = file.read(_LOCAL.size)
    if len(raw) != _LOCAL.size or not raw.startswith(b"PK\x03\x04"):
        raise BadBundle(f"there is no entry where the zip's directory has {quote_path(header.name)}")
    _, _, flags, method, _, _, checksum, packed, size, name_bytes, extra_bytes = _LOCAL.unpack(raw)
    rest = file.read(name_bytes + extra_bytes)
    announced = (checksum, packed, size)
    expected = (header.checksum, header.packed, header.size)
    # Who writes a zip as a stream leaves at 0 what is known only at the end, and says it behind the data.
    known = [pair for pair in zip(announced, expected, strict=True) if not (flags & _DESCRIBED and pair[0] == 0)]
    if (
        len(rest) != name_bytes + extra_bytes
        or any(here != there for here, there in known)
        or rest[:name_bytes] != header.raw_name
        or method != header.method
        or (flags ^ header.flags) & _AGREED_FLAGS
    ):
        raise BadBundle(f"the two headers of {quote_path(header.name)} disagree; pack it again")
    _check_extra(rest[name_bytes:], header.name)
    return header.offset + _LOCAL.size + len(rest)


def _descriptor_bytes(file: BinaryIO, header: _DirectoryHeader, at: int) -> int:
    """Length of the descriptor behind an entry's data, which may begin with a signature."""
    file.seek(at)
    raw = file.read(4 + _DESCRIPTOR.size)
    expected = _DESCRIPTOR.pack(header.checksum, header.packed, header.size)
    if raw == b"PK\x07\x08" + expected:
        return len(raw)
    if raw.startswith(expected):
        return len(expected)
    raise BadBundle(
        f"what stands behind the data of {quote_path(header.name)} disagrees with its header; pack it again"
    )


def _make_entry(header: _DirectoryHeader, data: int) -> ZipEntry:
    return ZipEntry(
        name=header.name,
        is_directory=header.name.endswith("/"),
        executable=bool(header.mode & stat.S_IXUSR),
        method=header.method,
        checksum=header.checksum,
        packed=header.packed,
        size=header.size,
        data=data,
    )


def _read_stored(file: BinaryIO, entry: ZipEntry) -> Iterator[bytes]:
    file.seek(entry.data)
    left = entry.packed
    while left:
        chunk = file.read(min(CHUNK, left))
        if not chunk:
            raise BadBundle(f"the zip ends within {quote_path(entry.name)}")
        left -= len(chunk)
        yield chunk


def _read_inflated(file: BinaryIO, entry: ZipEntry) -> Iterator[bytes]:
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    surplus = False
    try:
        for packed in _read_stored(file, entry):
            surplus = inflate.eof
            while packed and not inflate.eof:
                yield inflate.decompress(packed, CHUNK)
                packed = inflate.unconsumed_tail
        while not inflate.eof and (chunk := inflate.decompress(b"", CHUNK)):
            yield chunk
    except zlib.error as error:
        raise BadBundle(f"{quote_path(entry.name)} cannot be unpacked: {error}") from None
    if surplus or inflate.unused_data or not inflate.eof:
        raise BadBundle(
            f"the data of {quote_path(entry.name)} end before or behind where its header says; pack it again"
        )
