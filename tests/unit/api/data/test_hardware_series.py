"""Samples of the hardware are shown as series of metrics."""

from pathlib import Path

import pytest

from api.data.attempt_files import SeriesQuery
from api.data.hardware_series import list_series, read_samples
from jobs.files import paths
from jobs.protocol.hardware import AttemptSamples, DeviceSamples
from shardyard.contract.errors import NotFound


def samples(count: int = 40) -> AttemptSamples:
    made = AttemptSamples(1000.0, 1000.0 + count, 2.0, [DeviceSamples(1), DeviceSamples(0)])
    for device in made.devices:
        for position in range(count):
            device.add_value("power_watts", position, 100.0 * device.device + position, 1.0)
            device.add_value("cpu_cores", position, 1.0, 1.0)
    return made


def test_series_come_by_device_and_name_with_every_sample_in_a_bucket() -> None:
    found = list_series(samples(), SeriesQuery())
    assert [(one.device, one.name) for one in found] == [
        (0, "cpu_cores"),
        (0, "power_watts"),
        (1, "cpu_cores"),
        (1, "power_watts"),
    ]
    assert [(one.next, one.last, len(one.buckets)) for one in found] == [(40, 40, 40)] * 4
    last = found[3].buckets[-1]
    assert (last.minimum, last.mean, last.maximum, last.last.number, last.last.step) == (139.0, 139.0, 139.0, 40, 39)
    assert str(last.last.at).startswith("1970-01-01T00:17:19")


def test_they_are_chosen_and_reduced() -> None:
    (only,) = list_series(samples(), SeriesQuery(1, "power_watts", points=7))
    assert [bucket.count for bucket in only.buckets] == [8] * 5
    assert (only.buckets[0].minimum, only.buckets[0].mean, only.buckets[0].maximum) == (100.0, 103.5, 107.0)
    (rest,) = list_series(samples(), SeriesQuery(1, "power_watts", 38))
    assert [bucket.last.number for bucket in rest.buckets] == [39, 40]


def test_an_attempt_without_samples_has_none(tmp_path: Path) -> None:
    assert read_samples(tmp_path) is None


def test_a_link_in_their_place_is_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    attempt = tmp_path / "1"
    attempt.mkdir()
    paths.hardware_file(attempt).symlink_to(secret)
    with pytest.raises(NotFound):
        read_samples(attempt)
