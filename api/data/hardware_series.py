"""Reads the samples of an attempt's hardware, and shows them as series of metrics."""

from collections.abc import Iterator
from pathlib import Path

from api.data.attempt_files import SeriesQuery, require_plain_file
from jobs.files import paths
from jobs.protocol.hardware import AttemptSamples, SampleBucket, SampleSeries, merge_pairs
from jobs.support.fs import read_plain_file
from shardyard.contract.responses import BucketView, PointView, SeriesView, at

#: The size of the samples follows the number of devices, so a larger file is not one of ours.
MAX_SAMPLES_BYTES = 64 * 1024 * 1024


def read_samples(attempt: Path) -> bytes | None:
    """The samples that were kept. Raises OSError."""
    try:
        return read_plain_file(require_plain_file(paths.hardware_file(attempt)), MAX_SAMPLES_BYTES)
    except FileNotFoundError:
        return None


def list_series(samples: AttemptSamples, query: SeriesQuery) -> list[SeriesView]:
    """Series by device and name: buckets of samples, at most `points` of them if given."""
    return [
        _series_view(samples.began, found.device, series_name, series, query.after, query.points)
        for found in sorted(samples.devices, key=lambda one: one.device)
        for series_name, series in sorted(found.series.items())
        if query.device in (None, found.device) and query.name in (None, series_name)
    ]


def _series_view(
    began: float, device: int, name: str, series: SampleSeries, after: int, points: int | None
) -> SeriesView:
    buckets: list[SampleBucket] = list(series.buckets)
    while points is not None and len(buckets) > max(1, points):
        buckets = merge_pairs(buckets)
    return SeriesView(
        device=device,
        name=name,
        buckets=list(_bucket_views(began, buckets, after)),
        next=series.count,
        last=series.count,
    )


def _bucket_views(began: float, buckets: list[SampleBucket], after: int) -> Iterator[BucketView]:
    """The mean stands for the first and the last sample of a bucket, which are not kept."""
    number = 0
    for bucket in buckets:
        first, number = number + 1, number + bucket.count
        if number > after:
            yield BucketView(
                count=bucket.count,
                first=_point_view(began, first, bucket.first, bucket.mean),
                last=_point_view(began, number, bucket.last, bucket.mean),
                minimum=bucket.minimum,
                maximum=bucket.maximum,
                mean=bucket.mean,
            )


def _point_view(began: float, number: int, seconds: int, value: float) -> PointView:
    return PointView(number=number, step=seconds, value=value, at=at(int((began + seconds) * 1e6)))
