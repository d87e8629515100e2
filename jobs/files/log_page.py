"""Pages of a device's log: reads lines from its file, or from a chunk of its stream, and cleans them for display.

Lines that could not be written keep their numbers, and a `DroppedRange` says which they were.
"""

import math
import re
import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from jobs.files.frame_file import NO_STEP, CorruptFrame, Frame, FrameKind, FrameReader, parse_frame, unpack_payload
from jobs.files.log_file import LineRun, StreamName, runs_decoder, tags_of
from shardyard.contract.plain_text import WITHOUT_UNSAFE

#: A page reads at most this many frame headers; unpacking a frame counts for `_UNPACK_COST` of them.
_SCAN_BUDGET = 20_000
_UNPACK_COST = 40
_MAX_PAGE_BYTES = 1024 * 1024
_bytes_decoder = msgspec.msgpack.Decoder(int)


class LogRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One line. `at` is when the supervisor read it, in seconds since the epoch; `step` the optimizer step then."""

    seq: int
    at: float
    stream: StreamName
    rank: int
    step: int | None
    text: bytes
    flags: int = 0


class DroppedRange(msgspec.Struct, frozen=True, gc=False, rename={"first": "from", "last": "to"}):
    """Lines that could not be written (disk full), or not be read again (disk damaged): numbers, and bytes of text."""

    first: int
    last: int
    bytes: int


@dataclass(slots=True)
class LogFilePage:
    """Part of a log, in order.

    `next` is the cursor for what follows (the last `seq` looked at). `last` is the newest `seq` known.
    `sealed` means that the page reaches the end of a log to which nothing will be added.
    """

    next: int
    last: int = 0
    sealed: bool = False
    lines: list[LogRow] = field(default_factory=list)
    dropped: list[DroppedRange] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LineFilter:
    """Which lines a page is to hold. Bounds on steps are inclusive, and leave out lines that belong to no step.
    `search`, without case, is looked for in a line as people see it. `streams` None: of all of them."""

    streams: frozenset[StreamName] | None = None
    rank: int | None = None
    from_step: int | None = None
    to_step: int | None = None
    search: str = ""

    def may_hold(self, frame: Frame) -> bool:
        """Whether a frame can have lines that pass, by its header."""
        if frame.kind != FrameKind.DATA:
            return True
        if frame.tags and self.streams is not None and not frame.tags & tags_of(self.streams):
            return False
        if self.from_step is None and self.to_step is None:
            return True
        low, high = self._step_bounds()
        return frame.first_step != NO_STEP and frame.first_step <= high and frame.last_step >= low

    def passes(self, run: LineRun) -> bool:
        if self.streams is not None and run.stream not in self.streams:
            return False
        if self.rank is not None and run.rank != self.rank:
            return False
        if self.from_step is None and self.to_step is None:
            return True
        low, high = self._step_bounds()
        return run.step is not None and low <= run.step <= high

    def has(self, text: bytes) -> bool:
        return not self.search or self.search in clean_for_display(text).casefold()

    def _step_bounds(self) -> tuple[float, float]:
        return (
            -math.inf if self.from_step is None else self.from_step,
            math.inf if self.to_step is None else self.to_step,
        )


class _PageCollector:
    """Fills one page from frames, in order, up to a number of lines and of bytes (one line always fits)."""

    def __init__(self, after: int, wanted: LineFilter, limit: int, max_bytes: int) -> None:
        self.page = LogFilePage(next=after, last=after)
        self.after = after
        self._wanted = wanted
        self._limit = limit
        self._room = max_bytes

    def take(self, frame: Frame, payload: bytes) -> bool:
        """Add a frame's lines; False once the page is full or the log has ended."""
        if frame.kind == FrameKind.SEAL:
            self.page.sealed = True
            return False
        if frame.kind == FrameKind.DROPPED:
            self.lose(frame, unpack_payload(_bytes_decoder, payload))
            return True
        seq = frame.first
        for run in unpack_payload(runs_decoder, payload):
            if self._wanted.passes(run) and not self._add_run(run, seq):
                return False
            seq += len(run.texts)
            self.skip_to(seq - 1)
        return True

    def wants(self, frame: Frame) -> bool:
        return self._wanted.may_hold(frame)

    def lose(self, frame: Frame, size: int) -> None:
        if frame.last > self.after:
            self.page.dropped.append(DroppedRange(max(frame.first, self.after + 1), frame.last, size))
        self.skip_to(frame.last)

    def skip_to(self, seq: int) -> None:
        self.page.next = max(self.page.next, seq)

    def _add_run(self, run: LineRun, first: int) -> bool:
        lines = self.page.lines
        for seq, text in enumerate(run.texts, first):
            if seq <= self.after or not self._wanted.has(text):
                continue
            if len(lines) >= self._limit or (lines and len(text) > self._room):
                return False
            lines.append(LogRow(seq, run.at, run.stream, run.rank, run.step, text, run.flags))
            self._room -= len(text)
            self.page.next = seq
        return True


