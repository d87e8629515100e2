"""Quantiles of a stream in bounded memory: a DDSketch.

Values are counted in buckets whose borders grow by a constant factor, so that a bucket's midpoint is
within `RELATIVE_ERROR` of everything in it (Masson, Rim, Lee: "DDSketch", VLDB 2019). Two sketches
merge by adding their counts.
"""

import math
from collections import Counter
from collections.abc import Sequence

import msgspec

RELATIVE_ERROR = 0.01
#: Buckets of 1 % span 17 decades in 2,048; beyond that the smallest values are lumped together.
MAX_BUCKETS = 2048
#: Everything up to this counts as zero.
SMALLEST = 1e-9

_GAMMA = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_LOG_GAMMA = math.log(_GAMMA)


class QuantileSketch(msgspec.Struct, array_like=True):
    """Count, total, minimum and maximum exactly; quantiles within 1 %. Values are finite and not negative."""

    count: int = 0
    total: float = 0.0
    min: float = math.inf
    max: float = 0.0
    _zeros: int = 0
    _buckets: dict[int, int] = {}  # each sketch has one of its own

    def add(self, value: float) -> None:
        """Count one value.

        Raises:
            ValueError: the value is negative, infinite or not a number.
        """
        if not 0 <= value < math.inf:
            raise ValueError(f"a sketch takes finite values from 0 on, not {value}")
        self.count += 1
        self.total += value
        self.min = min(self.min, value)
        self.max = max(self.max, value)
        if value <= SMALLEST:
            self._zeros += 1
            return
        bucket = math.ceil(math.log(value) / _LOG_GAMMA)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1
        if len(self._buckets) > MAX_BUCKETS:
            self._lump_smallest()

    def add_all(self, values: Sequence[float]) -> None:
        """Count many values, exactly as `add` would one after another, in a tenth of the time.

        Raises:
            ValueError: one of them is negative, infinite or not a number.
        """
        if not values:
            return
        lowest, highest = min(values), max(values)
        total = sum(values, self.total)
        if not (lowest >= 0 and highest < math.inf and not math.isnan(total)):
            raise ValueError("a sketch takes finite values from 0 on")
        self.count += len(values)
        self.total = total
        self.min, self.max = min(self.min, lowest), max(self.max, highest)
        log, ceil = math.log, math.ceil
        counted = Counter([ceil(log(value) / _LOG_GAMMA) for value in values if value > SMALLEST])
        self._zeros += len(values) - counted.total()
        for bucket, count in counted.items():
            self._buckets[bucket] = self._buckets.get(bucket, 0) + count
        while len(self._buckets) > MAX_BUCKETS:
            self._lump_smallest()

    def merge(self, other: "QuantileSketch") -> None:
        """Count everything that `other` has counted."""
        self.count += other.count
        self.total += other.total
        self.min = min(self.min, other.min)
        self.max = max(self.max, other.max)
        self._zeros += other._zeros
        for bucket, count in other._buckets.items():
            self._buckets[bucket] = self._buckets.get(bucket, 0) + count
        while len(self._buckets) > MAX_BUCKETS:
            self._lump_smallest()

    def quantile(self, q: float) -> float | None:
        """The smallest value that at least a share `q` of all values do not exceed, within 1 %.

        `None` when nothing was counted.

        Raises:
            ValueError: `q` is outside 0..1.
        """
        if not 0 <= q <= 1:
            raise ValueError(f"a quantile is between 0 and 1, not {q}")
        if self.count == 0:
            return None
        rank = max(0, math.ceil(q * self.count) - 1)
        if rank < self._zeros:
            return 0.0
        seen = self._zeros
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if rank < seen:
                return max(self.min, min(2 * _GAMMA**bucket / (_GAMMA + 1), self.max))
        return self.max

    def _lump_smallest(self) -> None:
        smallest, second = sorted(self._buckets)[:2]
        self._buckets[second] += self._buckets.pop(smallest)
