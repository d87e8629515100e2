"""Series of metrics: numbered, written, and read back whole or down-sampled."""

import math
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.files.metric_file import (
    MAX_NAME_CHARACTERS,
    MAX_POINTS,
    MAX_POINTS_TOGETHER,
    MAX_SERIES,
    MetricWriter,
    PointBucket,
    SeriesPoint,
    _DownSampler,
    read_frame,
    read_series,
)
from jobs.protocol.records import MetricSample


def metric(value: float, step: int = 0, device: int = -1, name: str = "loss") -> MetricSample:
    return MetricSample(device, name, step, value, 1.5)


def write(path: Path, count: int, chunk: int = 10) -> None:
    """One series of `count` points, whose step and value are their number."""
    writer = MetricWriter(path)
    for first in range(1, count + 1, chunk):
        writer.append([metric(n, n) for n in range(first, min(first + chunk, count + 1))])
    writer.seal()


def test_each_series_has_its_own_numbers(tmp_path: Path) -> None:
    writer = MetricWriter(tmp_path / "m")
    writer.append([metric(0.5, 1), metric(7.0, 1, device=0, name="memory"), metric(0.25, 2)])
    writer.append([metric(8.0, 2, device=0, name="memory")])
    writer.close()
    loss, memory = read_series(tmp_path / "m")
    assert (loss.device, loss.name, loss.next, loss.last) == (-1, "loss", 2, 2)
    assert loss.points == [SeriesPoint(1, 1, 0.5, 1.5), SeriesPoint(2, 2, 0.25, 1.5)]
    assert [point.number for point in memory.points] == [1, 2]


def test_series_can_be_asked_for_by_device_and_name(tmp_path: Path) -> None:
    writer = MetricWriter(tmp_path / "m")
    writer.append([metric(1, device=d, name=name) for d in (0, 1) for name in ("a", "b")])
    writer.close()
    assert [(s.device, s.name) for s in read_series(tmp_path / "m", device=1)] == [(1, "a"), (1, "b")]
    assert [(s.device, s.name) for s in read_series(tmp_path / "m", name="b")] == [(0, "b"), (1, "b")]
    assert read_series(tmp_path / "m", device=9) == []
    assert read_series(tmp_path / "none") == []


def test_a_cursor_goes_on_after_the_point_it_names(tmp_path: Path) -> None:
    write(tmp_path / "m", 25)
    (series,) = read_series(tmp_path / "m", after=20)
    assert [point.number for point in series.points] == [21, 22, 23, 24, 25]
    (series,) = read_series(tmp_path / "m", after=25)
    assert (series.points, series.next, series.last) == ([], 25, 25)


def test_a_long_series_is_read_in_parts(tmp_path: Path) -> None:
    write(tmp_path / "m", MAX_POINTS + 5, chunk=1000)
    (series,) = read_series(tmp_path / "m")
    assert (len(series.points), series.next, series.last) == (MAX_POINTS, MAX_POINTS, MAX_POINTS + 5)
    (series,) = read_series(tmp_path / "m", after=series.next)
    assert len(series.points) == 5


def test_a_file_that_was_left_open_is_gone_on_with(tmp_path: Path) -> None:
    writer = MetricWriter(tmp_path / "m")
    writer.append([metric(1)])
    writer.close()
    again = MetricWriter(tmp_path / "m")
    again.append([metric(2)])
    again.seal()
    assert [point.number for point in read_series(tmp_path / "m")[0].points] == [1, 2]


def test_values_that_are_no_numbers_are_kept_and_left_out_of_the_mean(tmp_path: Path) -> None:
    writer = MetricWriter(tmp_path / "m")
    writer.append([metric(math.nan), metric(2.0), metric(math.inf), metric(4.0)])
    writer.close()
    (bucket,) = read_series(tmp_path / "m", points=1)[0].buckets
    assert (bucket.count, bucket.finite, bucket.minimum, bucket.maximum, bucket.mean) == (4, 2, 2.0, 4.0, 3.0)
    assert math.isnan(bucket.first.value)
    assert bucket.last.value == 4.0


def test_a_bucket_without_one_finite_value_has_no_mean(tmp_path: Path) -> None:
    writer = MetricWriter(tmp_path / "m")
    writer.append([metric(math.nan)])
    writer.close()
    (bucket,) = read_series(tmp_path / "m", points=1)[0].buckets
    assert (bucket.minimum, bucket.maximum, bucket.mean) == (None, None, None)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200), st.integers(1, 20), st.integers(0, 30))
