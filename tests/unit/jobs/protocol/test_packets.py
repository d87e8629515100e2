"""Packets of records: how they are cut out of a stream of bytes, and their steps put together."""

import struct
from typing import Any

import msgspec
import pytest

from jobs.protocol.packets import (
    MAX_PACKET_RECORDS,
    AnyRecord,
    PacketDecoder,
    StepBatch,
    batch_steps,
    encode_packet,
    encode_packets,
)
from jobs.protocol.records import (
    MAX_COUNT,
    MAX_DIMENSIONS,
    MAX_ENTRIES,
    MAX_LONG_LIST,
    MAX_PART_BYTES,
    MetricSample,
    Note,
    Outcome,
    Step,
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


@pytest.mark.parametrize(
    "record",
    [
        ["Step", -1, 0, "train", [], 0.0, 1.0],
        ["Step", MAX_COUNT + 1, 0, "train", [], 0.0, 1.0],
        ["Step", 0, 0, "train", [], 0.0, 1.0, None, [0.0] * (MAX_ENTRIES + 1)],
        ["Step", 0, 0, "train", [0] * (MAX_LONG_LIST + 1), 0.0, 1.0],
        ["Split", 0, "train", "", 1, [0], [1], [[1] * (MAX_DIMENSIONS + 1)], [None]],
        ["Split", 0, "train", "", 1, [0] * (MAX_ENTRIES + 1), [1], [None], [None]],
        ["Result", 0.0, {str(number): 0.0 for number in range(MAX_ENTRIES + 1)}],
        ["ProfilePart", 1, b"." * (MAX_PART_BYTES + 1)],
        ["Note", "field", 7],
    ],
)
def test_a_record_that_holds_more_than_any_of_ours_does_not_decode(record: list[Any]) -> None:
    body = msgspec.msgpack.encode([record])
    with pytest.raises(ValueError, match="a packet does not decode"):
        list(PacketDecoder().feed(struct.pack(">I", len(body)) + body))


@pytest.mark.parametrize("count", [MAX_PACKET_RECORDS + 1, 70_000])
def test_a_packet_of_very_many_records_is_refused_before_it_is_decoded(count: int) -> None:
    packet = encode_packet([NOTE] * count)
    with pytest.raises(ValueError, match=f"a packet of {count} records is over the limit"):
        list(PacketDecoder(len(packet)).feed(packet))


def test_a_sender_keeps_to_what_its_reader_takes() -> None:
    sent = [Note("field", "x" * length) for length in (300, 20, 2000, 100, 500, 1, 999)]
    packets = list(encode_packets(sent, 1000))

    decoder = PacketDecoder(limit=1000)
    received = [record for packet in packets for one in decoder.feed(packet) for record in one]

    assert received == [note for note in sent if len(note.reason) < 980]  # one alone is larger than a packet
    assert len(packets) < len(received)


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
