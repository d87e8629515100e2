"""Throughput with its error, from the moments at which steps ended."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

#: Steps in which libraries warm up, and steps of one window; ranks of a group tell of every tenth step.
WARM_UP_STEPS, WINDOW_STEPS = 10, 10
#: Windows that are measured of a long run: its first ones.
MAX_WINDOWS = 300
#: Quantiles of Student's t for 95 %, by degrees of freedom; beyond them, that of many.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
_T_OF_MANY = 2.1
#: Two runs of one program on one machine differ by as much, whatever the windows of one say.
LEAST_ERROR = 0.01


@dataclass(frozen=True, slots=True)
class Throughput:
    """Rows a second; `error` is half of the 95 % confidence interval, None where there is one window only."""

    rows_per_second: float
    error: float | None
    windows: int


def is_mark(step: int) -> bool:
    """Whether a window begins or ends at a step."""
    return step >= WARM_UP_STEPS and step % WINDOW_STEPS == 0


def measure_throughput(ends: Sequence[tuple[int, float]], rows: int) -> Throughput | None:
    """Of steps that ended at these times in seconds, in their order, with so many rows each. None: too few of them."""
    marks = [(step, at) for step, at in ends if is_mark(step)]
    rates = [
        rows * (later - earlier) / (end - start)
        for (earlier, start), (later, end) in pairwise(marks)
        if end > start and later > earlier
    ]
    if not rates:
        return None
    mean = len(rates) / sum(1 / rate for rate in rates)  # of the time, since windows have as many rows
    if len(rates) == 1:
        return Throughput(mean, None, 1)
    degrees = len(rates) - 1
    quantile = _T[degrees - 1] if degrees <= len(_T) else _T_OF_MANY
    error = quantile * statistics.stdev(rates) / math.sqrt(len(rates))
    return Throughput(mean, max(error, LEAST_ERROR * mean), len(rates))


def are_alike(one: tuple[float, float | None], other: tuple[float, float | None]) -> bool:
    """Whether two numbers with their errors cannot be told apart."""
    if one[1] is None or other[1] is None:
        return True
    return abs(one[0] - other[0]) <= math.hypot(one[1], other[1])
