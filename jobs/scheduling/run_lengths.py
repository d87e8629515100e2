"""How long attempts run: sampled from those that have ended, and from those that have run this long already.

What runs is counted as well (the estimator of Kaplan and Meier): of jobs with a long tail, those that have ended lately
are mostly short, while the long ones still run.
"""

import random
from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate

#: What has run longer than all before runs on for at most so many times as long.
MAX_TIMES = 100


class LengthCurve:
    """Lengths in seconds, of attempts that have `ended`, and of others that have run for so long and still run."""

    def __init__(self, ended: Iterable[float], running: Iterable[float] = ()) -> None:
        marks = sorted([(seconds, 0) for seconds in ended] + [(seconds, 1) for seconds in running])
        self._lengths: list[float] = []
        weights: list[float] = []
        left = 1.0  # the part that runs longer than the lengths so far
        for number, (seconds, still_runs) in enumerate(marks):
            if not still_runs:
                weight = left / (len(marks) - number)
                self._lengths.append(seconds)
                weights.append(weight)
                left -= weight
        self._sums = list(accumulate(weights))
        self._tail = max(0.0, left)
        self._longest = marks[-1][0] if marks else 0.0

    def draw_after(self, seconds: float, chance: random.Random) -> float:
        """The length of an attempt that has run for `seconds`: more than that."""
        first = bisect_right(self._lengths, seconds)
        below = self._sums[first - 1] if first else 0.0
        known = self._sums[-1] - below if self._sums else 0.0
        drawn = chance.random() * (known + self._tail)
        if first == len(self._lengths) or drawn >= known:
            # Longer than all before: half of these run for twice as long, a quarter for four times.
            return max(seconds, self._longest) / max(1 / MAX_TIMES, chance.random())
        return self._lengths[min(len(self._lengths) - 1, bisect_right(self._sums, below + drawn, lo=first))]
