"""The finding `unfitting-weights`: rows are divided by weights that are not the devices' speeds."""

from collections.abc import Sequence

from jobs.splits.findings.slow_devices import MIN_SLOW_COST, MIN_SLOW_SHARE, NEARLY_ALL
from jobs.splits.findings.timed_run import TimedRun
from jobs.splits.step_windows import StepWindow
from jobs.splits.timings import Measures
from jobs.splits.weight_use import fitting_rows, fitting_weights, read_row_times
from shardyard.contract.report import Finding, describe_rows

#: A step takes so many times as long as it would with fitting weights, typically and in nearly all windows.
UNFITTING_FROM, UNFITTING_IN_WINDOW = 1.15, 1.05
#: By which it is longer at least, where virtual devices share a machine.
MIN_VIRTUAL_MS = 1.0


def find_unfitting_weights(windows: Sequence[StepWindow], measures: Measures, run: TimedRun) -> list[Finding]:
    """`windows` are filled."""
    if run.weights is None or not measures.comparable or not run.is_work_alike:
        return []
    times = read_row_times(windows)
    if times is None:
        return []
    fitting = fitting_rows(sum(times.rows), times.per_row)
    gained_ms = times.step_ms - times.fitting_ms
    cost = gained_ms * measures.steps * len(times.rows) / 1000
    is_steady = sum(_ratio(window, fitting) >= UNFITTING_IN_WINDOW for window in windows) >= NEARLY_ALL * len(windows)
    if times.step_ms < UNFITTING_FROM * times.fitting_ms or not is_steady:
        return []
    if (run.virtual and gained_ms < MIN_VIRTUAL_MS) or cost < MIN_SLOW_COST:
        return []
    if cost * 1000 < MIN_SLOW_SHARE * run.device_time_ms(measures):
        return []
    return [
        Finding(
            "unfitting-weights",
            "info",
            f"rows are divided {describe_rows(times.rows)} by parallelism.weights, and a step takes "
            f"{times.step_ms:.3g} ms on the slowest device; divided {describe_rows(fitting)}, as the devices' speeds "
            f"are, it would take {times.fitting_ms:.3g} ms",
            f"set parallelism.weights to {fitting_weights(times.per_row)}",
            numbers={"step_work_ms": round(times.step_ms, 4), "fitting_work_ms": round(times.fitting_ms, 4)},
            cost_device_seconds=round(cost, 4),
            cost_share=run.cost_share(cost, measures),
        )
    ]


def _ratio(window: StepWindow, fitting: Sequence[int]) -> float:
    """How much longer this window's steps took than with other rows."""
    per_row = [window.compute(device) / window.rows[device] for device in range(len(fitting))]
    now = max(window.compute(device) for device in range(len(fitting)))
    return now / max(count * each for count, each in zip(fitting, per_row, strict=True))
