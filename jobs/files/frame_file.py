"""An append-only file of numbered frames: the form of every log and metric file, and of what Redis holds.

A frame is a fixed header, a payload, and its own length once more, so that a reader can walk forward
by headers alone (nothing is decompressed to skip it) and backward from the end of the file:

    header   magic, kind, tags, payload length, frame number, first and last item, lowest and highest step,
             offset of the frame to skip back to, CRC-32 of all of this and the payload
    payload  msgpack, compressed with zstd; what it means is up to `jobs.files.log_file` and `jobs.files.metric_file`
    trailer  length of the whole frame, four bytes

Items (lines, points) are counted from 1. Frame number n points back to frame n & (n - 1), as in a
Fenwick tree, so any item of a file of n frames is found from the end in about log2(n)**2 headers.

There is one writer. A frame that a crash cut short is ignored by readers, and cut off by the next writer.
"""

import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import msgspec
import zstandard

from jobs.support import fs

#: Writers stay far below; a header that claims more is not one of ours.
MAX_PAYLOAD_BYTES = 4 * 1024 * 1024
MAX_UNPACKED_BYTES = 16 * 1024 * 1024
NO_STEP = -1
_MAX_STEP = 2**63 - 1

_MAGIC = b"SYF1"
_HEADER = struct.Struct("<4sBBxxIIQQqqQ")
_CRC = struct.Struct("<I")
_HEADER_BYTES = _HEADER.size + _CRC.size
_TRAILER = struct.Struct("<I")
_encoder = msgspec.msgpack.Encoder()
_compressor = zstandard.ZstdCompressor(level=3)
T = TypeVar("T")
_OVERHEAD = _HEADER_BYTES + _TRAILER.size


class FrameKind(IntEnum):
    DATA = 1
    DROPPED = 2  # items that could not be written; they keep their numbers
    SEAL = 3  # nothing follows


class CorruptFrame(ValueError):
    """The bytes of a frame are not what was written."""


class FrameDraft(NamedTuple):
    """A frame before it has its place in a file. `first_step` and `last_step` are `NO_STEP` when no item has one.
    `tags` are bits that say which kinds of items it holds, so that readers of some kinds can skip it; 0: unknown."""

    kind: FrameKind
    first: int
    last: int
    first_step: int
    last_step: int
    payload: bytes
    tags: int = 0


class Frame(NamedTuple):
    """The header of a frame, and where it begins. A seal's `first` and `last` are one past the last item. `tags` is 0
    in frames of earlier versions, which left that byte empty."""

    offset: int
    kind: int
    length: int
    number: int
    first: int
    last: int
    first_step: int
    last_step: int
    skip: int
    tags: int = 0

    @property
    def end(self) -> int:
        return self.offset + self.length + _OVERHEAD

    @property
    def id(self) -> str:
        """The frame's entry id in a Redis stream: `<last item>-0`, and `<last item>-1` for the seal."""
        return f"{self.last - 1}-1" if self.kind == FrameKind.SEAL else f"{self.last}-0"


def step_range(steps: Sequence[int]) -> tuple[int, int]:
    """The lowest and highest of some steps, for a header; `NO_STEP` twice if there are none.

    A program may claim any number: the header's fields hold 0 to 2**63 - 1.
    """
    if not steps:
        return NO_STEP, NO_STEP
    return max(0, min(min(steps), _MAX_STEP)), max(0, min(max(steps), _MAX_STEP))


def pack_payload(value: Any) -> bytes:
    """A payload: msgpack, compressed. For the one thread of a process that writes."""
    return _compressor.compress(_encoder.encode(value))


def unpack_payload(decoder: "msgspec.msgpack.Decoder[T]", payload: bytes) -> T:
    """The value that `pack` was given.

    Raises:
        CorruptFrame: the payload is not one of ours, or larger than any writer makes it.
    """
    try:
        body = zstandard.ZstdDecompressor().decompress(payload, max_output_size=MAX_UNPACKED_BYTES)
        return decoder.decode(body)
    except (zstandard.ZstdError, msgspec.MsgspecError) as error:
        raise CorruptFrame(f"a payload does not decode: {error}") from error


