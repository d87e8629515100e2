"""What averaging devices as equals does to the weights of rows, when the devices have different numbers of them."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WeighedRows:
    """`ratio` is the weight of a row where there are fewest over that of a row where there are most. `misplaced` is the
    share of the gradient's weight that is on other rows than in the mean over all rows."""

    counts: tuple[int, ...]
    ratio: float
    misplaced: float

    def numbers(self, steps: int) -> dict[str, float]:
        return {
            "steps": steps,
            "weight_ratio": round(self.ratio, 4),
            "misplaced_weight": round(self.misplaced, 4),
            "rows_least": min(filter(None, self.counts)),
            "rows_most": max(self.counts),
        }


def weigh_rows(counts: Sequence[int]) -> WeighedRows:
    """Of devices with so many rows each; one that has none takes no part."""
    taking_part = [count for count in counts if count]
    rows, even = sum(taking_part), 1 / len(taking_part)
    misplaced = sum(abs(even - count / rows) for count in taking_part) / 2
    return WeighedRows(tuple(counts), max(taking_part) / min(taking_part), misplaced)
