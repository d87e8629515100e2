"""The codec of records: msgpack arrays (`msgspec`), each packet preceded by its length as four bytes, big endian."""

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from jobs.protocol.probe_records import (
    Activity,
    GradientSync,
    Group,
    Joining,
    Loaded,
    LoaderOpened,
    LossForm,
    LossWeights,
    Noise,
    NormLayers,
    ParameterSearch,
    Wrapped,
)
from jobs.protocol.records import (
    BatchSplit,
    Began,
    CallsMade,
    DeviceInfo,
    GradientProof,
    Hello,
    MetricSample,
    Note,
    Outcome,
    Outline,
    Paused,
    ProfileBegin,
    ProfileEnd,
    ProfilePart,
    ProgramBegan,
    ProgramProgress,
    RankUp,
    Result,
    Returned,
    RowWeights,
    Saved,
    Step,
)

#: Largest packets that a rank and a process that descends from one may send. A larger one is a corrupted pipe.
RANK_PACKET_BYTES = 1024 * 1024
DESCENDANT_PACKET_BYTES = 256 * 1024
#: Records in one packet: a small body may hold very many.
MAX_PACKET_RECORDS = 4_096
_LENGTH = struct.Struct(">I")

#: Every record but the two that come in masses.
SingleRecord = (
    RankUp
    | ProgramBegan
    | DeviceInfo
    | Outline
    | BatchSplit
    | Note
    | Result
    | Outcome
    | Began
    | Joining
    | Group
    | Wrapped
    | LoaderOpened
    | Loaded
    | Activity
    | Noise
    | LossWeights
    | GradientSync
    | LossForm
    | NormLayers
    | ParameterSearch
    | ProgramProgress
    | CallsMade
    | Hello
    | Returned
    | Paused
    | Saved
    | ProfileBegin
    | ProfilePart
    | ProfileEnd
    | RowWeights
    | GradientProof
)
AnyRecord = Step | MetricSample | SingleRecord

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[AnyRecord, ...])


@dataclass(frozen=True, slots=True)
class StepBatch:
    """Steps and metrics that one process sent without another record in between, each kind in its order."""

    steps: list[Step] = field(default_factory=list)
    metrics: list[MetricSample] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.steps or self.metrics)


def batch_steps(packet: Sequence[AnyRecord]) -> Iterator[StepBatch | SingleRecord]:
    """The records of one packet in their order, with neighbouring steps and metrics in one batch."""
    batch = StepBatch()
    for record in packet:
        if isinstance(record, Step):
            batch.steps.append(record)
        elif isinstance(record, MetricSample):
            batch.metrics.append(record)
        else:
            if batch:
                yield batch
                batch = StepBatch()
            yield record
    if batch:
        yield batch


def encode_packet(records: Sequence[AnyRecord]) -> bytes:
    """Encode records as one packet, length first."""
    body = _encoder.encode(records)
    return _LENGTH.pack(len(body)) + body


def encode_packets(records: Sequence[AnyRecord], limit: int) -> Iterator[bytes]:
    """Encode records as packets of at most `limit` bytes. A record that is larger by itself is left out, since no
    reader would take it."""
    packet = encode_packet(records)
    if len(packet) <= limit + _LENGTH.size:
        yield packet
    elif len(records) > 1:
        middle = len(records) // 2
        yield from encode_packets(records[:middle], limit)
        yield from encode_packets(records[middle:], limit)


class PacketDecoder:
    """Decodes the packets of a pipe, whose bytes may come in pieces of any size. It holds one packet at most."""

    def __init__(self, limit: int = RANK_PACKET_BYTES) -> None:
        self._limit = limit  # of one packet
        self._pending = bytearray()
        #: Takes a packet and the bytes that it was decoded from; what it returns is yielded in its place.
        self.clean: Callable[[bytes, tuple[AnyRecord, ...]], tuple[AnyRecord, ...]] | None = None

    def feed(self, data: bytes) -> Iterator[tuple[AnyRecord, ...]]:
        """Yield the packets that `data` completes.

        Raises:
            ValueError: the stream does not consist of packets (an impossible length, or bytes that do not decode).
        """
        self._pending += data
        while len(self._pending) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._pending)
            if length > self._limit:
                raise ValueError(f"a packet of {length} bytes is over the limit of {self._limit}")
            end = _LENGTH.size + length
            if len(self._pending) < end:
                return
            body = bytes(memoryview(self._pending)[_LENGTH.size : end])
            del self._pending[:end]
            packet = _decode_packet(body)
            yield packet if self.clean is None else self.clean(body, packet)


def _decode_packet(body: bytes) -> tuple[AnyRecord, ...]:
    """Raises ValueError where this is no packet."""
    if (count := _count_records(body)) > MAX_PACKET_RECORDS:
        raise ValueError(f"a packet of {count} records is over the limit of {MAX_PACKET_RECORDS}")
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise ValueError(f"a packet does not decode: {error}") from error


def _count_records(body: bytes) -> int:
    """The length of the array that a body is, by its first bytes; 0 where it is none, which does not decode."""
    match body[:1]:
        case b"\xdc":
            return int.from_bytes(body[1:3])
        case b"\xdd":
            return int.from_bytes(body[1:5])
    return 0