def parse_frame(raw: bytes) -> tuple[Frame, bytes]:
    """Header and payload of one whole frame, as a Redis stream holds it.

    Raises:
        CorruptFrame: the bytes are not one whole frame of ours.
    """
    frame = _parse_header(raw, 0)
    if frame is None or frame.end != len(raw):
        raise CorruptFrame(f"{len(raw)} bytes are not one frame")
    return frame, _checked_payload(raw)


def _parse_header(buffer: bytes, offset: int) -> Frame | None:
    """The header that `buffer` begins with, which lies at `offset` of the file."""
    if len(buffer) < _HEADER_BYTES:
        return None
    magic, kind, tags, length, number, first, last, first_step, last_step, skip = _HEADER.unpack_from(buffer)
    if magic != _MAGIC or length > MAX_PAYLOAD_BYTES:
        return None
    return Frame(offset, kind, length, number, first, last, first_step, last_step, skip, tags)


def _checked_payload(raw: bytes) -> bytes:
    payload = raw[_HEADER_BYTES : -_TRAILER.size]
    (crc,) = _CRC.unpack_from(raw, _HEADER.size)
    (total,) = _TRAILER.unpack_from(raw, len(raw) - _TRAILER.size)
    if total != len(raw) or crc != zlib.crc32(payload, zlib.crc32(raw[: _HEADER.size])):
        raise CorruptFrame("a frame's checksum does not match")
    return payload


def _encode_frame(draft: FrameDraft, number: int, skip: int) -> bytes:
    header = _HEADER.pack(_MAGIC, draft.kind, draft.tags, len(draft.payload), number, *draft[1:5], skip)
    crc = _CRC.pack(zlib.crc32(draft.payload, zlib.crc32(header)))
    return b"".join((header, crc, draft.payload, _TRAILER.pack(len(draft.payload) + _OVERHEAD)))


class FrameReader:
    """Reads a file of frames as far as it is whole now. A context manager; not for several threads at once."""

    def __init__(self, path: Path, end: int | None = None) -> None:
        """Open `path`, and look no further than `end` (its present size when left out).

        Raises:
            OSError: the file cannot be opened.
        """
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a job may have put a pipe there
        self._end = os.fstat(self._fd).st_size if end is None else end

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._fd)

    def frame_at(self, offset: int) -> Frame | None:
        """The whole frame that begins at `offset`, if there is one."""
        if offset + _HEADER_BYTES > self._end:  # of what is no file the end is 0, and it is not read
            return None
        frame = _parse_header(os.pread(self._fd, _HEADER_BYTES, offset), offset)
        if frame is None or frame.end > self._end:
            return None
        return frame

    def raw(self, frame: Frame) -> bytes:
        """All bytes of a frame, as they are shipped."""
        return os.pread(self._fd, frame.end - frame.offset, frame.offset)

    def payload(self, frame: Frame) -> bytes:
        """A frame's payload, as it was given to the writer.

        Raises:
            CorruptFrame: the checksum does not match.
        """
        raw = self.raw(frame)
        if len(raw) != frame.end - frame.offset:
            raise CorruptFrame("the file ends inside a frame")
        return _checked_payload(raw)

    def forward(self, frame: Frame | None) -> Iterator[Frame]:
        """`frame` and all that follow it."""
        while frame is not None:
            yield frame
            frame = self.frame_at(frame.end)

    def backward(self, frame: Frame | None) -> Iterator[Frame]:
        """`frame` and all that come before it, newest first."""
        while frame is not None:
            yield frame
            frame = self._ending_at(frame.offset)

    def first(self) -> Frame | None:
        return self.frame_at(0)

    def last(self) -> Frame | None:
        """The last whole frame. Where the file's end is torn, found by walking all headers."""
        frame = self._ending_at(self._end)
        if frame is None:
            for frame in self.forward(self.first()):  # noqa: B007 - the last one is the answer
                pass
        return frame

    def locate(self, item: int) -> Frame | None:
        """The first frame that ends at or after `item` (counted from 1), if the file goes that far."""
        frame = self.last()
        if frame is None or frame.last < item:
            return None
        while frame.first > item and frame.number > 1:
            back = self.frame_at(frame.skip) if frame.number & (frame.number - 1) else None
            if back is None or back.last < item:
                back = self._ending_at(frame.offset)
                if back is None or back.last < item:
                    break
            frame = back
        return frame

    def _ending_at(self, end: int) -> Frame | None:
        if end < _OVERHEAD:
            return None
        trailer = os.pread(self._fd, _TRAILER.size, end - _TRAILER.size)
        if len(trailer) < _TRAILER.size:
            return None
        (total,) = _TRAILER.unpack(trailer)
        frame = self.frame_at(end - total) if _OVERHEAD <= total <= end else None
        return frame if frame is not None and frame.end == end else None


