"""Samples add up in bounded space."""

import msgspec
import pytest

from jobs.protocol.hardware import (
    MAX_BUCKETS,
    AttemptSamples,
    DeviceSamples,
    SampleSeries,
    decode_samples,
    encode_samples,
)


def series(*values: float) -> SampleSeries:
    made = SampleSeries()
    for position, value in enumerate(values):
        made.add(position, value, 1.0 if position else 0.0)
    return made


def test_a_series_knows_its_least_greatest_mean_and_integral() -> None:
    found = series(0, 100, 200, 300).summary()
    assert (found.minimum, found.mean, found.maximum, found.latest) == (0, 200, 300, 300)
    assert found.integral == pytest.approx(600 / 3600, rel=1e-4)


def test_one_sample_is_its_own_mean() -> None:
    assert series(7).summary().mean == 7


@pytest.mark.parametrize("count", [1, MAX_BUCKETS, MAX_BUCKETS + 1, 10_000])
def test_buckets_cover_every_sample_once(count: int) -> None:
    made = series(*map(float, range(count)))
    assert len(made.buckets) <= MAX_BUCKETS
    assert sum(bucket.count for bucket in made.buckets) == count
    assert sum(bucket.total for bucket in made.buckets) == sum(range(count))
    for bucket in made.buckets:
        assert (bucket.minimum, bucket.maximum, bucket.last - bucket.first + 1) == (
            bucket.first,
            bucket.last,
            bucket.count,
        )
    assert [bucket.count for bucket in made.buckets[:-1]] == [made.width] * (len(made.buckets) - 1)


def test_samples_come_back_as_they_were() -> None:
    device = DeviceSamples(0, 2, 1.0, {"power_watts": series(1, 2)}, {"power_cap": 1}, {"xid_79": 1})
    samples = AttemptSamples(5.0, 6.0, 2.0, [device])
    assert decode_samples(encode_samples(samples)) == samples
    with pytest.raises(ValueError, match=r"malformed|Expected|truncated"):
        decode_samples(b"nonsense")


def test_fields_of_a_later_version_are_passed_over() -> None:
    later = msgspec.msgpack.decode(encode_samples(AttemptSamples(5.0, 6.0, 2.0, []))) | {"fans": 3}
    assert decode_samples(msgspec.msgpack.encode(later)) == AttemptSamples(5.0, 6.0, 2.0, [])
