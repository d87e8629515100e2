"""Packets of records: how they are cut out of a stream of bytes, and their steps put together."""

import struct

import pytest

from jobs.protocol.records import (
    AnyRecord,
    MetricSample,
    Note,
    Outcome,
    PacketDecoder,
    Step,
    StepBatch,
    batch_steps,
    encode_packet,
)

STEPS = [Step(number, 0, "train", (0,), 0.0, 1.0) for number in range(3)]
LOSS = MetricSample(-1, "loss", 0, 0.5, 0.0)
NOTE = Note("field", "reason")


@pytest.mark.parametrize("size", [1, 7, 1 << 16])
def test_packets_are_decoded_whatever_pieces_they_come_in(size: int) -> None:
    packets = [(STEPS[0], LOSS), (NOTE,), (STEPS[1], STEPS[2])]
    stream = b"".join(map(encode_packet, packets))
    decoder = PacketDecoder()

    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]

    assert [packet for piece in pieces for packet in decoder.feed(piece)] == packets


@pytest.mark.parametrize("data", [struct.pack(">I", 101) + b"x", struct.pack(">I", 3) + b"\x93\x01\x02"])
def test_bytes_that_are_no_packet_raise(data: bytes) -> None:
    with pytest.raises(ValueError, match="a packet"):
        list(PacketDecoder(limit=100).feed(data))


def test_steps_and_metrics_between_other_records_are_one_batch() -> None:
    packet: list[AnyRecord] = [NOTE, STEPS[0], LOSS, STEPS[1], NOTE, STEPS[2], Outcome(0, 0)]

    assert list(batch_steps(packet)) == [
        NOTE,
        StepBatch([STEPS[0], STEPS[1]], [LOSS]),
        NOTE,
        StepBatch([STEPS[2]]),
        Outcome(0, 0),
    ]


def test_an_empty_packet_has_no_batch() -> None:
    assert list(batch_steps([])) == []
    assert list(batch_steps([LOSS])) == [StepBatch([], [LOSS])]
