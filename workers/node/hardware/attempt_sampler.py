"""Adds up the samples of one attempt, in a file from which its supervisor, and the next worker, read them."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic

import msgspec
import structlog

from jobs.protocol.hardware import (
    AttemptSamples,
    DeviceSamples,
    NodeReading,
    SampledRank,
    StrayContext,
    decode_ranks,
    decode_samples,
    encode_samples,
)
from jobs.support.fs import replace_file
from workers.node.hardware.gpu_reader import GpuReader, GpuSample
from workers.node.hardware.process_tree import ProcessTree, count_cores
from workers.runtime.launch import AttemptDirectory

log = structlog.get_logger(__name__)

#: A sample stands for the time since the one before, but not for longer than this.
MAX_GAP_SECONDS = 5.0
#: The file is written as often as a bucket is full, and at least this often.
WRITE_SECONDS = 5.0
#: Kinds of errors, and stray contexts, that are kept.
MAX_ERROR_KINDS = 32
MAX_STRAYS = 256


class AttemptSampler:
    def __init__(self, ranks: Sequence[SampledRank], file: Path, samples: AttemptSamples) -> None:
        self._ranks = ranks
        self._file = file
        self._samples = samples
        self._trees = {one.rank: ProcessTree(one.pid, one.started) for one in ranks}
        self._sampled_at = 0.0  # by the monotonic clock; 0: not by this process
        self._write_after = 0.0
        self._rank_of_device = {device.device: one.rank for one in ranks for device in one.devices}

    @property
    def gpus(self) -> set[str]:
        return {device.id for one in self._ranks for device in one.devices if device.kind == "cuda"}

    def sample(
        self,
        gpus: GpuReader,
        now: float,
        children: Mapping[int, Sequence[int]] | None,
        xids: Mapping[str, Sequence[int]],
    ) -> list[NodeReading]:
        """Take one sample; `now` is in seconds since the epoch. With `children` (of all processes of the host),
        descendants are looked for, and what is not read every second. Returns what is new of each device."""
        clock = monotonic()
        seconds = min(MAX_GAP_SECONDS, clock - self._sampled_at) if self._sampled_at else 0.0
        self._sampled_at = clock
        self._samples.at = now
        if children is not None:
            for tree in self._trees.values():
                tree.find_descendants(children)
            processes = sum(len(tree.pids) for tree in self._trees.values())
            self._samples.processes = max(self._samples.processes, processes)
        position = round(now - self._samples.began)
        readings = []
        for rank in self._ranks:
            readings += self._sample_rank(rank, gpus, position, seconds, children is not None, xids)
        return readings

    def write_if_due(self) -> None:
        """Raises OSError."""
        now = monotonic()
        if now < self._write_after or not self._samples.devices:
            return
        widths = [one.width for device in self._samples.devices for one in device.series.values()]
        self._write_after = now + min(WRITE_SECONDS, max(widths, default=1)) - 0.5
        replace_file(self._file, encode_samples(self._samples))

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self._file.unlink()

    def _sample_rank(
        self,
        rank: SampledRank,
        gpus: GpuReader,
        position: int,
        seconds: float,
        thorough: bool,
        xids: Mapping[str, Sequence[int]],
    ) -> list[NodeReading]:
        tree = self._trees[rank.rank]
        used = tree.sample()
        if used is None:  # it has ended, and its devices are no longer its own
            return []
        values: dict[str, float] = {
            "resident_bytes": float(used.resident_bytes),
            "anonymous_bytes": float(used.anonymous_bytes),
        }
        if seconds:
            values["cpu_cores"] = used.cpu_seconds / seconds
        if thorough:
            values["runnable_threads"] = float(tree.count_runnable_threads())
        readings = []
        for device in rank.devices:
            found = self._samples.device_samples(device.device)
            sample = gpus.read(device.id, with_processes=thorough) if device.kind == "cuda" else None
            if sample is not None:
                values |= sample.values
                self._add_gpu_facts(found, sample)
            _add_xids(found, xids.get(device.id, ()))
            found.samples += 1
            found.seconds += seconds
            for name, value in values.items():
                found.add_value(name, position, value, seconds)
            readings.append(NodeReading(device.index, values, dict(found.errors)))
            values = {}  # the rank's other devices share its processes
        return readings

    def _add_gpu_facts(self, found: DeviceSamples, sample: GpuSample) -> None:
        for reason in sample.throttled:
            found.throttled[reason] = found.throttled.get(reason, 0) + 1
        for name, count in sample.ecc.items():
            before = found.ecc_before.setdefault(name, count)
            found.errors[name] = max(0, count - before)
        owner = self._rank_of_device[found.device]
        for rank, tree in self._trees.items():
            memory = [sample.processes[pid] for pid in tree.pids if pid in sample.processes] if rank != owner else []
            if memory:
                self._add_stray(rank, found.device, sum(memory))

    def _add_stray(self, rank: int, device: int, memory_bytes: int) -> None:
        strays = self._samples.strays
        found = next((one for one in strays if (one.rank, one.device) == (rank, device)), None)
        if found is not None:
            found.samples += 1
            found.memory_bytes = max(found.memory_bytes, memory_bytes)
        elif len(strays) < MAX_STRAYS:
            strays.append(StrayContext(rank, device, 1, memory_bytes))


def open_sampler(directory: AttemptDirectory, now: float) -> AttemptSampler | None:
    """The sampler of an attempt, which continues what an earlier worker began; None while its ranks are not known."""
    try:
        ranks = decode_ranks(directory.sampled_ranks.read_bytes())
    except (OSError, msgspec.MsgspecError):
        return None
    file = directory.hardware
    try:
        samples = decode_samples(file.read_bytes())
    except (OSError, msgspec.MsgspecError):
        samples = AttemptSamples(now, now, count_cores(), [])
    return AttemptSampler(ranks, file, samples)


def _add_xids(found: DeviceSamples, xids: Sequence[int]) -> None:
    for xid in xids:
        name = f"xid_{xid}"
        if name in found.errors or len(found.errors) < MAX_ERROR_KINDS:
            found.errors[name] = found.errors.get(name, 0) + 1
