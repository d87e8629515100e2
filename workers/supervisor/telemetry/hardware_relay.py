"""Passes on what the node samples of an attempt's hardware: to the report, the telemetry Redis and the storage.

The node writes a file, which this reads once a second. Whatever fails here costs samples, and nothing else.
"""

import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import structlog

from jobs.protocol.hardware import (
    AttemptSamples,
    SampledDevice,
    SampledRank,
    decode_samples,
    encode_ranks,
    encode_samples,
    join_samples,
)
from jobs.support.fs import replace_file
from workers.rank.handle import RankHandle
from workers.runtime.launch import AttemptConfig, AttemptDirectory
from workers.runtime.process_status import read_start_time
from workers.supervisor.telemetry.shipper import StreamShipper

log = structlog.get_logger(__name__)

READ_SECONDS = 1.0
#: How often a follower sends its samples, and what they may be at most.
FORWARD_SECONDS = 10.0
MAX_SAMPLE_BYTES = 16 * 1024 * 1024
#: In the telemetry Redis, from the last sample on; and once they are in storage.
SAMPLES_TTL = 86_400
WRITTEN_TTL = 5


class HardwareRelay:
    """Passes the samples in `source` on: as `key` to the telemetry Redis, at last as `file`."""

    def __init__(self, source: Path, shipper: StreamShipper, key: str, file: Path) -> None:
        self._source = source
        self._shipper = shipper
        self._key = key
        self._file = file
        self._read_after = 0.0
        self._written_at = 0  # of the source, in nanoseconds
        self._own: AttemptSamples | None = None
        self._others: dict[int, AttemptSamples] = {}  # by part
        self._has_news = False
        self._newest = b""

    def add_part(self, part: int, data: bytes) -> None:
        """Take the newest samples of a part of the attempt on another node."""
        with suppress(ValueError):
            self._others[part] = decode_samples(unpack_samples(data))
            self._has_news = True

    def poll(self, now: float, *, at_once: bool = False) -> AttemptSamples | None:
        """New samples, if there are any; `now` is monotonic."""
        if now < self._read_after and not at_once:
            return None
        self._read_after = now + READ_SECONDS
        self._read_own()
        parts = [*([] if self._own is None else [self._own]), *self._others.values()]
        if not self._has_news or not parts:
            return None
        self._has_news = False
        samples = parts[0] if len(parts) == 1 else join_samples(parts)
        self._newest = encode_samples(samples)
        self._shipper.put_blob(self._key, self._newest, SAMPLES_TTL)
        return samples

    def _read_own(self) -> None:
        try:
            written_at = self._source.stat().st_mtime_ns
            if written_at == self._written_at:
                return
            self._own = decode_samples(self._source.read_bytes())
        except (OSError, ValueError):
            return
        self._written_at, self._has_news = written_at, True

    def save(self) -> None:
        """Write the newest samples to the storage."""
        if not self._newest:
            return
        try:
            replace_file(self._file, self._newest)
        except OSError as error:
            log.warning("samples_not_stored", error=str(error))
        else:
            self._shipper.put_blob(self._key, self._newest, WRITTEN_TTL)


def write_sampled_ranks(config: AttemptConfig, ranks: Sequence[RankHandle]) -> None:
    """Write for the node which process drives which devices."""
    directory = AttemptDirectory.of(config.state_dir, config.attempt)
    sampled = [SampledRank(one.number, one.pid, read_start_time(one.pid), _devices_of(config, one)) for one in ranks]
    with suppress(OSError):  # it runs without samples, then
        replace_file(directory.sampled_ranks, encode_ranks(sampled))


def _devices_of(config: AttemptConfig, rank: RankHandle) -> tuple[SampledDevice, ...]:
    return tuple(
        SampledDevice(logical, device.index, device.kind, device.id)
        for logical, device in config.devices_of(rank.number)
    )


class SampleForwarder:
    """Sends the samples that another node has of its part of an attempt to the leader, now and then: they are all that
    there are, each time."""

    def __init__(self, source: Path, send: Callable[[bytes], None]) -> None:
        self._source = source
        self._send = send
        self._due_at = 0.0
        self._written_at = 0

    def forward_if_due(self, now: float, *, at_once: bool = False) -> None:
        """`now` is monotonic."""
        if now < self._due_at and not at_once:
            return
        self._due_at = now + FORWARD_SECONDS
        with suppress(OSError):
            written_at = self._source.stat().st_mtime_ns
            if written_at != self._written_at:
                self._send(zlib.compress(self._source.read_bytes(), 1))
                self._written_at = written_at


def unpack_samples(data: bytes) -> bytes:
    """What was forwarded, of bounded size.

    Raises:
        ValueError: these are no such bytes.
    """
    inflater = zlib.decompressobj()
    try:
        unpacked = inflater.decompress(data, MAX_SAMPLE_BYTES)
    except zlib.error as error:
        raise ValueError(f"the samples cannot be read: {error}") from error
    if not inflater.eof:
        raise ValueError(f"the samples are more than {MAX_SAMPLE_BYTES:,} bytes, or cut off")
    return unpacked
