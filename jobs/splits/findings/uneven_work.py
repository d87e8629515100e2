"""Devices with equal rows of unequal size: how much longer the largest batch of a step takes than the others.

A row may be a sentence or an image of any size. Where the batches of a step have equally many rows, and padded to
different shapes, the device with the most elements holds the others up. That is so only if time follows size, which the
steps themselves show: the deviation of a device's elements from the mean of its step is held against that of its
forward.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul
from statistics import fmean

from jobs.protocol.records import Shape
from jobs.splits.device_sums import Share
from jobs.splits.findings.slow_devices import MIN_SLOW_COST, MIN_SLOW_SHARE
from jobs.splits.findings.time_findings import MIN_STEPS
from jobs.splits.findings.timed_run import TimedRun
from jobs.splits.timings import Measures
from shardyard.contract.report import Finding, describe_seconds

CODES = frozenset({"uneven-work"})

#: The largest batch of a step over the mean of all devices, from which on anything is found, and a warning is given.
UNEVEN_FROM, UNEVEN_WARNING = 1.20, 1.50
#: Time follows size if the two go together so closely, and if time grows by so much of what size grows by.
LEAST_CORRELATION, LEAST_SLOPE = 0.5, 0.25
#: What is larger is no input.
MAX_ELEMENTS = 1 << 62
#: In the first steps libraries warm up.
WARM_UP_STEPS = 10


@dataclass(slots=True)
class WorkTally:
    """Sums over the steps in which all devices had equally many rows. Deviations are from the mean of the step, as
    shares of it."""

    seen: int = 0
    steps: int = 0
    largest: float = 0.0  # the largest batch over the mean
    size_squares: float = 0.0
    time_squares: float = 0.0
    products: float = 0.0
    largest_ms: float = 0.0  # by how much the largest batch exceeds the mean, in the time of a mean one

    def add(self, shapes: Sequence[Shape | None], shares: Sequence[Share]) -> None:
        """Add steps that were divided alike; `shapes` has the input of each device, whose first size is its rows."""
        sizes = _sizes(shapes, shares)
        if sizes is None:
            return
        mean = fmean(sizes)
        if min(sizes) == max(sizes):
            self._add_even_steps(len(shares[0].steps or ()))
            return
        deviations = [size / mean - 1 for size in sizes]
        columns = [share.forward_ms() for share in shares]
        for times in zip(*columns, strict=True):
            self.seen += 1
            known = [time for time in times if time is not None]
            if self.seen > WARM_UP_STEPS and len(known) == len(sizes) and sum(known) > 0:
                self._add_step(deviations, known)

    def _add_even_steps(self, count: int) -> None:
        counted = max(0, count - max(0, WARM_UP_STEPS - self.seen))
        self.seen += count
        self.steps += counted
        self.largest += counted

    def _add_step(self, deviations: Sequence[float], times: Sequence[float]) -> None:
        mean_ms = fmean(times)
        later = [time / mean_ms - 1 for time in times]
        self.steps += 1
        self.largest += 1 + max(deviations)
        self.size_squares += sum(map(mul, deviations, deviations))
        self.time_squares += sum(map(mul, later, later))
        self.products += sum(map(mul, deviations, later))
        self.largest_ms += max(deviations) * mean_ms

    @property
    def ratio(self) -> float:
        """The largest batch of a step over the mean one, over all steps."""
        return self.largest / self.steps if self.steps else 1.0

    @property
    def slope(self) -> float:
        """By how much time grows where size grows by one."""
        return self.products / self.size_squares if self.size_squares else 0.0

    @property
    def correlation(self) -> float:
        both = self.size_squares * self.time_squares
        return self.products / math.sqrt(both) if both else 0.0


def _sizes(shapes: Sequence[Shape | None], shares: Sequence[Share]) -> list[int] | None:
    """The elements of each device's input; `None` where devices differ in their rows, or an input is not known."""
    rows = {share.rows for share in shares}
    if len(shares) < 2 or len(rows) != 1 or any(share.steps is None for share in shares):
        return None
    sizes = [math.prod(shape) for shape in shapes if shape and shape[0] in rows]
    return sizes if len(sizes) == len(shares) and all(0 < size <= MAX_ELEMENTS for size in sizes) else None


def find_uneven_work(tally: WorkTally, measures: Measures, run: TimedRun) -> list[Finding]:
    """`uneven-work`: ranks with equally many rows wait for the one whose rows are larger."""
    follows = tally.correlation >= LEAST_CORRELATION and tally.slope >= LEAST_SLOPE
    if tally.steps < MIN_STEPS or tally.ratio < UNEVEN_FROM or not follows or not measures.comparable:
        return []
    devices = len(run.ranks)
    cost = min(tally.slope, 1.0) * tally.largest_ms * devices * _whole_over_forward(measures) / 1000
    wall_ms = max((wall for wall in run.walls_ms if wall is not None), default=0.0)
    share = min(1.0, cost * 1000 / (wall_ms * devices)) if wall_ms else None
    if cost < MIN_SLOW_COST or (share is not None and share < MIN_SLOW_SHARE):
        return []
    return [
        Finding(
            "uneven-work",
            "warning" if tally.ratio >= UNEVEN_WARNING else "info",
            f"batches have equally many rows on all {devices} devices, but the largest of a step has "
            f"{tally.ratio:.2f} times the elements of the mean one, and takes longer: the others have waited "
            f"{describe_seconds(cost)} for it",
            "sort rows into buckets of similar length, and let the batches of all ranks in one step come from the same "
            "bucket; or fill each batch up to a number of elements instead of rows",
            numbers={
                "max_over_mean": round(tally.ratio, 4),
                "correlation": round(tally.correlation, 4),
                "slope": round(tally.slope, 4),
                "steps": float(tally.steps),
            },
            cost_device_seconds=round(cost, 4),
            cost_share=None if share is None else round(share, 4),
        )
    ]


def _whole_over_forward(measures: Measures) -> float:
    """Forward and backward over forward, on all devices."""
    forward = sum(device.forward.total for device in measures.sums.devices)
    backward = sum(device.backward.total for device in measures.sums.devices)
    return (forward + backward) / forward if forward else 1.0
