"""Writes the logs and metrics of an attempt: lines are split, numbered, packed into chunks, and appended to files.

The supervisor's loop adds bytes, and calls `flush_due` at the time that `next_deadline` gives. A chunk is appended to
the device's file, which is the log of record; then the shipper is notified that the file has grown. Only the disk can
slow this down. When the disk refuses a chunk, the relay goes on, and the log itself names the missing lines.
"""

import errno
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import msgspec
import structlog

from jobs.files import paths
from jobs.files.log_file import MAX_LINE_BYTES, LineRun, LogWriter, StreamName
from jobs.files.metric_file import MetricWriter
from jobs.protocol.records import MetricSample
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
#: A progress bar is shown this often while it redraws itself.
REDRAW_SECONDS = 1.0
METRIC_POINTS = 1000
#: Between two tries to write points to a disk that has refused them.
RETRY_SECONDS = 0.2
#: How many points wait while the disk has no room for them; more are dropped.
MAX_WAITING_POINTS = 100_000
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
A_DAY = 86_400.0

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _LogSource:
    """One stream of one rank of a device."""

    stream: StreamName
    rank: int
    splitter: LineSplitter = field(default_factory=LineSplitter)
    step: int | None = None
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
    """The logs and metrics of one attempt. Used by one thread; does not wait for anything but the disk."""

    def __init__(
        self, attempt: Path, devices: int, shipper: StreamShipper | None, clock: Callable[[], float] = time.time
    ) -> None:
        """Write the logs of `devices` devices, and the metrics, into the attempt's directory (`jobs.files.paths`).

        Raises:
            OSError: the directory cannot be made.
        """
        paths.logs_dir(attempt).mkdir(parents=True, exist_ok=True)
        self._devices = [_DeviceLog(LogWriter(paths.log_file(attempt, device))) for device in range(devices)]
        self._metric_writer = MetricWriter(paths.metrics_file(attempt))
        self._points: list[MetricSample] = []
        self._tried_at = 0.0
        self._earlier: Path | None = None  # whose points come first, once there is room for them
        self._metrics_failing = False
        self._shipper = shipper
        self._clock = clock

    @property
    def dropped(self) -> int:
        """Lines and points that could not be written, up to now."""
        return sum(device.writer.dropped for device in self._devices) + self._metric_writer.dropped

    def add_output(self, device: int, stream: StreamName, rank: int, data: bytes, step: int | None) -> None:
        """Take bytes that came from a pipe, in pieces of any size. Lines get the step of the piece that ends them."""
        now = self._clock()
        source = self._source_of(device, stream, rank)
        source.step = step
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
        self.add_output(device, stream, rank, text.encode("utf-8", "surrogateescape") + b"\n", step)

    def add_shard_lines(self, rank: int, lines: Sequence[ShardLine]) -> None:
        """Write lines about the steps of one packet of a rank. They have waited in the rank, so they are not held back
        again, and they stay together in chunks."""
        now = self._clock()
        for (device, step), alike in groupby(lines, key=_device_and_step):
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

    def add_metric(self, record: MetricSample) -> None:
        """Take one point of a series. An impossible time (a program may claim any) becomes the time of arrival."""
        now = self._clock()
        if not 0 <= record.at <= now + A_DAY:
            record = msgspec.structs.replace(record, at=now)
        if self._disk_refuses and len(self._points) >= MAX_WAITING_POINTS:
            self._metric_writer.dropped += 1
            return
        self._points.append(record)
        if not self._disk_refuses and len(self._points) >= METRIC_POINTS:
            self._write_points()

    def start_metrics_from(self, earlier: Path) -> None:
        """Begin the metrics with the points of an earlier attempt. Where the disk is full, they are copied as soon as
        it has room, and new points wait until then.

        Raises:
            OSError: the earlier points cannot be read.
        """
        self._earlier = earlier
        self._copy_earlier_points()

    def flush_metrics(self) -> tuple[Path, int]:
        """Write all points that wait; returns the metrics' file and its length with every point up to now.

        Raises:
            OSError: the disk has no room for all of them yet.
        """
        self._write_points()
        if self._earlier is not None or self._points:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._metric_writer.path, self._metric_writer.end

    def next_deadline(self) -> float | None:
        """When `flush_due` is to be called, by the relay's clock; `None` while nothing waits."""
        waiting = [device.since + CHUNK_SECONDS for device in self._devices if device.runs]
        waiting += [
            source.drawn_at + REDRAW_SECONDS
            for device in self._devices
            for source in device.sources.values()
            if source.drawn_at is not None
        ]
        if self._points:
            waiting.append(self._tried_at + RETRY_SECONDS if self._disk_refuses else self._clock())
        return min(waiting, default=None)

    def flush_due(self, now: float) -> None:
        """Write what has waited long enough. Points, which come in packets, wait only while the disk is full. A clock
        that was set back makes nothing wait longer."""
        for index, device in enumerate(self._devices):
            for source in device.sources.values():
                if source.drawn_at is not None and _is_due(source.drawn_at, REDRAW_SECONDS, now):
                    self._queue_lines(index, source, source.splitter.take_redrawn(), now)
                    source.drawn_at = None
            if device.runs and _is_due(device.since, CHUNK_SECONDS, now):
                self._write_chunk(index)
        if self._points and (not self._disk_refuses or _is_due(self._tried_at, RETRY_SECONDS, now)):
            self._write_points()

    def close(self) -> None:
        """Write all that is left, last lines without a newline too, and seal every file. Call it once."""
        now = self._clock()
        for index, device in enumerate(self._devices):
            for source in device.sources.values():
                self._queue_lines(index, source, source.splitter.take_unended(), now)
            self._write_chunk(index)
            self._seal_log(index)
        self._write_points()
        self._metric_writer.dropped += len(self._points)  # there was no room for them until the end
        self._seal_metrics()

    @property
    def _disk_refuses(self) -> bool:
        """Whether the disk had no room for points, or for those of an earlier attempt."""
        return self._earlier is not None or self._metrics_failing

    def _source_of(self, device: int, stream: StreamName, rank: int) -> _LogSource:
        sources = self._devices[device].sources
        source = sources.get((stream, rank))
        if source is None:
            source = sources[(stream, rank)] = _LogSource(stream, rank)
        return source

    def _queue_lines(self, index: int, source: _LogSource, lines: SplitLines, now: float) -> None:
        """Queue lines, and write chunks as they fill up; a device's very first line is written at once."""
        for texts, flags in lines:
            for start in range(0, len(texts), MAX_CHUNK_LINES):
                part = texts[start : start + MAX_CHUNK_LINES] if len(texts) > MAX_CHUNK_LINES else texts
                self._queue_run(index, LineRun(source.stream, source.rank, source.step, now, flags, part), now)
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
                _log_event(_log.error, "log_not_written", device=index, error=str(error))
            device.failing = True
            return
        if device.failing:
            _log_event(_log.warning, "log_written_again", device=index, dropped=device.writer.dropped)
        device.failing = False
        self._ship_log(index)

    def _seal_log(self, index: int) -> None:
        writer = self._devices[index].writer
        try:
            writer.seal()
        except OSError as error:
            _log_event(_log.error, "log_not_sealed", device=index, dropped=writer.dropped, error=str(error))
            writer.close()
            return
        self._ship_log(index)

    def _ship_log(self, index: int) -> None:
        writer = self._devices[index].writer
        if self._shipper is not None:
            self._shipper.ship_log(index, writer.path, writer.end)

    def _copy_earlier_points(self) -> None:
        """Copy the points of an earlier attempt if there is room for them. Raises OSError: they cannot be read."""
        assert self._earlier is not None
        try:
            self._metric_writer.begin_with(self._earlier)
        except OSError as error:
            if error.errno not in NO_ROOM:
                self._earlier = None
                raise
            return
        self._earlier = None
        self._ship_metrics()

    def _write_points(self) -> None:
        if self._earlier is not None:
            with suppress(OSError):  # new points are no worse for it
                self._copy_earlier_points()
        if self._earlier is not None:
            self._tried_at = self._clock()
            return
        if not self._points:
            return
        while points := self._points[:METRIC_POINTS]:
            try:
                self._metric_writer.append(points)
            except OSError as error:
                if not self._metrics_failing:
                    _log_event(_log.error, "metrics_not_written", error=str(error))
                self._metrics_failing = True
                if error.errno in NO_ROOM:
                    self._tried_at = self._clock()
                    return
                self._metric_writer.dropped += len(points)
            else:
                self._metrics_failing = False
            del self._points[:METRIC_POINTS]
        self._ship_metrics()

    def _seal_metrics(self) -> None:
        try:
            self._metric_writer.seal()
        except OSError as error:
            _log_event(_log.error, "metrics_not_sealed", dropped=self._metric_writer.dropped, error=str(error))
            self._metric_writer.close()
            return
        self._ship_metrics()

    def _ship_metrics(self) -> None:
        if self._shipper is not None:
            self._shipper.ship_metrics(self._metric_writer.path, self._metric_writer.end)


def _device_and_step(line: ShardLine) -> tuple[int, int]:
    return line.device, line.step


def _is_due(since: float, seconds: float, now: float) -> bool:
    return now - since >= seconds or now < since


def _log_event(method: Callable[..., None], event: str, **fields: object) -> None:
    """Write to the service's own log, which may fail as well where the disk is full."""
    with suppress(OSError):
        method(event, **fields)
