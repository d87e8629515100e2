"""What the node has sampled is passed on, and nothing that is wrong with it does harm."""

from pathlib import Path

import pytest

from jobs.protocol.hardware import AttemptSamples, DeviceSamples, encode_samples
from workers.supervisor.telemetry.hardware_relay import READ_SECONDS, SAMPLES_TTL, WRITTEN_TTL, HardwareRelay

SAMPLES = AttemptSamples(5.0, 6.0, 2.0, [DeviceSamples(0, 2, 1.0)])


class Shipper:
    def __init__(self) -> None:
        self.blobs: list[tuple[str, bytes, int]] = []

    def put_blob(self, key: str, blob: bytes, ttl: int) -> None:
        self.blobs.append((key, blob, ttl))


@pytest.fixture
def shipper() -> Shipper:
    return Shipper()


@pytest.fixture
def relay(tmp_path: Path, shipper: Shipper) -> HardwareRelay:
    return HardwareRelay(tmp_path / "source", shipper, "key", tmp_path / "kept")  # type: ignore[arg-type]


def test_samples_go_to_the_report_redis_and_storage(relay: HardwareRelay, shipper: Shipper, tmp_path: Path) -> None:
    body = encode_samples(SAMPLES)
    (tmp_path / "source").write_bytes(body)
    assert relay.poll(10.0) == SAMPLES
    relay.save()
    assert (tmp_path / "kept").read_bytes() == body
    assert shipper.blobs == [("key", body, SAMPLES_TTL), ("key", body, WRITTEN_TTL)]


def test_they_are_read_once_a_second_and_only_when_they_are_new(relay: HardwareRelay, tmp_path: Path) -> None:
    assert relay.poll(10.0) is None
    (tmp_path / "source").write_bytes(encode_samples(SAMPLES))
    assert relay.poll(10.0 + READ_SECONDS / 2) is None
    assert relay.poll(10.0 + READ_SECONDS / 2, at_once=True) == SAMPLES
    assert relay.poll(10.0 + 2 * READ_SECONDS) is None


@pytest.mark.parametrize("body", [b"", b"\x00nonsense", encode_samples(SAMPLES)[:-3]])
def test_bytes_that_are_no_samples_are_passed_over(relay: HardwareRelay, tmp_path: Path, body: bytes) -> None:
    (tmp_path / "source").write_bytes(body)
    assert relay.poll(10.0) is None
    relay.save()
    assert not (tmp_path / "kept").exists()


def test_a_storage_that_refuses_them_is_no_error(tmp_path: Path, shipper: Shipper) -> None:
    (tmp_path / "source").write_bytes(encode_samples(SAMPLES))
    relay = HardwareRelay(tmp_path / "source", shipper, "key", tmp_path / "gone" / "kept")  # type: ignore[arg-type]
    assert relay.poll(10.0) == SAMPLES
    relay.save()
