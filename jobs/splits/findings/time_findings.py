"""Findings about time: devices that hold the others up, and runs that wait for input or communicate too long.

Nothing is found before the 20th step. What devices do is compared in windows of steps (`jobs.splits.step_windows`).
"""

import math
from collections.abc import Sequence
from statistics import median

from jobs.splits.findings.communication import find_communication, find_needless_division
from jobs.splits.findings.slow_devices import describe_slow_devices, find_slow_devices
from jobs.splits.findings.timed_run import TimedRun
from jobs.splits.findings.unfitting_weights import find_unfitting_weights
from jobs.splits.findings.unlike_devices import find_unlike_devices
from jobs.splits.step_windows import StepWindow, fill_backwards
from jobs.splits.timings import Measures
from shardyard.contract.report import Finding

CODES = frozenset(
    {
        *("slow-device", "slow-node", "unlike-devices", "unfitting-weights"),
        *("input-bound", "communication-bound", "more-devices-are-slower"),
    }
)

#: Steps from which on anything is found.
MIN_STEPS = 20
#: Shares of a step, for a finding and for a warning.
INPUT_FROM, INPUT_WARNING = 0.10, 0.20
#: A shorter wait is that for the main process itself, and loaders with processes of their own would make it longer.
MIN_INPUT_MS = 1.0
#: What is lost at least, in device-seconds.
MIN_COST = 1.0
MAX_WORKERS = 64


def find_time_problems(measures: Measures, run: TimedRun) -> list[Finding]:
    windows = measures.sums.history.windows()
    if measures.steps < MIN_STEPS or not windows:
        return []
    filled = fill_backwards(windows)
    unlike = find_unlike_devices(filled, measures, run)
    slow = [one for one in find_slow_devices(filled, measures, run) if not unlike.explains(one)]
    unfitting = find_unfitting_weights(filled, measures, run)
    if unfitting:  # which is about devices that always were slow, too
        slow = [one for one in slow if one.cause != "compute" or one.since is not None]
    found = [*unlike.findings, *unfitting, *describe_slow_devices(slow, measures, run)]
    waits = any(one.cause == "input" for one in slow)
    found += [] if waits else _input_bound(windows, measures, run)
    return found + (find_needless_division if run.scatters else find_communication)(measures, run)


def _input_bound(windows: Sequence[StepWindow], measures: Measures, run: TimedRun) -> list[Finding]:
    """What the lower half of the devices waits for at least: a single one that waits is a slow device."""
    devices = range(len(windows[0].rows))
    cycles = [_cycle_at_once(window, run) for window in windows]
    pairs = [(window, cycle) for window, cycle in zip(windows, cycles, strict=True) if cycle > 0]
    if not pairs:
        return []
    shares = sorted(median(window.wait[device] / cycle for window, cycle in pairs) for device in devices)
    share = min(1.0, shares[(len(shares) - 1) // 2])
    step_ms = median(cycle for _, cycle in pairs)
    wait_ms = share * step_ms
    cost = wait_ms * measures.steps * len(devices) / 1000
    if share < INPUT_FROM or wait_ms < MIN_INPUT_MS or cost < MIN_COST:
        return []
    needed = _workers_needed(step_ms, wait_ms, run.num_workers)
    numbers = {"share": round(share, 4), "data_wait_ms": round(wait_ms, 4), "step_ms": round(step_ms, 4)}
    numbers |= {"num_workers": float(run.num_workers)} if run.num_workers is not None else {}
    return [
        Finding(
            "input-bound",
            "warning" if share >= INPUT_WARNING else "info",
            f"each step waits {wait_ms:.3g} ms of its {step_ms:.3g} ms for the next batch ({share:.0%})",
            _advice_on_input(needed, run),
            numbers=numbers | {"num_workers_needed": float(needed)},
            cost_device_seconds=round(cost, 4),
            cost_share=run.cost_share(cost, measures),
        )
    ]


def _cycle_at_once(window: StepWindow, run: TimedRun) -> float:
    """How long a step takes if virtual devices, whose work one process does in turn, work at once."""
    if not run.works_in_turn:
        return window.cycle_ms
    compute = [window.compute(device) for device in range(len(window.rows))]
    return max(max(compute), window.cycle_ms - sum(compute) + max(compute))


def _workers_needed(step_ms: float, wait_ms: float, workers: int | None) -> int:
    """Loader processes that make batches as fast as steps take them. Without any, a step waits for the whole making of
    its batch; with n of them that are too slow, one batch comes in each nth of the time that making one takes."""
    making_ms = workers * step_ms if workers else wait_ms
    return min(MAX_WORKERS, max((workers or 0) + 1, math.ceil(making_ms / max(step_ms - wait_ms, 0.01 * step_ms))))


def _advice_on_input(needed: int, run: TimedRun) -> str:
    if run.num_workers is None:
        return (
            "give the DataLoader num_workers, or more of them, or make its batches cheaper; "
            f"if it has none now, {needed} would keep up"
        )
    where = "num_workers in the DataLoader" if run.is_script else "program.data.num_workers"
    # To start workers anew for each pass, and to hand over what is in memory anyway, may take longer than it saves.
    fewer = "; if its rows are in memory anyway, try 0, too" if run.num_workers else ""
    return f"set {where} to {needed} (now {run.num_workers}), or make a batch cheaper{fewer}"