@dataclass(slots=True)
class _WritePosition:
    """Where a writer stands: all that the next frame depends on."""

    end: int = 0
    number: int = 0
    last: int = 0
    sealed: bool = False
    #: (number, offset) of the frames that later ones may point back to; at most one for each binary digit
    skips: tuple[tuple[int, int], ...] = ()

    def after(self, number: int, offset: int, end: int, last: int, sealed: bool) -> "_WritePosition":
        kept = tuple(entry for entry in self.skips if entry[0] <= number & (number - 1))
        return _WritePosition(end, number, last, sealed, (*kept, (number, offset)))


class FrameWriter:
    """Appends frames to one file. Opened by the first append, so that a full disk meets one place only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        self._tail = _WritePosition()

    @property
    def last(self) -> int:
        """The last item in the file (0 before `open`)."""
        return self._tail.last

    @property
    def end(self) -> int:
        """Length in bytes of the file's whole frames."""
        return self._tail.end

    @property
    def sealed(self) -> bool:
        return self._tail.sealed

    def open(self) -> bool:
        """Open the file if it is not; True if it was opened now. Cuts off a frame that a crash left half written.

        Raises:
            OSError: it cannot be opened, read or cut.
        """
        if self._fd is not None:
            return False
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            self._tail = _find_whole_end(self.path)
            if os.fstat(fd).st_size > self._tail.end:
                os.ftruncate(fd, self._tail.end)
        except OSError:
            os.close(fd)
            raise
        self._fd = fd
        return True

    def append(self, *drafts: FrameDraft) -> bytes:
        """Write frames, all or none, and return their bytes.

        Raises:
            OSError: nothing was written.
            ValueError: the file is sealed.
        """
        self.open()
        assert self._fd is not None
        if self._tail.sealed:
            raise ValueError(f"{self.path} is sealed; nothing can be appended")
        tail, parts = self._tail, []
        for draft in drafts:
            number = tail.number + 1
            raw = _encode_frame(draft, number, _skip_of(tail, number))
            sealed = draft.kind == FrameKind.SEAL
            tail = tail.after(number, tail.end, tail.end + len(raw), tail.last if sealed else draft.last, sealed)
            parts.append(raw)
        data = b"".join(parts)
        self._write_all(data)
        self._tail = tail
        return data

    def sync(self) -> None:
        """Bring everything to the disk.

        Raises:
            OSError: the disk did not take it.
        """
        if self._fd is not None:
            os.fsync(self._fd)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _write_all(self, data: bytes) -> None:
        assert self._fd is not None
        try:
            fs.write_at(self._fd, data, self._tail.end)
        except OSError:
            with suppress(OSError):  # what stays is a torn end: readers ignore it, the next append overwrites it
                os.ftruncate(self._fd, self._tail.end)
            raise


def _skip_of(tail: _WritePosition, number: int) -> int:
    return next((offset for n, offset in reversed(tail.skips) if n == number & (number - 1)), 0)


def _find_whole_end(path: Path) -> _WritePosition:
    """Where the whole frames of a file end; a last frame whose checksum is wrong does not count."""
    tail = before = _WritePosition()
    newest: Frame | None = None
    with FrameReader(path) as reader:
        for frame in reader.forward(reader.first()):
            before, newest = tail, frame
            sealed = frame.kind == FrameKind.SEAL
            tail = tail.after(frame.number, frame.offset, frame.end, tail.last if sealed else frame.last, sealed)
        if newest is not None:
            try:
                reader.payload(newest)
            except CorruptFrame:
                return before
    return tail
