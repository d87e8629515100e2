"""Writes the logs of an attempt: lines are split, numbered, packed into chunks, and appended to files.

The supervisor's loop adds bytes, and calls `flush_due` at the time that `next_deadline` gives. A chunk is appended to
the device's file, which is the log of record; then the shipper is notified that the file has grown. Only the disk can
slow this down. When the disk refuses a chunk, the relay goes on, and the log itself names the missing lines.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import structlog

from jobs.files import paths
from jobs.files.log_file import MAX_LINE_BYTES, LineRun, LogWriter, StreamName
from workers.supervisor.report.shard_lines import ShardLine
from workers.supervisor.telemetry.line_splitter import LineSplitter, SplitLines
from workers.supervisor.telemetry.shipper import StreamShipper

#: A chunk is written when it has this many lines, or this much text, or its first line has waited this long.
CHUNK_LINES = 50
CHUNK_BYTES = 256 * 1024
CHUNK_SECONDS = 0.1
#: One read of a pipe may bring more lines than `CHUNK_LINES`: they stay together up to this many.
MAX_CHUNK_LINES = 500
#: Pieces of this size stay on the splitter's fast path, and bound a chunk.
PIECE_BYTES = MAX_LINE_BYTES // 2
#: What the service writes of its own, of each kind, in all logs of an attempt together: with `observe: every` a line
#: for each step, of which a program may claim any number.
MAX_OWN_BYTES = 256 * 1024 * 1024
OWN_LIMIT_REACHED = "lines about splits end here: those of this attempt have {:,} bytes, and this is the limit"
#: A progress bar is shown this often while it redraws itself.
REDRAW_SECONDS = 1.0

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _LogSource:
    """One stream of one rank of a device."""

    stream: StreamName
    rank: int
    splitter: LineSplitter = field(default_factory=LineSplitter)
    step: int | None = None
    read_at: float = 0.0  # when its newest bytes were read
    drawn_at: float | None = None  # since when a progress bar has been waiting to be shown


@dataclass(slots=True)
class _DeviceLog:
    writer: LogWriter
    sources: dict[tuple[StreamName, int], _LogSource] = field(default_factory=dict)
    runs: list[LineRun] = field(default_factory=list)
    lines: int = 0
    size: int = 0
    since: float = 0.0
    begun: bool = False
    failing: bool = False


class LogRelay:
    """The logs of one attempt. Used by one thread; does not wait for anything but the disk."""

    def __init__(
        self,
        attempt: Path,
        devices: int,
        shipper: StreamShipper | None,
        clock: Callable[[], float] = time.time,
        *,
        first: int = 0,
    ) -> None:
        """Write the logs of `devices` devices, from `first` on, into the attempt's directory (`jobs.files.paths`).
        Lines of others are left out: where an attempt has several nodes, each writes those of its own.

        Raises:
            OSError: the directory cannot be made.
        """
        paths.logs_dir(attempt).mkdir(parents=True, exist_ok=True)
        numbers = range(first, first + devices)
        self._devices = {device: _DeviceLog(LogWriter(paths.log_file(attempt, device))) for device in numbers}
        self._shipper = shipper
        self._clock = clock
        self._own_bytes: dict[StreamName, int] = {}  # written by the service

    @property
    def dropped(self) -> int:
        """Lines that could not be written, up to now."""
        return sum(device.writer.dropped for device in self._devices.values())

    def add_output(self, device: int, stream: StreamName, rank: int, data: bytes, step: int | None) -> None:
        """Take bytes that were just read from a pipe, in pieces of any size. Lines get the time and the step of the
        piece that ends them, however long they wait for their chunk."""
        if device not in self._devices:
            return
        now = self._clock()
        source = self._source_of(device, stream, rank)
        source.step, source.read_at = step, now
        for start in range(0, len(data), PIECE_BYTES):
            lines = source.splitter.add_bytes(data[start : start + PIECE_BYTES])
            if lines:
                self._queue_lines(device, source, lines, now)
        if not source.splitter.is_redrawing:
            source.drawn_at = None
        elif source.drawn_at is None:
            source.drawn_at = now

    def add_line(self, device: int, stream: StreamName, rank: int, text: str, step: int | None) -> None:
        """Take one line of the service's own (`shard`, `service`); it is split like any other."""
        if self._has_room(stream, len(text)):
            self._add_own_line(device, stream, rank, text, step)

    def _add_own_line(self, device: int, stream: StreamName, rank: int, text: str, step: int | None) -> None:
        self.add_output(device, stream, rank, text.encode("utf-8", "surrogateescape") + b"\n", step)

    def add_shard_lines(self, rank: int, lines: Sequence[ShardLine]) -> None:
        """Write lines about the steps of one packet of a rank. They have waited in the rank, so they are not held back
        again, and they stay together in chunks."""
        lines = [line for line in lines if line.device in self._devices]
        if not self._has_room("shard", sum([len(line.text) for line in lines])):
            return
        now = self._clock()
        for (device, step), alike in groupby(lines, key=attrgetter("device", "step")):
            texts = [line.text.encode() for line in alike]
            if any(len(text) > PIECE_BYTES for text in texts):  # of a shape of thousands of dimensions
                for text in texts:
                    self.add_output(device, "shard", rank, text + b"\n", step)
                continue
            self._queue_run(device, LineRun("shard", rank, step, now, 0, texts), now)
            if self._devices[device].lines >= MAX_CHUNK_LINES or self._devices[device].size >= CHUNK_BYTES:
                self._write_chunk(device)
        for device in {line.device for line in lines}:
            self._write_chunk(device)

    def _has_room(self, stream: StreamName, count: int) -> bool:
        """Count what the service is about to write; False where it has written enough. Of the lines about splits the
        log says that they end."""
        before = self._own_bytes.get(stream, 0)
        after = self._own_bytes[stream] = before + count
        if before <= MAX_OWN_BYTES < after and stream == "shard":
            self._add_own_line(min(self._devices), "service", 0, OWN_LIMIT_REACHED.format(before), None)
        return after <= MAX_OWN_BYTES

    def next_deadline(self) -> float | None:
        """When `flush_due` is to be called, by the relay's clock; `None` while nothing waits."""
        waiting = [device.since + CHUNK_SECONDS for device in self._devices.values() if device.runs]
        waiting += [
            source.drawn_at + REDRAW_SECONDS
            for device in self._devices.values()
            for source in device.sources.values()
            if source.drawn_at is not None
        ]
        return min(waiting, default=None)

    def flush_due(self, now: float) -> None:
        """Write what has waited long enough."""
        for index, device in self._devices.items():
            for source in device.sources.values():
                if source.drawn_at is not None and is_due(source.drawn_at, REDRAW_SECONDS, now):
                    self._queue_lines(index, source, source.splitter.take_redrawn(), source.read_at)
                    source.drawn_at = None
            if device.runs and is_due(device.since, CHUNK_SECONDS, now):
                self._write_chunk(index)

    def close(self) -> None:
        """Write all that is left, last lines without a newline too, and seal every file. Call it once."""
        for index, device in self._devices.items():
            for source in sorted(device.sources.values(), key=lambda source: source.read_at):
                self._queue_lines(index, source, source.splitter.take_unended(), source.read_at)
            self._write_chunk(index)
            self._seal_log(index)

    def _source_of(self, device: int, stream: StreamName, rank: int) -> _LogSource:
        sources = self._devices[device].sources
        source = sources.get((stream, rank))
        if source is None:
            source = sources[(stream, rank)] = _LogSource(stream, rank)
        return source

    def _queue_lines(self, index: int, source: _LogSource, lines: SplitLines, at: float) -> None:
        """Queue lines that were read then, and write chunks as they fill up; a device's very first line is written at
        once."""
        for texts, flags in lines:
            for start in range(0, len(texts), MAX_CHUNK_LINES):
                part = texts[start : start + MAX_CHUNK_LINES] if len(texts) > MAX_CHUNK_LINES else texts
                self._queue_run(index, LineRun(source.stream, source.rank, source.step, at, flags, part), at)
                self._write_if_full(index)

    def _queue_run(self, index: int, run: LineRun, now: float) -> None:
        device = self._devices[index]
        if not device.runs:
            device.since = now
        device.runs.append(run)
        device.lines += len(run.texts)
        device.size += sum(map(len, run.texts))

    def _write_if_full(self, index: int) -> None:
        device = self._devices[index]
        if not device.begun or device.lines >= CHUNK_LINES or device.size >= CHUNK_BYTES:
            self._write_chunk(index)

    def _write_chunk(self, index: int) -> None:
        device = self._devices[index]
        if not device.runs:
            return
        runs, device.runs, device.lines, device.size, device.begun = device.runs, [], 0, 0, True
        try:
            device.writer.append(runs)
        except OSError as error:
            if not device.failing:
                log_event(_log.error, "log_not_written", device=index, error=str(error))
            device.failing = True
            return
        if device.failing:
            log_event(_log.warning, "log_written_again", device=index, dropped=device.writer.dropped)
        device.failing = False
        self._ship_log(index)

    def _seal_log(self, index: int) -> None:
        writer = self._devices[index].writer
        try:
            writer.seal()
        except OSError as error:
            log_event(_log.error, "log_not_sealed", device=index, dropped=writer.dropped, error=str(error))
            writer.close()
            return
        self._ship_log(index)

    def _ship_log(self, index: int) -> None:
        writer = self._devices[index].writer
        if self._shipper is not None:
            self._shipper.ship_log(index, writer.path, writer.end)


def is_due(since: float, seconds: float, now: float) -> bool:
    """Whether something has waited long enough. A clock that was set back makes nothing wait longer."""
    return now - since >= seconds or now < since


def log_event(method: Callable[..., None], event: str, **fields: object) -> None:
    """Write to the service's own log, which may fail as well where the disk is full."""
    with suppress(OSError):
        method(event, **fields)
