"""Metrics of an attempt: numbered series, their file of record, and how they are read.

A series is a device (-1: the job as a whole) and a name. Its points are numbered from 1 without a gap.
One file (`jobs.files.paths`) holds all series of an attempt, in frames of `jobs.files.frame_file`; there an item is
one point of any series, counted over the whole file.
"""

import errno
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from jobs.files.frame_file import (
    NO_STEP,
    CorruptFrame,
    Frame,
    FrameDraft,
    FrameKind,
    FrameReader,
    FrameWriter,
    pack_payload,
    parse_frame,
    step_range,
    unpack_payload,
)
from jobs.protocol.records import MetricSample

#: An attempt cannot fill memory with names.
MAX_SERIES = 8192
MAX_NAME_CHARACTERS = 200
#: Most points that one read returns for a series, and for all series together where these are many.
MAX_POINTS, MAX_POINTS_TOGETHER = 10_000, 50_000

Key = tuple[int, str]


class SeriesPoint(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One point: its number in the series, the optimizer step, the value (may be NaN or infinite), and its time."""

    number: int
    step: int
    value: float
    at: float


class PointBucket(msgspec.Struct, frozen=True, gc=False):
    """Consecutive points as one. `minimum`, `maximum` and `mean` are of the finite values; `None` if there are none."""

    count: int
    finite: int
    first: SeriesPoint
    last: SeriesPoint
    minimum: float | None
    maximum: float | None
    mean: float | None


class SeriesSegment(msgspec.Struct, array_like=True):
    """Points of one series that were written together; `first` is the number of the first."""

    device: int
    name: str
    first: int
    steps: list[int]
    values: list[float]
    ats: list[float]

    def points(self) -> list[SeriesPoint]:
        numbers = range(self.first, self.first + len(self.steps))
        return [SeriesPoint(*row) for row in zip(numbers, self.steps, self.values, self.ats, strict=True)]


@dataclass(slots=True)
class MetricSeries:
    """A part of a series: `points`, or `buckets` where down-sampling was asked for.

    `next` is the number of the last point that it covers, to go on from; `last` the newest there is.
    """

    device: int
    name: str
    next: int = 0
    last: int = 0
    points: list[SeriesPoint] = field(default_factory=list)
    buckets: list[PointBucket] = field(default_factory=list)


_decoder = msgspec.msgpack.Decoder(list[SeriesSegment])


class MetricWriter:
    """Numbers points and appends them to the file of an attempt. One writer at a time."""

    def __init__(self, path: Path) -> None:
        self._frames = FrameWriter(path)
        self._counts: dict[Key, int] = {}
        self.dropped = 0

    @property
    def path(self) -> Path:
        return self._frames.path

    @property
    def end(self) -> int:
        """Length in bytes of what is whole in the file."""
        return self._frames.end

    def begin_with(self, earlier: Path) -> None:
        """Begin the file, of which there is nothing yet, with the points of another one; numbers go on from there.

        Raises:
            OSError: one of the two cannot be read or written. Nothing is begun, and it may be called again.
        """
        if earlier.stat().st_size > shutil.disk_usage(self.path.parent).free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        try:
            shutil.copyfile(earlier, self.path)
        except OSError:
            self.path.unlink(missing_ok=True)  # a part of it would pass for all
            raise
        self._open()

    def append(self, records: Sequence[MetricSample]) -> bytes:
        """Write points as one frame, and return what was written (nothing, if no series could take them).

        Points of a series beyond the first `MAX_SERIES` count in `dropped`.

        Raises:
            OSError: nothing was written; the points take no numbers, and may be given again.
            ValueError: the file is sealed.
        """
        self._open()
        segments = self._make_segments(records)
        kept = sum(len(segment.steps) for segment in segments)
        if not kept:
            self.dropped += len(records)
            return b""
        steps = [step for segment in segments for step in segment.steps]
        first = self._frames.last + 1
        draft = FrameDraft(FrameKind.DATA, first, first + kept - 1, *step_range(steps), pack_payload(segments))
        written = self._frames.append(draft)
        self.dropped += len(records) - kept
        self._count_points(segments)
        return written

    def seal(self) -> bytes:
        """Write the end, bring the file to the disk, close it, and return what was written.

        Raises:
            OSError: the disk refused; the file is not sealed.
            ValueError: it is sealed already.
        """
        self._open()
        end = self._frames.last + 1
        written = self._frames.append(
            FrameDraft(FrameKind.SEAL, end, end, NO_STEP, NO_STEP, pack_payload(self.dropped))
        )
        self._frames.sync()
        self._frames.close()
        return written

    def close(self) -> None:
        """Close the file without a seal."""
        self._frames.close()

    def _make_segments(self, records: Sequence[MetricSample]) -> list[SeriesSegment]:
        segments: dict[Key, SeriesSegment] = {}
        series = len(self._counts)
        for record in records:
            key = (record.device, record.name[:MAX_NAME_CHARACTERS])
            segment = segments.get(key)
            if segment is None:
                if key not in self._counts:
                    if series >= MAX_SERIES:
                        continue
                    series += 1
                segment = segments[key] = SeriesSegment(*key, self._counts.get(key, 0) + 1, [], [], [])
            segment.steps.append(record.step)
            segment.values.append(record.value)
            segment.ats.append(record.at)
        return list(segments.values())

    def _count_points(self, segments: Sequence[SeriesSegment]) -> None:
        for segment in segments:
            self._counts[(segment.device, segment.name)] = segment.first + len(segment.steps) - 1

    def _open(self) -> None:
        if not self._frames.open():
            return
        with FrameReader(self.path) as reader:
            for frame in reader.forward(reader.first()):
                if frame.kind == FrameKind.DATA:
                    segments: list[SeriesSegment] = unpack_payload(_decoder, reader.payload(frame))
                    self._count_points(segments)


def read_series(
    path: Path, device: int | None = None, name: str | None = None, after: int = 0, points: int | None = None
) -> list[MetricSeries]:
    """Read the series of an attempt, ordered by device and name, each from its point number `after` + 1.

    Without `points`, a series has its first `MAX_POINTS` points after `after`, and `next` goes on from there.
    With `points`, it has at most that many buckets over all points after `after`. All buckets but the last
    join the same number of points, w: the smallest power of two with ceil(n / w) <= points for n points. Of each
    bucket the first and the last point are kept as they are, with the least, the greatest and the mean
    (sum / count) of its finite values. Buckets of w are made by joining pairs of buckets of w / 2, so memory
    follows `points`, never the length of the series.

    Where there are many series, each has an equal share of `MAX_POINTS_TOGETHER`, and one at least; a series that is
    read alone (`device` and `name`) has all that it may have.

    A file that is not there yet has no series. Frames that are damaged are passed over; the numbers show the gap.

    Raises:
        OSError: the file cannot be read.
        ValueError: `after` is negative, or `points` is outside 1 to `MAX_POINTS`.
    """
    if after < 0:
        raise ValueError(f"after is {after}; a cursor is 0 or a point's number")
    if points is not None and not 1 <= points <= MAX_POINTS:
        raise ValueError(f"points is {points}; it must be from 1 to {MAX_POINTS}")
    series: dict[Key, MetricSeries] = {}
    samplers: dict[Key, _DownSampler] = {}
    share = points or MAX_POINTS
    for segment in _segments_of(path):
        if (device is not None and segment.device != device) or (name is not None and segment.name != name):
            continue
        key = (segment.device, segment.name)
        found = series.setdefault(key, MetricSeries(*key, next=after))
        share = min(share, max(1, MAX_POINTS_TOGETHER // len(series)))
        found.last = segment.first + len(segment.steps) - 1
        if found.last <= after or (points is None and len(found.points) >= share):
            continue
        new = [point for point in segment.points() if point.number > after]
        if points is None:
            found.points += new[: share - len(found.points)]
        else:
            sampler = samplers.setdefault(key, _DownSampler())
            for point in new:
                sampler.add(point, share)
    for key, found in series.items():
        if points is not None:
            found.buckets = samplers[key].buckets(share) if key in samplers else []
            found.next = max(after, found.last)
        elif found.points:
            del found.points[share:]
            found.next = found.points[-1].number
    return [series[key] for key in sorted(series)]


def read_frame(raw: bytes) -> tuple[Frame, list[SeriesSegment]]:
    """One entry of a metric stream (its field `f`): the frame, whose items are the points of the segments, in order. A
    seal has none.

    Raises:
        CorruptFrame: the bytes are not a frame.
    """
    frame, payload = parse_frame(raw)
    return frame, unpack_payload(_decoder, payload) if frame.kind == FrameKind.DATA else []


def _segments_of(path: Path) -> Iterator[SeriesSegment]:
    try:
        reader = FrameReader(path)
    except FileNotFoundError:
        return
    with reader:
        for frame in reader.forward(reader.first()):
            if frame.kind == FrameKind.DATA:
                try:
                    segments = unpack_payload(_decoder, reader.payload(frame))
                except CorruptFrame:
                    continue
                yield from segments


class _DownSampler:
    """At most so many buckets of equal width over a series whose length is not known beforehand. The limit may shrink
    from call to call."""

    def __init__(self) -> None:
        self._width = 1
        self._full: list[_BucketSum] = []
        self._open: _BucketSum | None = None

    def add(self, point: SeriesPoint, limit: int) -> None:
        if self._open is None:
            while len(self._full) >= limit and self._open is None:
                self._widen_buckets()
            if self._open is None:
                self._open = _BucketSum(point, point)
        self._open.add(point)
        if self._open.count == self._width:
            self._full.append(self._open)
            self._open = None

    def buckets(self, limit: int) -> list[PointBucket]:
        while len(self._full) + (self._open is not None) > limit:
            if self._open is not None:
                self._full.append(self._open)
                self._open = None
            self._widen_buckets()
        return [part.bucket() for part in (*self._full, *([self._open] if self._open else []))]

    def _widen_buckets(self) -> None:
        """Join pairs; an odd one out is the start of the bucket that is being filled."""
        pairs = zip(self._full[::2], self._full[1::2], strict=False)
        odd = self._full[-1] if len(self._full) % 2 else None
        self._full = [left.joined(right) for left, right in pairs]
        self._open = odd
        self._width *= 2


@dataclass(slots=True)
class _BucketSum:
    first: SeriesPoint
    last: SeriesPoint
    count: int = 0
    finite: int = 0
    total: float = 0.0
    minimum: float = math.inf
    maximum: float = -math.inf

    def add(self, point: SeriesPoint) -> None:
        self.last = point
        self.count += 1
        if math.isfinite(point.value):
            self.finite += 1
            self.total += point.value
            self.minimum = min(self.minimum, point.value)
            self.maximum = max(self.maximum, point.value)

    def joined(self, other: "_BucketSum") -> "_BucketSum":
        return _BucketSum(
            self.first,
            other.last,
            self.count + other.count,
            self.finite + other.finite,
            self.total + other.total,
            min(self.minimum, other.minimum),
            max(self.maximum, other.maximum),
        )

    def bucket(self) -> PointBucket:
        if not self.finite:
            return PointBucket(self.count, 0, self.first, self.last, None, None, None)
        mean = self.total / self.finite
        return PointBucket(self.count, self.finite, self.first, self.last, self.minimum, self.maximum, mean)
