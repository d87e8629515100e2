"""Windows of a run as blocks of about equally many steps, so that each says as much as any other."""

from collections.abc import Sequence
from dataclasses import dataclass

from shardyard.contract.report import StepTimes


@dataclass(frozen=True, slots=True)
class TimeBlock:
    """Means over its steps; None where that of one of them is not known."""

    steps: int
    step_ms: float
    rows: float | None
    time_max_over_mean: float | None


def make_blocks(windows: Sequence[StepTimes]) -> list[TimeBlock]:
    """Older windows of a long run are longer than the newest: those are joined until they are as long. What is left at
    the end is less than a block, and belongs to the last one."""
    if not windows:
        return []
    size = max(window.steps for window in windows)
    groups: list[list[StepTimes]] = [[]]
    for window in windows:
        if sum(one.steps for one in groups[-1]) >= size:
            groups.append([])
        groups[-1].append(window)
    if len(groups) > 1 and sum(one.steps for one in groups[-1]) < size:
        rest = groups.pop()
        groups[-1] += rest
    return [_join(group) for group in groups]


def _join(windows: Sequence[StepTimes]) -> TimeBlock:
    steps = sum(window.steps for window in windows)

    def mean(values: Sequence[float | None]) -> float | None:
        known = [value * one.steps for value, one in zip(values, windows, strict=True) if value is not None]
        return sum(known) / steps if len(known) == len(windows) else None

    return TimeBlock(
        steps,
        sum(window.step_ms * window.steps for window in windows) / steps,
        mean([window.rows for window in windows]),
        mean([window.time_max_over_mean for window in windows]),
    )
