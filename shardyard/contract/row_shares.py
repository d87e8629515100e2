"""How rows are divided among devices by weights, and dealt to ranks batch by batch: plain arithmetic, without imports.

A batch of all ranks together is a slice of the epoch's order, whatever the weights: these decide only which rank gets
how many rows of it. So a run has the same batches with any weights, and under DistributedSampler, which has none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal, get_args

#: What becomes of rows that do not divide among the ranks: some are repeated, as DistributedSampler does; they are left
#: out; or ranks get unequal numbers of them, and each rank's gradient is weighed by its rows.
Uneven = Literal["pad", "drop", "weigh"]
UNEVEN: tuple[str, ...] = get_args(Uneven)


@lru_cache(maxsize=1024)
def divide_rows(rows: int, weights: tuple[float, ...]) -> tuple[int, ...]:
    """Rows of each device, in proportion to the weights by largest remainders: 50 rows at (3, 2) are 30 and 20.

    No device is without a row where there are enough; where there are not, the first devices get one each.
    """
    devices = len(weights)
    if rows <= devices:
        return (1,) * rows + (0,) * (devices - rows)
    exact = [Fraction(weight) for weight in weights]
    whole = sum(exact)
    shares = [rows * weight / whole for weight in exact]
    counts = [int(share) for share in shares]
    by_remainder = sorted(range(devices), key=lambda device: counts[device] - shares[device])
    for device in by_remainder[: rows - sum(counts)]:
        counts[device] += 1
    while 0 in counts:
        counts[counts.index(max(counts))] -= 1
        counts[counts.index(0)] += 1
    return tuple(counts)


def weigh_rank(counts: Sequence[int], rank: int) -> float:
    """What the mean gradient of a rank is multiplied by, so that the mean over ranks is that of all rows together."""
    return counts[rank] * len(counts) / sum(counts)


@dataclass(frozen=True, slots=True)
class RowDeal:
    """How the `rows` of a data set are dealt to ranks in one epoch. A full batch has `batch_rows` on all ranks
    together; with `drop_last` a smaller rest is left out, and `uneven` has nothing to decide."""

    rows: int
    batch_rows: int
    weights: tuple[float, ...]
    uneven: Uneven = "pad"
    drop_last: bool = False

    @property
    def read(self) -> int:
        """Rows that all ranks read in an epoch, repeated ones included."""
        ranks = len(self.weights)
        if self.drop_last:
            return self.rows - self.rows % self.batch_rows
        if self.uneven == "weigh":
            return self.rows
        return (self.rows if self.uneven == "drop" else self.rows + ranks - 1) // ranks * ranks

    @property
    def batches(self) -> int:
        """The same on each rank."""
        return -(-self.read // self.batch_rows)

    def counts(self, batch: int) -> tuple[int, ...]:
        """Rows of each rank in a batch, counted from 0."""
        return divide_rows(min(self.batch_rows, self.read - batch * self.batch_rows), self.weights)

    def places(self, batch: int, rank: int) -> range:
        """Where a rank's rows are in the epoch's order, which is repeated where there are more places than rows."""
        counts = self.counts(batch)
        first = batch * self.batch_rows + sum(counts[:rank])
        return range(first, first + counts[rank])
