"""Lines and points on their way into a stream: batches out of frames, and windows of the newest.

For every reader of a job the same batch is encoded once. Reading files is for a worker thread; every read is bounded.
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from api.data.attempt_files import require_plain_file
from api.data.log_streams import ALL_STREAMS, LogStreams
from jobs.files import log_page, metric_file, paths
from jobs.files.frame_file import CorruptFrame, FrameKind, FrameReader
from jobs.files.log_file import CONTINUED
from jobs.files.log_page import LogFilePage
from shardyard.contract.responses import at
from shardyard.contract.stream_events import EventLine, LogLines, LostLines, MetricPoint, Metrics, data

#: One event of lines has at most so many, and about so much text.
BATCH_LINES = 200
BATCH_BYTES = 64 * 1024
#: Text that is looked at to find where the newest lines of some streams begin.
TAIL_BYTES = 4 * 1024 * 1024

_log_decoder = msgspec.json.Decoder(LogLines)


@dataclass(frozen=True, slots=True)
class EventBatch:
    """One event's worth: items `first` to `last` of a log (lines) or of a metric file (points of any series).
    `streams`: those of its lines; a batch of points, or of losses alone, has none."""

    first: int
    last: int
    data: str
    streams: frozenset[str] = frozenset()
    has_losses: bool = False

    def select_lines(self, streams: LogStreams) -> str | None:
        """The data with the lines of these streams; None where nothing is left. Losses belong to every stream."""
        if self.streams <= streams:
            return self.data
        if not self.streams & streams and not self.has_losses:
            return None
        event = _log_decoder.decode(self.data)
        lines = tuple(line for line in event.lines if line.stream in streams)
        return data(msgspec.structs.replace(event, lines=lines)) if lines or event.dropped else None


@dataclass(frozen=True, slots=True)
class FilePart:
    """Batches that follow `after`, read up to `next`. `at_end`: of what there is now."""

    batches: list[EventBatch]
    next: int
    at_end: bool


# -- lines -----------------------------------------------------------------------------------------


def read_lines(attempt_dir: Path, attempt: int, device: int, after: int, streams: LogStreams) -> FilePart:
    """Lines of a device's file after number `after`, of these streams. Raises OSError, NotFound."""
    path = _log_path(attempt_dir, device)
    page = log_page.read_page(path, after, BATCH_LINES, streams=streams, max_bytes=BATCH_BYTES)
    return FilePart(list(batches_from_page(page, attempt, device, after)), page.next, page.next >= page.last)


def newest_line(attempt_dir: Path, device: int) -> int:
    """The number of the last line in a device's file. Raises OSError, NotFound."""
    return log_page.read_page(_log_path(attempt_dir, device), 0, 1, tail=1).last


def line_before_tail(attempt_dir: Path, device: int, tail: int, streams: LogStreams) -> int:
    """The number of the line after which the newest `tail` lines of these streams begin. Raises OSError, NotFound."""
    newest = newest_line(attempt_dir, device)
    if streams == ALL_STREAMS or not tail:
        return max(0, newest - tail)
    page = log_page.read_page(_log_path(attempt_dir, device), tail=tail, streams=streams, max_bytes=TAIL_BYTES)
    return page.lines[0].seq - 1 if page.lines else newest


def batches_from_chunk(raw: bytes, attempt: int, device: int, after: int) -> tuple[int, list[EventBatch]]:
    """The first line's number and the lines after `after` of one entry of a log's stream.

    Raises:
        CorruptFrame: the bytes are not a chunk.
    """
    page = log_page.read_chunk(raw, after)
    numbers = [*(line.seq for line in page.lines[:1]), *(lost.first for lost in page.dropped[:1])]
    return min(numbers, default=after + 1), list(batches_from_page(page, attempt, device, after))


def batches_from_page(page: LogFilePage, attempt: int, device: int, after: int) -> Iterator[EventBatch]:
    """The lines and losses of a page, in events of a bounded size."""
    first, lines, size, lost = after + 1, list[EventLine](), 0, deque(page.dropped)
    for line in page.lines:
        if lines and (len(lines) >= BATCH_LINES or size + len(line.text) > BATCH_BYTES):
            yield _log_batch(attempt, device, first, lines[-1].seq, lines, lost)
            first, lines, size = lines[-1].seq + 1, [], 0
        lines.append(_event_line(line))
        size += len(line.text)
    if lines or lost:
        last = max([line.seq for line in lines[-1:]] + [part.last for part in lost])
        yield _log_batch(attempt, device, first, last, lines, lost)


