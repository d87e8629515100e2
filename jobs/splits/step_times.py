"""The windows of a run for its report (`step_times`): how long steps took in each part of it.

What repeated measurements say about each other is what makes a number of a report judgeable: `jobs.splits.gates`.
"""

from collections.abc import Sequence
from typing import Literal

from jobs.splits.step_windows import StepWindow, fill_backwards
from jobs.splits.timings import Measures
from shardyard.contract.report import StepTimes


def list_step_times(measures: Measures, rows: Literal["own", "same", "unknown"]) -> tuple[StepTimes, ...]:
    """`rows` says whether devices have rows of their own, all the same ones, or whether that is not known."""
    windows = measures.sums.history.windows()
    filled = fill_backwards(windows) if windows else []
    if not filled:
        return ()
    slowest = _slowest_device(filled) if measures.comparable else None
    return tuple(
        StepTimes(
            first_step=window.first_step,
            steps=window.steps,
            step_ms=round(window.cycle_ms, 4),
            rows=_rows_of(window, rows),
            time_max_over_mean=None if slowest is None else _over_mean(window, slowest),
        )
        for window in filled
    )


def _slowest_device(windows: Sequence[StepWindow]) -> int | None:
    """The device that was busy longest; None where none was."""
    devices = range(len(windows[0].rows))
    busy = [sum(window.busy(device) * window.steps for window in windows) for device in devices]
    return busy.index(max(busy)) if max(busy) > 0 else None


def _over_mean(window: StepWindow, device: int) -> float | None:
    busy = [window.busy(index) for index in range(len(window.rows))]
    mean = sum(busy) / len(busy)
    return round(busy[device] / mean, 6) if mean else None


def _rows_of(window: StepWindow, rows: Literal["own", "same", "unknown"]) -> float | None:
    if rows == "unknown":
        return None
    return round(max(window.rows) if rows == "same" else sum(window.rows), 4)