def test_buckets_follow_the_formula_and_lose_nothing(values: list[float], limit: int, more_at_first: int) -> None:
    points = [SeriesPoint(n, n, value, 0.0) for n, value in enumerate(values, 1)]
    sampler = _DownSampler()
    for place, point in enumerate(points):
        sampler.add(point, max(limit, limit + more_at_first - place))
    width = 1
    while math.ceil(len(points) / width) > limit:
        width *= 2
    groups = [points[start : start + width] for start in range(0, len(points), width)]
    for bucket, group in zip(sampler.buckets(limit), groups, strict=True):
        inside = [point.value for point in group]
        assert (bucket.count, bucket.first, bucket.last) == (len(group), group[0], group[-1])
        assert (bucket.minimum, bucket.maximum) == (min(inside), max(inside))
        assert bucket.mean == pytest.approx(statistics.fmean(inside), abs=1e-6)


def test_down_sampling_starts_after_the_cursor(tmp_path: Path) -> None:
    write(tmp_path / "m", 100)
    (series,) = read_series(tmp_path / "m", after=60, points=10)
    assert [bucket.first.number for bucket in series.buckets] == list(range(61, 101, 4))
    assert (series.next, series.points) == (100, [])
    first: PointBucket = series.buckets[0]
    assert (first.minimum, first.maximum, first.mean) == (61.0, 64.0, 62.5)


def test_names_are_cut_and_series_are_bounded(tmp_path: Path) -> None:
    writer = MetricWriter(tmp_path / "m")
    writer.append([metric(1, name="n" * 1000)])
    writer.append([metric(1, name=f"s{n}") for n in range(MAX_SERIES)])
    writer.append([metric(2, name="one more")])
    assert writer.dropped == 2
    writer.append([metric(2, name="s0")])
    writer.close()
    assert len(read_series(tmp_path / "m")) == MAX_SERIES
    assert read_series(tmp_path / "m", name="n" * MAX_NAME_CHARACTERS)[0].last == 1
    assert read_series(tmp_path / "m", name="s0")[0].last == 2


@pytest.mark.parametrize("step", [-5, 2**64 - 1])
def test_any_step_a_program_claims_can_be_written(tmp_path: Path, step: int) -> None:
    writer = MetricWriter(tmp_path / "m")
    writer.append([metric(1, step=step)])
    writer.close()
    assert read_series(tmp_path / "m")[0].points[0].step == step


def test_a_frame_can_be_read_by_itself(tmp_path: Path) -> None:
    writer = MetricWriter(tmp_path / "m")
    frame, (segment,) = read_frame(writer.append([metric(1, 3), metric(2, 4)]))
    assert (frame.first, frame.last) == (1, 2)
    assert (segment.device, segment.name, segment.points()[1]) == (-1, "loss", SeriesPoint(2, 4, 2.0, 1.5))
    assert read_frame(writer.seal())[1] == []


@pytest.mark.parametrize("wrong", [{"after": -1}, {"points": 0}, {"points": MAX_POINTS + 1}])
def test_bounds_that_make_no_sense_are_refused_by_name(tmp_path: Path, wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        read_series(tmp_path / "m", **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("points", [None, 10_000])
def test_many_series_share_what_an_answer_has_and_say_where_they_go_on(tmp_path: Path, points: int | None) -> None:
    writer = MetricWriter(tmp_path / "m")
    for step in range(1, 13):
        writer.append([metric(step, step, name=f"s{number:04}") for number in range(6000)])
    writer.close()
    found = read_series(tmp_path / "m", points=points)
    assert len(found) == 6000
    assert sum(len(series.points) + len(series.buckets) for series in found) <= MAX_POINTS_TOGETHER
    for series in found:
        assert series.last == 12
        if points is None:
            assert (series.next, [point.number for point in series.points]) == (8, list(range(1, 9)))
        else:
            assert (series.next, sum(bucket.count for bucket in series.buckets)) == (12, 12)
    (alone,) = read_series(tmp_path / "m", device=-1, name="s0001", after=8)
    assert [point.number for point in alone.points] == [9, 10, 11, 12]