def _log_batch(
    attempt: int, device: int, first: int, last: int, lines: list[EventLine], lost: "deque[log_page.DroppedRange]"
) -> EventBatch:
    """Takes the losses up to `last` along."""
    named = []
    while lost and lost[0].first <= last:
        part = lost.popleft()
        named.append(LostLines(part.first, part.last, part.bytes))
    event = LogLines(attempt=attempt, device=device, lines=tuple(lines), dropped=tuple(named))
    return EventBatch(first, last, data(event), frozenset(line.stream for line in lines), bool(named))


def _event_line(line: log_page.LogRow) -> EventLine:
    text, continued = log_page.clean_for_display(line.text), bool(line.flags & CONTINUED)
    return EventLine(
        seq=line.seq,
        at=at(int(line.at * 1e6)),
        stream=line.stream,
        rank=line.rank,
        step=line.step,
        text=text,
        continued=continued,
    )


def _log_path(attempt_dir: Path, device: int) -> Path:
    return require_plain_file(paths.log_file(attempt_dir, device))


# -- points ----------------------------------------------------------------------------------------


def read_points(attempt_dir: Path, attempt: int, after: int) -> FilePart:
    """Points of an attempt's metric file after item `after`: those of one frame. Raises OSError, NotFound."""
    try:
        reader = FrameReader(require_plain_file(paths.metrics_file(attempt_dir)))
    except FileNotFoundError:
        return FilePart([], after, at_end=True)
    with reader:
        frame = reader.locate(after + 1)
        if frame is None or frame.kind == FrameKind.SEAL:
            return FilePart([], after, at_end=True)
        try:
            _, batches = batches_from_frame(reader.raw(frame), attempt, after)
        except CorruptFrame:
            batches = []  # passed over, as `jobs.files.metric_file` does
        return FilePart(batches, max(after, frame.last), reader.frame_at(frame.end) is None)


def newest_point(attempt_dir: Path) -> int:
    """How many points the metric file has, over all series. Raises OSError, NotFound."""
    try:
        with FrameReader(require_plain_file(paths.metrics_file(attempt_dir))) as reader:
            frame = reader.last()
            return 0 if frame is None else frame.last - (frame.kind == FrameKind.SEAL)
    except FileNotFoundError:
        return 0


def batches_from_frame(raw: bytes, attempt: int, after: int) -> tuple[int, list[EventBatch]]:
    """The first item of one frame of points, and an event for each series in it whose items come after `after`.

    Raises:
        CorruptFrame: the bytes are not a frame of points.
    """
    frame, segments = metric_file.read_frame(raw)
    batches, last = [], frame.first - 1
    for segment in segments:
        first, last = last + 1, last + len(segment.steps)
        if last > after:
            batches.append(EventBatch(first, last, data(_metric_event(attempt, segment))))
    return frame.first, batches


def _metric_event(attempt: int, segment: metric_file.SeriesSegment) -> Metrics:
    points = tuple(
        MetricPoint(point.step, point.value if math.isfinite(point.value) else None, at(int(point.at * 1e6)))
        for point in segment.points()
    )
    return Metrics(attempt=attempt, device=segment.device, name=segment.name, first=segment.first, points=points)


# -- the newest, for all readers -------------------------------------------------------------------


class BatchWindow:
    """The newest batches of one log, or of the points, within a number of characters. It begins after item `after`."""

    def __init__(self, after: int, limit: int) -> None:
        self.start = after + 1
        self.last = after
        self._limit = limit
        self._size = 0
        self._batches: deque[EventBatch] = deque()

    def add_batches(self, batches: Sequence[EventBatch], reached: int) -> None:
        """Batches that follow `last`, and what then is the last item (damaged ones at the end have no batch)."""
        for batch in batches:
            self._batches.append(batch)
            self._size += len(batch.data)
        self.last = reached
        while self._size > self._limit and len(self._batches) > 1:
            dropped = self._batches.popleft()
            self._size -= len(dropped.data)
            self.start = dropped.last + 1

    def batch_after(self, item: int) -> EventBatch | None:
        """The batch that begins after `item`, which is before `last`. None where no batch begins there: the file
        has it, and at its end readers come to where batches begin."""
        for batch in reversed(self._batches):  # nearly every reader is at the newest
            if batch.first <= item + 1:
                return batch if batch.first == item + 1 else None
        return None
