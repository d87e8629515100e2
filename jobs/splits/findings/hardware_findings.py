"""Findings about hardware: memory that grows without end, too few processor cores, memory that is unevenly used.

They rest on the node's samples (`jobs.protocol.hardware`), and on the peaks that ranks measure themselves. Nothing is
found where another reason is possible: memory must have grown in every part of the run, after it has warmed up.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from jobs.protocol.hardware import AttemptSamples, SampleBucket
from shardyard.contract.report import DeviceMeasures, Finding, ReportDevice

CODES = frozenset({"memory-creep", "cpu-oversubscribed", "output-device-full", "stray-context-on-first-device"})

#: Series in which memory may creep, with their names in sentences.
GROWING_SERIES = {"memory_used_bytes": "device memory", "anonymous_bytes": "resident memory"}

MIB = 2**20
#: The share of a trace, by steps, that is left out: allocators and caches warm up.
WARM_UP_SHARE = 0.2
#: Parts into which the rest is divided, and samples of each. The least memory of each part counts.
CREEP_PARTS, MIN_PART_SAMPLES = 8, 3
MIN_CREEP_STEPS = 50
#: Each rise from one part to the next is at least this share of the mean rise, and the second half rises by at least
#: so much of the first.
EVEN_RISE, STEADY_HALF = 0.25, 0.6
#: What the rise over all parts is at least: bytes, and the share of the memory at their beginning.
MIN_RISE_BYTES, MIN_RISE_SHARE = 32 * MIB, 0.02
CREEP_WARNING_SHARE = 0.10

#: Threads that want to run, over the cores; how busy those are, and the share of the time that devices wait for data.
OVERSUBSCRIBED_FROM, BUSY_FROM, DATA_WAIT_FROM = 1.5, 0.8, 0.10
MIN_THREAD_SAMPLES = 4
MIN_STEPS = 20

#: The output device's peak memory over the others', and the share of the card from which it matters.
SKEW_FROM, FULL_FROM = 1.25, 0.60
#: Of the card, what a larger batch may fill.
USABLE_SHARE = 0.95

#: Looks at a device in which another rank's process was seen on it.
MIN_STRAY_SAMPLES = 3
MAX_NAMED = 4


@dataclass(frozen=True, slots=True)
class MemoryTrace:
    """Memory by step: positions of the buckets are steps. `read_through`: a whole pass over the data came before."""

    buckets: Sequence[SampleBucket]
    read_through: bool


@dataclass(frozen=True, slots=True)
class HardwareRun:
    """What the findings need to know of a run beside its samples."""

    measures: Sequence[DeviceMeasures]
    devices: Sequence[ReportDevice]
    traces: Mapping[tuple[int, str], MemoryTrace]  # by device and series
    virtual: bool
    is_script: bool
    output_device: int | None  # where DataParallel gathers outputs on GPUs
    batch_rows: int  # of the largest batch; 0: not known


def find_hardware_problems(samples: AttemptSamples | None, run: HardwareRun) -> list[Finding]:
    found = [*_output_device_full(run)]
    if samples is not None:
        found += [*_memory_creep(run), *_cpu_oversubscribed(samples, run), *_stray_contexts(samples, run)]
    return found


# -- memory that grows -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Creep:
    device: int
    series: str
    first_bytes: float
    last_bytes: float
    per_thousand_steps: float

    @property
    def rise(self) -> float:
        return self.last_bytes - self.first_bytes


def _memory_creep(run: HardwareRun) -> Iterator[Finding]:
    """For each kind of memory the device in which it grows fastest; the others are named."""
    for series in GROWING_SERIES:
        traces = [(device, trace) for (device, name), trace in sorted(run.traces.items()) if name == series]
        found = [creep for device, trace in traces if (creep := _find_creep(device, series, trace, run)) is not None]
        if found:
            yield _describe_creep(max(found, key=lambda one: one.per_thousand_steps), len(found), run)


def _find_creep(device: int, series: str, trace: MemoryTrace, run: HardwareRun) -> _Creep | None:
    if series == "anonymous_bytes" and run.is_script and not trace.read_through and _reads_data(device, run):
        return None  # rows that are read for the first time may be kept on purpose
    parts = _divide_trace(trace.buckets)
    if parts is None:
        return None
    least = [min(bucket.minimum for bucket in part) for part in parts]
    middles = [(part[0].first + part[-1].last) / 2 for part in parts]
    rises = [later - earlier for earlier, later in pairwise(least)]
    rise = least[-1] - least[0]
    half = len(least) // 2
    if rise < max(MIN_RISE_BYTES, MIN_RISE_SHARE * least[0]) or min(rises) < EVEN_RISE * rise / len(rises):
        return None
    if least[-1] - least[half] < STEADY_HALF * (least[half] - least[0]):
        return None
    return _Creep(device, series, least[0], parts[-1][-1].minimum, 1000 * rise / (middles[-1] - middles[0]))


def _reads_data(device: int, run: HardwareRun) -> bool:
    return any(one.device == device and one.data_wait_ms is not None for one in run.measures)


def _divide_trace(buckets: Sequence[SampleBucket]) -> list[list[SampleBucket]] | None:
    """Parts of equal numbers of steps, without the warm-up; None: there are not enough samples of each."""
    if not buckets or buckets[-1].last - buckets[0].first < MIN_CREEP_STEPS:
        return None
    whole = buckets[-1].last - buckets[0].first
    begin = buckets[0].first + WARM_UP_SHARE * whole
    width = (buckets[-1].last - begin) / CREEP_PARTS
    parts: list[list[SampleBucket]] = [[] for _ in range(CREEP_PARTS)]
    for bucket in buckets:
        middle = (bucket.first + bucket.last) / 2
        if middle >= begin:
            parts[min(CREEP_PARTS - 1, int((middle - begin) / width))].append(bucket)
    if any(sum(bucket.count for bucket in part) < MIN_PART_SAMPLES for part in parts):
        return None
    return parts


def _describe_creep(one: _Creep, devices: int, run: HardwareRun) -> Finding:
    device = next(found for found in run.devices if found.device == one.device)
    others = f", and so does that of {devices - 1} more" if devices > 1 else ""
    where = f"on {_name_device(device, run)}" if one.series == "memory_used_bytes" else f"of rank {device.rank}"
    ending, numbers = "", dict[str, float]()
    if one.series == "memory_used_bytes" and device.memory_total_bytes:
        left = (device.memory_total_bytes - one.last_bytes) / one.per_thousand_steps * 1000
        numbers["steps_left"] = float(round(max(0.0, left)))
        ending = f"; the card is full after {numbers['steps_left']:,.0f} more"
    return Finding(
        "memory-creep",
        "warning" if one.rise >= CREEP_WARNING_SHARE * one.first_bytes else "info",
        f"{GROWING_SERIES[one.series]} {where} grows by {_mib(one.per_thousand_steps)} per 1,000 steps, all the time "
        f"(from {_mib(one.first_bytes)} to {_mib(one.last_bytes)}){others}{ending}",
        "look for what is kept from step to step: tensors that hold their graph (add up loss.item(), not loss), "
        "outputs in a list, caches without a bound",
        numbers={
            "device": one.device,
            "bytes_per_1000_steps": float(round(one.per_thousand_steps)),
            "from_bytes": float(round(one.first_bytes)),
            "to_bytes": float(round(one.last_bytes)),
        }
        | numbers,
    )


def _name_device(device: ReportDevice, run: HardwareRun) -> str:
    ranks = {one.rank for one in run.devices}
    return f"device {device.device}" + (f" (rank {device.rank})" if len(ranks) > 1 else "")


def _mib(size: float) -> str:
    return f"{size / MIB:,.0f} MiB" if size < 10_240 * MIB else f"{size / MIB / 1024:,.1f} GiB"


# -- processor cores -------------------------------------------------------------------------------


def _cpu_oversubscribed(samples: AttemptSamples, run: HardwareRun) -> Iterator[Finding]:
    """Threads that want to run are counted, not those that exist: most threads of a process sleep."""
    threads = [one.series["runnable_threads"] for one in samples.devices if "runnable_threads" in one.series]
    busy = [one.series["cpu_cores"] for one in samples.devices if "cpu_cores" in one.series]
    share = _data_wait_share(run)
    if not busy or share is None or min((one.count for one in threads), default=0) < MIN_THREAD_SAMPLES:
        return
    ranks = len({device.rank for device in run.devices})
    wanted = sum(one.summary().mean for one in threads)
    used = sum(one.summary().mean for one in busy)
    workers = samples.processes - ranks
    # Ranks on virtual devices share the cores on purpose: they are no reason.
    enough = max(samples.cores, float(ranks)) if run.virtual else samples.cores
    if workers < 1 or wanted <= OVERSUBSCRIBED_FROM * enough or used < BUSY_FROM * samples.cores:
        return
    if share < DATA_WAIT_FROM or max(one.steps for one in run.measures) < MIN_STEPS:
        return
    where = "num_workers in the DataLoader" if run.is_script else "program.data.num_workers"
    cores = "1 core" if samples.cores == 1 else f"{samples.cores:.3g} cores"
    yield Finding(
        "cpu-oversubscribed",
        "warning",
        f"{wanted:.0f} threads of {ranks} {'rank' if ranks == 1 else 'ranks'} and of the {workers} processes that "
        f"{'it has' if ranks == 1 else 'they have'} started compete for {cores}, and devices wait "
        f"{share:.0%} of the time for data",
        f"lower {where}, so that ranks and loader processes together have a core each, or make a batch cheaper",
        numbers={
            "runnable_threads": round(wanted, 2),
            "cores": samples.cores,
            "cores_used": round(used, 2),
            "started_processes": workers,
            "data_wait_share": round(share, 4),
        },
    )


def _data_wait_share(run: HardwareRun) -> float | None:
    """Of the devices' time; the median device's."""
    shares = [
        one.data_wait_ms.total / one.wall_ms for one in run.measures if one.data_wait_ms is not None and one.wall_ms
    ]
    return median(shares) if shares else None


# -- the devices' memory ---------------------------------------------------------------------------


def _output_device_full(run: HardwareRun) -> Iterator[Finding]:
    output = run.output_device
    peaks = {one.device: one.memory_peak_bytes for one in run.measures if one.memory_peak_bytes}
    others = [peak for device, peak in peaks.items() if device != output]
    total = next((one.memory_total_bytes for one in run.devices if one.device == output), None)
    if output is None or output not in peaks or not others or not total:
        return
    peak, usual = peaks[output], median(others)
    if peak < SKEW_FROM * usual or peak < FULL_FROM * total:
        return
    largest = int(run.batch_rows * USABLE_SHARE * total / peak) if run.batch_rows else 0
    fits = f"; batches of about {largest:,} rows fit" if run.batch_rows and largest > run.batch_rows else ""
    numbers = {"device": float(output), "ratio": round(peak / usual, 3), "share_of_card": round(peak / total, 4)}
    yield Finding(
        "output-device-full",
        "warning" if peak >= 0.85 * total else "info",
        f"device {output}, on which the outputs are gathered, has used {peak / total:.0%} of its memory, "
        f"{peak / usual:.2f} times as much as the others{fits}",
        "use DistributedDataParallel, which gathers nothing, or compute the loss in the model's forward, so that only "
        "the losses are gathered"
        if run.is_script
        else 'set parallelism.strategy to "ddp", which gathers nothing',
        numbers=numbers | ({"largest_batch_rows": float(largest)} if fits else {}),
    )


def _stray_contexts(samples: AttemptSamples, run: HardwareRun) -> Iterator[Finding]:
    """The device on which most other ranks were seen."""
    seen = [one for one in samples.strays if one.samples >= MIN_STRAY_SAMPLES]
    if not seen:
        return
    on = {device: [one for one in seen if one.device == device] for device in sorted({one.device for one in seen})}
    device, strays = max(on.items(), key=lambda pair: len(pair[1]))
    ranks = sorted(one.rank for one in strays)
    memory = sum(one.memory_bytes for one in strays)
    owner = next((one.rank for one in run.devices if one.device == device), device)
    named = ", ".join(map(str, ranks[:MAX_NAMED])) + (
        f" and {len(ranks) - MAX_NAMED} more" if ranks[MAX_NAMED:] else ""
    )
    holds = f", and {'holds' if len(ranks) == 1 else 'hold'} {_mib(memory)} there" if memory else ""
    yield Finding(
        "stray-context-on-first-device",
        "warning",
        f"{'rank' if len(ranks) == 1 else 'ranks'} {named} {'is' if len(ranks) == 1 else 'are'} also on device "
        f"{device}, which is that of rank {owner}{holds}",
        "call torch.cuda.set_device(local_rank) before anything else uses CUDA, and pass map_location to torch.load",
        numbers={"device": float(device), "ranks": float(len(ranks)), "memory_bytes": float(memory)},
    )
