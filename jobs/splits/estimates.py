"""Totals over all steps of times that are measured in some of them.

The first steps of a run are not like the others: libraries warm up in them. So those that were not measured are taken
to be like the measured ones after the first ten, on average. With n of these, a standard deviation s, and m steps
that were not measured, the error of the total is 1.96 s sqrt(m + m^2 / n), half of a 95 % confidence interval.
"""

import math
from collections.abc import Sequence

import msgspec

from jobs.support.quantiles import QuantileSketch

#: Steps at the beginning, which are like no others.
WARM_UP_STEPS = 10
#: Half the width of a 95 % confidence interval, in standard deviations.
Z_95 = 1.96


class TimeEstimate(msgspec.Struct, array_like=True):
    """One time of one device, in milliseconds: what was measured, and in how many steps it was not."""

    sketch: QuantileSketch = msgspec.field(default_factory=QuantileSketch)
    steps: int = 0  # in which the time was spent, whether it was measured or not
    late: int = 0  # measured after the first steps
    late_total: float = 0.0
    late_squares: float = 0.0

    def add_all(self, values: Sequence[float | None]) -> None:
        """Add the times of some steps; `None` where a step has one that was not measured."""
        known = known_values(values)
        self.sketch.add_all(known)
        late = known if self.steps >= WARM_UP_STEPS else known_values(values[WARM_UP_STEPS - self.steps :])
        self.steps += len(values)
        self.late += len(late)
        self.late_total = sum(late, self.late_total)
        self.late_squares = sum([value * value for value in late], self.late_squares)

    def add_missed(self, steps: int) -> None:
        """Add so many steps in which the time was spent and not measured."""
        self.steps += steps

    @property
    def measured(self) -> int:
        return self.sketch.count

    @property
    def mean(self) -> float | None:
        """What a step takes that is like the measured ones; `None` while none was measured."""
        if self.late:
            return self.late_total / self.late
        return self.sketch.total / self.measured if self.measured else None

    @property
    def total(self) -> float:
        """Of all steps."""
        missed = self.steps - self.measured
        return self.sketch.total + missed * (self.mean or 0.0)

    @property
    def error(self) -> float:
        """Half of the 95 % confidence interval of `total`; 0 where every step was measured."""
        missed = self.steps - self.measured
        if not missed or self.late < 2:
            return 0.0 if not missed else self.total
        variance = max(0.0, self.late_squares - self.late_total**2 / self.late) / (self.late - 1)
        return Z_95 * math.sqrt(variance * (missed + missed**2 / self.late))


def known_values(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]
