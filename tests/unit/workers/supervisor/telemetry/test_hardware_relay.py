"""What the node has sampled is passed on, and nothing that is wrong with it does harm."""

import zlib
from pathlib import Path

import pytest

from jobs.protocol.hardware import AttemptSamples, DeviceSamples, decode_samples, encode_samples
from workers.supervisor.telemetry.hardware_relay import (
    FORWARD_SECONDS,
    MAX_SAMPLE_BYTES,
    READ_SECONDS,
    SAMPLES_TTL,
    WRITTEN_TTL,
    HardwareRelay,
    SampleForwarder,
    unpack_samples,
)

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


def test_samples_of_other_nodes_come_beside_those_of_this_one(relay: HardwareRelay, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(encode_samples(SAMPLES))
    (tmp_path / "elsewhere").write_bytes(
        encode_samples(AttemptSamples(4.5, 6.5, 4.0, [DeviceSamples(1, 7, 2.0)], processes=3))
    )
    sent: list[bytes] = []
    forwarder = SampleForwarder(tmp_path / "elsewhere", sent.append)
    forwarder.forward_if_due(0.0)
    relay.add_part(1, sent[0])
    joined = relay.poll(10.0)
    assert joined is not None
    assert (joined.began, joined.at, joined.cores, joined.processes) == (4.5, 6.5, 6.0, 3)
    assert [(one.device, one.samples) for one in joined.devices] == [(0, 2), (1, 7)]
    assert relay.poll(20.0) is None
    relay.save()
    assert decode_samples((tmp_path / "kept").read_bytes()) == joined


def test_samples_are_forwarded_now_and_then_and_only_when_they_are_new(tmp_path: Path) -> None:
    sent: list[bytes] = []
    forwarder = SampleForwarder(tmp_path / "source", sent.append)
    forwarder.forward_if_due(0.0)
    assert sent == []
    (tmp_path / "source").write_bytes(encode_samples(SAMPLES))
    forwarder.forward_if_due(FORWARD_SECONDS / 2)
    forwarder.forward_if_due(FORWARD_SECONDS)
    forwarder.forward_if_due(3 * FORWARD_SECONDS)
    forwarder.forward_if_due(3.5 * FORWARD_SECONDS, at_once=True)
    assert [unpack_samples(data) for data in sent] == [encode_samples(SAMPLES)]


@pytest.mark.parametrize(
    "data", [b"", b"nonsense", zlib.compress(b"")[:-1], zlib.compress(bytes(MAX_SAMPLE_BYTES + 1))], ids=repr
)
def test_what_is_no_samples_or_too_much_is_refused_and_passed_over(relay: HardwareRelay, data: bytes) -> None:
    with pytest.raises(ValueError, match="samples"):
        unpack_samples(data)
    relay.add_part(1, data)
    assert relay.poll(10.0) is None
