"""What an attempt has measured, as the tools take it: one run, with named series over optimizer steps."""

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from jobs.files.metric_file import MetricSeries, SeriesPoint, read_series

#: How the process ends where the tool's library is not installed.
NOT_INSTALLED = 3


class ExportRequest(msgspec.Struct, frozen=True):
    """Of which attempt, from where, and into which directory, which must not exist."""

    format: str
    job: str
    name: str
    metrics: str
    directory: str
    attempt: int = 1
    spec: dict[str, Any] = {}


class TaggedPoint(msgspec.Struct, frozen=True):
    """A value of a metric; `at` is Unix time in seconds."""

    tag: str
    step: int
    value: float
    at: float


def read_points(path: Path) -> list[TaggedPoint]:
    """All points in the order of their steps. A metric that several devices have is one of each, as `loss/device-1`.

    Raises:
        OSError: the file cannot be read.
    """
    heads = read_series(path, points=1)
    devices = Counter(series.name for series in heads)
    found = [
        TaggedPoint(_tag(series, devices), point.step, point.value, point.at)
        for series in heads
        for point in _all_points(path, series)
    ]
    return sorted(found, key=lambda point: (point.step, point.at))


def _tag(series: MetricSeries, devices: Counter[str]) -> str:
    return series.name if devices[series.name] == 1 else f"{series.name}/device-{series.device}"


def _all_points(path: Path, head: MetricSeries) -> list[SeriesPoint]:
    points: list[SeriesPoint] = []
    after = 0
    while after < head.last:
        (part,) = read_series(path, head.device, head.name, after=after)
        if not part.points:
            break
        points += part.points
        after = part.next
    return points
