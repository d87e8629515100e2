"""Passes on what the node samples of an attempt's hardware: to the report, the telemetry Redis and the storage.

The node writes a file, which this reads once a second. Whatever fails here costs samples, and nothing else.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import structlog

from jobs.protocol.hardware import AttemptSamples, SampledDevice, SampledRank, decode_samples, encode_ranks
from jobs.support.fs import replace_file
from workers.rank.handle import RankHandle
from workers.runtime.launch import AttemptConfig, AttemptDirectory
from workers.supervisor.process_status import read_start_time
from workers.supervisor.telemetry.shipper import StreamShipper

log = structlog.get_logger(__name__)

READ_SECONDS = 1.0
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
        self._newest = b""

    def poll(self, now: float, *, at_once: bool = False) -> AttemptSamples | None:
        """New samples, if there are any; `now` is monotonic."""
        if now < self._read_after and not at_once:
            return None
        self._read_after = now + READ_SECONDS
        try:
            written_at = self._source.stat().st_mtime_ns
            if written_at == self._written_at:
                return None
            data = self._source.read_bytes()
            samples = decode_samples(data)
        except (OSError, ValueError):
            return None
        self._written_at, self._newest = written_at, data
        self._shipper.put_blob(self._key, data, SAMPLES_TTL)
        return samples

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
