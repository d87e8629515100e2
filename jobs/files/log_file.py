"""The log of one device: its lines, the file of record (`jobs.files.paths`), and its writer.

Every line of a device has a number, `seq`, from 1 without a gap. Lines that could not be written keep
their numbers. The bytes of a line are kept as they came; `jobs.files.log_page` reads them.

A source is one (stream, rank) of a device. Its text can be put together again: the texts of its lines,
each followed by a newline unless one of its flags says otherwise.
"""

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, get_args

import msgspec

from jobs.files.frame_file import (
    NO_STEP,
    CorruptFrame,
    FrameDraft,
    FrameKind,
    FrameReader,
    FrameWriter,
    pack_payload,
    step_range,
    unpack_payload,
)

#: stdout and stderr are the program's own. `shard` has the lines that say what each device got of a batch, `service`
#: what the service has to say of the run. All streams of a device are numbered together.
StreamName = Literal["stdout", "stderr", "shard", "service"]
STREAMS: tuple[StreamName, ...] = get_args(StreamName)
#: The bit of each stream in the tags of a frame.
_STREAM_TAGS: dict[str, int] = {stream: 1 << position for position, stream in enumerate(STREAMS)}

#: A longer line is split, and all parts but the last are marked `CONTINUED`.
MAX_LINE_BYTES = 64 * 1024

# Flags of a line. Each says that no newline stood at its end, and why.
CONTINUED = 1  # the source's next line goes on where this one was split
UNENDED = 2  # the source ended here
REDRAWN = 4  # a progress bar that redraws itself with \r; the source's next line goes on with it


class LineRun(msgspec.Struct, array_like=True):
    """Lines that came together from one source: the form in which a chunk holds them."""

    stream: StreamName
    rank: int
    step: int | None
    at: float
    flags: int
    texts: list[bytes]


class LogSeal(msgspec.Struct, frozen=True, array_like=True):
    """The end of a log. `digest` is BLAKE2b-128, in hex, over every written text, each followed by a newline."""

    count: int
    dropped: int
    digest: str


# -- codec -----------------------------------------------------------------------------------------

runs_decoder = msgspec.msgpack.Decoder(list[LineRun])
_seal_decoder = msgspec.msgpack.Decoder(LogSeal)


def _data_draft(runs: Sequence[LineRun], first: int) -> FrameDraft:
    steps = [run.step for run in runs if run.step is not None]
    tags = tags_of(run.stream for run in runs)
    last = first - 1 + _count_lines(runs)
    return FrameDraft(FrameKind.DATA, first, last, *step_range(steps), pack_payload(runs), tags)


def tags_of(streams: Iterable[StreamName]) -> int:
    tags = 0
    for stream in streams:
        tags |= _STREAM_TAGS[stream]
    return tags


def _dropped_draft(lines: int, size: int, first: int) -> FrameDraft:
    return FrameDraft(FrameKind.DROPPED, first, first - 1 + lines, NO_STEP, NO_STEP, pack_payload(size))


def _count_lines(runs: Iterable[LineRun]) -> int:
    return sum(len(run.texts) for run in runs)


def _count_bytes(runs: Iterable[LineRun]) -> int:
    return sum(len(text) for run in runs for text in run.texts)


# -- writer ----------------------------------------------------------------------------------------


class LogWriter:
    """Appends to the log of one device. One writer at a time; a file that a crash left open can be gone on with.

    Nothing reaches the disk for certain before `seal`: a machine that loses power may lose the last lines,
    and training does not wait for the disk.
    """

    def __init__(self, path: Path) -> None:
        self._frames = FrameWriter(path)
        self._digest = hashlib.blake2b(digest_size=16)
        self._dropped = 0
        self._lost_lines = 0
        self._lost_bytes = 0

    @property
    def path(self) -> Path:
        return self._frames.path

    @property
    def last(self) -> int:
        """The newest `seq` in the file; 0 before the first append."""
        return self._frames.last

    @property
    def end(self) -> int:
        """Length in bytes of what is whole in the file: a reader beside the writer looks no further."""
        return self._frames.end

    @property
    def dropped(self) -> int:
        """Lines that could not be written, up to now."""
        return self._dropped + self._lost_lines

    def append(self, runs: Sequence[LineRun]) -> bytes:
        """Number the lines, write them as one chunk, and return what was written, for shipping.

        Raises:
            OSError: the lines were not written, and count as dropped; the next append that works says so first.
            ValueError: the log is sealed.
        """
        try:
            self._open_file()
            first = self._frames.last + self._lost_lines + 1
            written = self._frames.append(*self._pending_losses(), _data_draft(runs, first))
        except OSError:
            self._lost_lines += _count_lines(runs)
            self._lost_bytes += _count_bytes(runs)
            raise
        self._losses_written()
        for run in runs:
            self._hash_run(run)
        return written

    def seal(self) -> bytes:
        """Write the end of the log, bring the file to the disk, close it, and return what was written.

        Raises:
            OSError: the disk refused; the log is not sealed.
            ValueError: it is sealed already.
        """
        self._open_file()
        end = self._frames.last + self._lost_lines + 1
        seal = LogSeal(end - 1, self.dropped, self._digest.hexdigest())
        written = self._frames.append(
            *self._pending_losses(), FrameDraft(FrameKind.SEAL, end, end, NO_STEP, NO_STEP, pack_payload(seal))
        )
        self._losses_written()
        self._frames.sync()
        self._frames.close()
        return written

    def close(self) -> None:
        """Close the file without a seal."""
        self._frames.close()

    def _pending_losses(self) -> tuple[FrameDraft, ...]:
        if not self._lost_lines:
            return ()
        return (_dropped_draft(self._lost_lines, self._lost_bytes, self._frames.last + 1),)

    def _losses_written(self) -> None:
        self._dropped += self._lost_lines
        self._lost_lines = self._lost_bytes = 0

    def _hash_run(self, run: LineRun) -> None:
        self._digest.update(b"\n".join(run.texts) + b"\n")

    def _open_file(self) -> None:
        """Open the file; one that has lines already is read once, for the digest."""
        if not self._frames.open():
            return
        with FrameReader(self.path) as reader:
            for frame in reader.forward(reader.first()):
                if frame.kind == FrameKind.DROPPED:
                    self._dropped += frame.last - frame.first + 1
                elif frame.kind == FrameKind.DATA:
                    with suppress(CorruptFrame):  # the digest then disagrees, as it should
                        for run in unpack_payload(runs_decoder, reader.payload(frame)):
                            self._hash_run(run)


def read_seal(path: Path) -> LogSeal | None:
    """The seal of a device's file, or `None` while it has none.

    Raises:
        OSError: the file cannot be read.
        CorruptFrame: the seal is damaged.
    """
    with FrameReader(path) as reader:
        newest = reader.last()
        if newest is None or newest.kind != FrameKind.SEAL:
            return None
        return unpack_payload(_seal_decoder, reader.payload(newest))
