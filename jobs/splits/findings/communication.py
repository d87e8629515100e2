"""Findings about what devices send each other: `communication-bound` and `more-devices-are-slower`."""

from jobs.splits.findings.timed_run import TimedRun
from jobs.splits.timings import Measures
from shardyard.contract.report import Finding

#: Shares of a step, for a finding and for a warning.
COMM_FROM, COMM_WARNING = 0.20, 0.40
#: Ranks on virtual devices wait for a core while they communicate, so less than this says nothing.
VIRTUAL_COMM_FROM, MIN_VIRTUAL_COMM_MS = 0.50, 10.0
#: In a typical step communication takes this part of its mean at least: a few long waits, for a core or for a peer that
#: was held up, are not what a larger batch makes shorter.
TYPICAL = 0.5
#: On virtual devices its p95 is at most so many times its p50, or so many bytes a second travel.
STEADY, MIN_VIRTUAL_RATE = 2.0, 100 * 1024**2
#: What is lost at least, in device-seconds.
MIN_COST, MIN_VIRTUAL_COPYING_COST = 1.0, 3.0
#: A division that makes steps longer by so much gets a warning.
LONGER_WARNING = 1.20


def find_communication(measures: Measures, run: TimedRun) -> list[Finding]:
    sums, covered = measures.sums, measures.covered_steps
    devices = len(sums.devices)
    cycles_ms = min((device.covered_cycles_ms for device in sums.devices), default=0.0)
    if devices < 2 or not covered or cycles_ms <= 0:
        return []
    comm_ms, step_ms = sums.totals.comm_ms / covered, cycles_ms / covered
    share, cost = comm_ms / step_ms, comm_ms * measures.steps * devices / 1000
    least_share, least_ms = (VIRTUAL_COMM_FROM, MIN_VIRTUAL_COMM_MS) if run.virtual else (COMM_FROM, 0.0)
    if share < least_share or comm_ms < least_ms or cost < MIN_COST:
        return []
    if not _is_typical(comm_ms, measures, run):
        return []
    bandwidth, of_bandwidth = _bandwidth(comm_ms, run)
    batch = "batch_size" if run.is_script else "program.data.batch_size"
    accumulate_how = (
        "several batches to an optimizer step, all but the last under no_sync()"
        if run.is_script
        else "program.accumulate_steps"
    )
    return [
        Finding(
            "communication-bound",
            "warning" if share >= COMM_WARNING else "info",
            f"each step communicates for {comm_ms:.3g} ms of its {step_ms:.3g} ms ({share:.0%}), in which no device "
            f"computes; waiting for the slowest device is not counted{bandwidth}",
            f"compute more between two reductions: a larger {batch}, or {accumulate_how}",
            numbers={"share": round(share, 4), "comm_ms": round(comm_ms, 4), "step_ms": round(step_ms, 4)}
            | of_bandwidth,
            cost_device_seconds=round(cost, 4),
            cost_share=run.cost_share(cost, measures),
        )
    ]


def _is_typical(comm_ms: float, measures: Measures, run: TimedRun) -> bool:
    """Whether most steps communicate as long, by the device that waits least for others; and on virtual devices,
    whether that is steady, or explained by the bytes that travel: ranks wait for a core too."""
    known = [device.comm_ms for device in measures.devices() if device.comm_ms is not None]
    least = min(known, key=lambda timing: timing.p50, default=None)
    if least is None or least.p50 < TYPICAL * comm_ms:
        return False
    rate = (run.gradient_bytes or 0) * 1000 / comm_ms
    return not run.virtual or least.p95 <= STEADY * least.p50 or rate >= MIN_VIRTUAL_RATE


def _bandwidth(comm_ms: float, run: TimedRun) -> tuple[str, dict[str, float]]:
    """Words and numbers about one reduction: the gradients of a rank, by the time that no computing hides."""
    if run.gradient_bytes is None or comm_ms <= 0:
        return "", {}
    rate = run.gradient_bytes * 1000 / comm_ms
    words = (
        f"; the gradients of a rank are {describe_bytes(run.gradient_bytes)}, which makes {describe_bytes(rate)}/s in "
        "that time"
    )
    return words, {"bytes": float(run.gradient_bytes), "bytes_per_second": round(rate, 1)}


def find_needless_division(measures: Measures, run: TimedRun) -> list[Finding]:
    """DataParallel's copies take longer than is won by dividing the work."""
    copies = measures.primitives()
    shards, devices = measures.shards_ms(), len(run.ranks)
    if copies is None or shards is None or devices < 2:
        return []
    timings = (copies.replicate_ms, copies.scatter_ms, copies.gather_ms)
    copying_ms = sum(timing.p50 for timing in timings)
    alone_ms, shard_ms = shards
    spared_ms, together_ms = alone_ms - shard_ms, shard_ms + copying_ms
    cost = (copying_ms - spared_ms) * measures.steps * devices / 1000
    least_cost = MIN_VIRTUAL_COPYING_COST if run.virtual else MIN_COST
    if copying_ms < spared_ms or cost < least_cost or (run.virtual and together_ms < LONGER_WARNING * alone_ms):
        return []
    return [
        Finding(
            "more-devices-are-slower",
            "warning" if together_ms >= LONGER_WARNING * alone_ms and not run.virtual else "info",
            f"one device would need {alone_ms:.3g} ms for a step, these {devices} need {together_ms:.3g} ms: copying "
            f"the model, the batch and the outputs takes {copying_ms:.3g} ms, and {spared_ms:.3g} ms are saved",
            "run it on 1 device, or divide larger batches",
            numbers={
                "one_device_ms": round(alone_ms, 4),
                "devices_ms": round(together_ms, 4),
                "copying_ms": round(copying_ms, 4),
                "won_ms": round(spared_ms, 4),
            },
            cost_device_seconds=round(cost, 4),
            cost_share=run.cost_share(cost, measures),
        )
    ]


def describe_bytes(value: float) -> str:
    """A number of bytes for a sentence: "812 KiB", "97.7 MiB"."""
    for unit in ("bytes", "KiB", "MiB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:,.3g} GiB" if value < 1000 else f"{value:,.0f} GiB"
