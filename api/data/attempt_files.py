"""Reads what attempts left in storage: reports, logs, metrics. For a worker thread; every read is bounded.

Paths given to these functions are absolute and free of links down to the attempt's own directory.
"""

import heapq
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from api.data import archive
from api.data.service_files import MOUNTED, ServiceFiles
from jobs.files import log_file, log_page, metric_file, paths
from jobs.files.log_file import CONTINUED, StreamName
from jobs.support import fs
from shardyard.contract.errors import NotFound
from shardyard.contract.responses import BucketView, DroppedLines, LogLine, PointView, SeriesView, at

#: A report's size follows the number of different splits, so a larger file is not one of ours.
MAX_REPORT_BYTES = 16 * 1024 * 1024
#: Text of one page of logs, over all devices.
MAX_PAGE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class SeriesQuery:
    """Which series, of the points after number `after`: whole, or in at most `points` buckets."""

    device: int | None = None
    name: str | None = None
    after: int = 0
    points: int | None = None


@dataclass(frozen=True, slots=True)
class LogQuery:
    """Which lines. Bounds on steps are inclusive. `tail` asks for the newest lines instead of those after a cursor,
    those before number `before_line` if given, `from_line` for the first line of each device where there is no cursor.
    `streams` None: of all streams."""

    device: int | None = None
    rank: int | None = None
    streams: frozenset[StreamName] | None = None
    from_step: int | None = None
    to_step: int | None = None
    limit: int = 1000
    tail: int | None = None
    from_line: int | None = None
    before_line: int | None = None
    search: str = ""


@dataclass(frozen=True, slots=True)
class MergedLines:
    """Lines of several devices by time, and how far each device was read. `at_end`: of what there is now."""

    lines: list[LogLine]
    dropped: list[DroppedLines]
    seen: dict[int, int]
    at_end: bool
    sealed: bool


def read_report(attempt: Path) -> bytes | None:
    """The report that was kept, as JSON. Raises OSError."""
    try:
        return fs.read_plain_file(require_plain_file(paths.report_file(attempt)), MAX_REPORT_BYTES)
    except FileNotFoundError:
        return None


def read_logs(attempt: Path, devices: Sequence[int], seen: Mapping[int, int], query: LogQuery) -> MergedLines:
    """Lines of `devices` after those that were seen, merged by time. Raises OSError.

    Lines of one device keep their order whatever the clock did.
    """
    before = 0 if query.from_line is None else query.from_line - 1
    seen = {device: seen.get(device, before) for device in devices}
    pages = {device: _read_device_page(attempt, device, seen[device], len(devices), query) for device in devices}
    rows = ([(device, row) for row in page.lines] for device, page in pages.items())
    merged = list(heapq.merge(*rows, key=lambda found: found[1].at))
    chosen = merged[: query.limit] if query.tail is None else merged[-query.tail :]
    lines = [_log_line(device, row) for device, row in chosen]
    reached = {device: page.next for device, page in pages.items()}
    if query.tail is None:
        reached = {device: _position_reached(device, page, lines, seen[device]) for device, page in pages.items()}
    return MergedLines(
        lines=lines,
        dropped=[
            DroppedLines(device, part.first, part.last, part.bytes)
            for device, page in pages.items()
            for part in page.dropped
            if part.last <= reached[device]
        ],
        seen=reached,
        at_end=all(reached[device] >= page.last for device, page in pages.items()),
        sealed=all(page.sealed for page in pages.values()),
    )


def _read_device_page(attempt: Path, device: int, after: int, devices: int, query: LogQuery) -> log_page.LogFilePage:
    return log_page.read_page(
        require_plain_file(paths.log_file(attempt, device)),
        after,
        query.limit,
        streams=query.streams,
        rank=query.rank,
        from_step=query.from_step,
        to_step=query.to_step,
        search=query.search,
        tail=query.tail,
        before=query.before_line,
        max_bytes=max(MAX_PAGE_BYTES // devices, log_file.MAX_LINE_BYTES),
    )


def _position_reached(device: int, page: log_page.LogFilePage, taken: Sequence[LogLine], before: int) -> int:
    """How far a device was read: its whole page, unless the merge left some of its lines for the next one."""
    mine = [line.seq for line in taken if line.device == device]
    if len(mine) == len(page.lines):
        return page.next
    return mine[-1] if mine else min(before, page.lines[0].seq - 1)


def _log_line(device: int, line: log_page.LogRow) -> LogLine:
    return LogLine(
        seq=line.seq,
        at=at(int(line.at * 1e6)),
        device=device,
        rank=line.rank,
        stream=line.stream,
        step=line.step,
        text=log_page.clean_for_display(line.text),
        continued=bool(line.flags & CONTINUED),
    )


def read_metrics(attempt: Path, query: SeriesQuery) -> list[SeriesView]:
    """Series of an attempt, whole or down-sampled. Raises OSError."""
    file = require_plain_file(paths.metrics_file(attempt))
    found = metric_file.read_series(file, query.device, query.name, query.after, query.points)
    return [_series_view(series) for series in found]


def _series_view(series: metric_file.MetricSeries) -> SeriesView:
    return SeriesView(
        device=series.device,
        name=series.name,
        points=[_point_view(point) for point in series.points],
        buckets=[
            BucketView(
                count=bucket.count,
                first=_point_view(bucket.first),
                last=_point_view(bucket.last),
                minimum=bucket.minimum,
                maximum=bucket.maximum,
                mean=bucket.mean,
            )
            for bucket in series.buckets
        ],
        next=series.next,
        last=series.last,
    )


def _point_view(point: metric_file.SeriesPoint) -> PointView:
    value = point.value if math.isfinite(point.value) else None
    return PointView(number=point.number, step=point.step, value=value, at=at(int(point.at * 1e6)))


def require_plain_file(path: Path) -> Path:
    """`path`, unless a link leads away from it: a job can put links where its files lie, to read what is not its own,
    or pipes, to hold up whoever reads them.

    Raises:
        NotFound: there is something else than a file.
    """
    if os.path.realpath(path) != str(path) or (os.path.exists(path) and not os.path.isfile(path)):
        raise NotFound(f"{path.name} of this attempt is not a regular file")
    return path


def remove_job(storage: Path, tenant: str, job: str, files: ServiceFiles = MOUNTED) -> None:
    """Remove everything that a job left, and its record where it is archived. Raises OSError, StorageUnavailable; a job
    that left nothing is no error."""
    archive.remove_job(storage, tenant, job, files)
    files.remove(paths.job_dir(storage, tenant, job))
