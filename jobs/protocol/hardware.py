"""Samples of an attempt's hardware: what the node writes, and the supervisor and the API read.

The node takes one sample a second and keeps sums, and at most `MAX_BUCKETS` buckets for each series, so the size
does not grow with the length of a run. The same bytes are in the attempt's directory on the node (from which a worker
that was restarted continues), in the telemetry Redis while the attempt runs, and in the storage directory afterwards.

The bytes are msgpack. Layouts only grow at the end: new fields have defaults.
"""

import math
from collections.abc import Sequence

import msgspec

from shardyard.contract.hardware import DeviceHardware, SampledSeries

#: Buckets of one series. When all are full, neighbours are merged and the next ones are twice as wide.
MAX_BUCKETS = 96
SECONDS_PER_HOUR = 3600.0


class SampledDevice(msgspec.Struct, frozen=True):
    """A device of an attempt: `device` is its number in the lease, `index` that on its node."""

    device: int
    index: int
    kind: str  # cuda | cpu
    id: str  # the GPU's UUID


class SampledRank(msgspec.Struct, frozen=True):
    """A rank's process, and the devices that it drives. The supervisor writes a list of them for its node."""

    rank: int
    pid: int
    started: int  # in clock ticks since boot
    devices: tuple[SampledDevice, ...]


class SampleBucket(msgspec.Struct, array_like=True, gc=False):
    """Adjacent samples. `first` and `last` are positions: seconds since the attempt's first sample."""

    first: int
    last: int
    count: int
    minimum: float
    total: float
    maximum: float

    @property
    def mean(self) -> float:
        return self.total / self.count


class SampleSeries(msgspec.Struct):
    """The samples of one series, of bounded size."""

    count: int = 0
    seconds: float = 0.0  # that the samples cover
    integral: float = 0.0  # value times seconds
    minimum: float = math.inf
    maximum: float = -math.inf
    latest: float = 0.0
    width: int = 1  # samples of a full bucket
    buckets: list[SampleBucket] = []

    def add(self, position: int, value: float, seconds: float = 0.0) -> None:
        """Add a sample, which stands for so many seconds."""
        self.count += 1
        self.seconds += seconds
        self.integral += value * seconds
        self.minimum = min(self.minimum, value)
        self.maximum = max(self.maximum, value)
        self.latest = value
        last = self.buckets[-1] if self.buckets else None
        if last is not None and last.count < self.width:
            last.last, last.count, last.total = position, last.count + 1, last.total + value
            last.minimum, last.maximum = min(last.minimum, value), max(last.maximum, value)
            return
        if len(self.buckets) == MAX_BUCKETS:
            self.buckets = merge_pairs(self.buckets)
            self.width *= 2
        self.buckets.append(SampleBucket(position, position, 1, value, value, value))

    def summary(self) -> SampledSeries:
        mean = self.integral / self.seconds if self.seconds else sum(one.total for one in self.buckets) / self.count
        hours = self.integral / SECONDS_PER_HOUR
        return SampledSeries(*(_rounded(one) for one in (self.minimum, mean, self.maximum, self.latest, hours)))


class DeviceSamples(msgspec.Struct):
    device: int
    samples: int = 0
    seconds: float = 0.0
    series: dict[str, SampleSeries] = {}
    throttled: dict[str, int] = {}  # reason -> samples
    errors: dict[str, int] = {}
    ecc_before: dict[str, int] = {}  # the card's counters at the first sample

    def add_value(self, name: str, position: int, value: float, seconds: float) -> None:
        self.series.setdefault(name, SampleSeries()).add(position, value, seconds)

    def summary(self) -> DeviceHardware:
        return DeviceHardware(
            device=self.device,
            samples=self.samples,
            seconds=round(self.seconds, 3),
            series={name: one.summary() for name, one in self.series.items() if one.count},
            throttled={reason: round(count / self.samples, 4) for reason, count in self.throttled.items()},
            errors={name: count for name, count in self.errors.items() if count},
        )


class StrayContext(msgspec.Struct):
    """The processes of a rank were seen on another rank's device, in so many samples."""

    rank: int
    device: int
    samples: int
    memory_bytes: int


class AttemptSamples(msgspec.Struct):
    """All samples of an attempt. `cores` is how many the node's processes may use; `processes` the most that the ranks
    had, with their descendants."""

    began: float  # the first sample, in seconds since the epoch
    at: float  # the newest one
    cores: float
    devices: list[DeviceSamples]
    processes: int = 0
    strays: list[StrayContext] = []

    def device_samples(self, device: int) -> DeviceSamples:
        found = next((one for one in self.devices if one.device == device), None)
        if found is None:
            found = DeviceSamples(device)
            self.devices.append(found)
        return found


def join_samples(parts: Sequence[AttemptSamples]) -> AttemptSamples:
    """The samples of an attempt whose nodes have sampled a part each: at least one. Positions in a series stay those of
    its own node, whose first sample came about when the others' did."""
    return AttemptSamples(
        began=min(one.began for one in parts),
        at=max(one.at for one in parts),
        cores=sum(one.cores for one in parts),
        devices=[device for one in parts for device in one.devices],
        processes=sum(one.processes for one in parts),
        strays=[stray for one in parts for stray in one.strays],
    )


class NodeReading(msgspec.Struct, frozen=True):
    """The newest sample of one device of a node: what `/metrics` shows of it."""

    device: int  # its number on the node
    values: dict[str, float]
    errors: dict[str, int] = {}


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AttemptSamples)
_ranks_decoder = msgspec.json.Decoder(list[SampledRank])
_readings_decoder = msgspec.msgpack.Decoder(list[NodeReading])


def encode_samples(samples: AttemptSamples) -> bytes:
    return _encoder.encode(samples)


def decode_samples(data: bytes) -> AttemptSamples:
    """Raises:
    ValueError: these are no such bytes.
    """
    return _decoder.decode(data)


def encode_ranks(ranks: Sequence[SampledRank]) -> bytes:
    return msgspec.json.encode(ranks)


def decode_ranks(data: bytes) -> list[SampledRank]:
    """Raises:
    ValueError: these are no such bytes.
    """
    return _ranks_decoder.decode(data)


def encode_readings(readings: Sequence[NodeReading]) -> bytes:
    return _encoder.encode(readings)


def decode_readings(data: bytes) -> list[NodeReading]:
    """Raises:
    ValueError: these are no such bytes.
    """
    return _readings_decoder.decode(data)


def merge_pairs(buckets: Sequence[SampleBucket]) -> list[SampleBucket]:
    """Neighbours as one bucket each; an odd one at the end stays alone."""
    merged = [_merge(left, right) for left, right in zip(buckets[::2], buckets[1::2], strict=False)]
    return merged + list(buckets[len(merged) * 2 :])


def _merge(left: SampleBucket, right: SampleBucket) -> SampleBucket:
    return SampleBucket(
        left.first,
        right.last,
        left.count + right.count,
        min(left.minimum, right.minimum),
        left.total + right.total,
        max(left.maximum, right.maximum),
    )


def _rounded(value: float) -> float:
    return float(f"{value:.6g}") if abs(value) < 1e6 else float(round(value))