def read_page(
    path: Path,
    after: int = 0,
    limit: int = 1000,
    *,
    streams: Collection[StreamName] | None = None,
    rank: int | None = None,
    from_step: int | None = None,
    to_step: int | None = None,
    tail: int | None = None,
    before: int | None = None,
    search: str = "",
    max_bytes: int = _MAX_PAGE_BYTES,
) -> LogFilePage:
    """Read lines from a device's file: those after `after`, or the newest `tail` of them (before line `before`, if
    that is given).

    Memory and time are bounded: at most `limit` lines and about `max_bytes` of text, and a bounded part of the
    file is looked at, so a page may be empty though lines that pass the filters follow; `next` has moved on then.
    A file that is not there yet is an empty log.

    Raises:
        OSError: the file cannot be read.
        ValueError: `after` is negative, or `limit`, `tail`, `before` or `max_bytes` is not positive.
    """
    _check_bounds(after, limit=limit, tail=tail, before=before, max_bytes=max_bytes)
    chosen = None if streams is None else frozenset(streams)
    wanted = LineFilter(chosen, rank, from_step, to_step, search.casefold())
    try:
        with FrameReader(path) as reader:
            if tail is None:
                return _read_forward(reader, _PageCollector(after, wanted, limit, max_bytes))
            return _read_tail(reader, after, wanted, tail, before, max_bytes)
    except FileNotFoundError:
        return LogFilePage(next=after, last=after)


def _check_bounds(after: int, **positive: int | None) -> None:
    if after < 0:
        raise ValueError(f"after is {after}; a cursor is 0 or a line's seq")
    for name, value in positive.items():
        if value is not None and value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")


def _read_forward(reader: FrameReader, collector: _PageCollector) -> LogFilePage:
    page, budget = collector.page, _SCAN_BUDGET
    newest = reader.last()
    page.last = _last_seq(newest)
    for frame in reader.forward(reader.locate(page.next + 1)):
        budget -= 1
        if not collector.wants(frame):
            collector.skip_to(frame.last)
        elif not _collect_frame(reader, frame, collector, is_newest=frame == newest):
            break
        else:
            budget -= _UNPACK_COST
        if budget <= 0:
            break
    return page


def _read_tail(
    reader: FrameReader, after: int, wanted: LineFilter, tail: int, before: int | None, max_bytes: int
) -> LogFilePage:
    newest = reader.last()
    end = max(after, _last_seq(newest))
    end = end if before is None else min(end, before - 1)
    page, budget, room = LogFilePage(next=end, last=_last_seq(newest)), _SCAN_BUDGET, max_bytes
    for frame in reader.backward(newest if end >= page.last else reader.locate(end + 1)):
        if frame.last <= after or budget <= 0 or len(page.lines) >= tail or room <= 0:
            break
        budget -= 1
        collector = _PageCollector(after, wanted, limit=sys.maxsize, max_bytes=sys.maxsize)
        if collector.wants(frame):
            budget -= _UNPACK_COST
            _collect_frame(reader, frame, collector, is_newest=frame == newest)
        found = collector.page
        lines = [line for line in found.lines if line.seq <= end]
        page.lines[:0] = lines
        page.dropped[:0] = found.dropped
        page.sealed = page.sealed or found.sealed
        room -= sum(len(line.text) for line in lines)
    page.lines = page.lines[-tail:]
    return page


def _last_seq(newest: Frame | None) -> int:
    if newest is None:
        return 0
    return newest.last - 1 if newest.kind == FrameKind.SEAL else newest.last


def _collect_frame(reader: FrameReader, frame: Frame, collector: _PageCollector, *, is_newest: bool) -> bool:
    """Give a frame to the collector. A damaged one is a loss, but the newest may only be half written."""
    try:
        return collector.take(frame, reader.payload(frame))
    except CorruptFrame:
        if is_newest:
            return False
        collector.lose(frame, frame.length)
        return True


# -- chunks, which the stream in Redis has as well -----------------------------------------------------


def read_chunk(raw: bytes, after: int = 0) -> LogFilePage:
    """The lines after `after` of one entry of a log stream (its field `f`), for those who follow the stream themselves.

    A follower that finds more than `next + 1` as the first line has lost the window, and reads the file.

    Raises:
        CorruptFrame: the bytes are not a chunk.
    """
    collector = _PageCollector(after, LineFilter(), sys.maxsize, sys.maxsize)
    frame, payload = parse_frame(raw)
    collector.take(frame, payload)
    collector.page.last = collector.page.next
    return collector.page


# -- display ---------------------------------------------------------------------------------------

_ESCAPES = re.compile(
    r"\x1b(?:"
    r"\[[0-?]*[ -/]*[@-~]?"  # CSI: colours, cursor
    r"|\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC: titles, links
    r"|[PX^_][^\x1b]*(?:\x1b\\)?"  # DCS and its kin
    r"|[ -/]*[0-~]?"  # all others
    r")"
)


def clean_for_display(text: bytes) -> str:
    """A line as a person may see it, whatever a program printed.

    Bytes that are not UTF-8 become U+FFFD; ANSI escapes, control characters (tabs stay), line and paragraph
    separators and marks that turn the writing direction are taken out. Of a line that redraws itself with
    `\\r`, the last state that shows anything is left.
    """
    plain = _ESCAPES.sub("", text.decode("utf-8", "replace"))
    if "\r" in plain:
        states = plain.split("\r")
        plain = next((state for state in reversed(states) if state.strip()), states[-1])
    return plain.translate(WITHOUT_UNSAFE)
