"""What a search chooses among: strategies, numbers of devices, and rows of a step."""

from collections.abc import Sequence
from dataclasses import dataclass

#: The simplest first: of two that are as fast as each other it is the better one.
STRATEGIES = ("single", "ddp", "dp", "fsdp")


@dataclass(frozen=True, slots=True)
class Arm:
    """A way to run the steps."""

    strategy: str
    devices: int

    def __str__(self) -> str:
        return f"{self.strategy} on {self.devices}"


@dataclass(frozen=True, slots=True)
class Candidate:
    """`rows` are those of a step, of all devices together."""

    arm: Arm
    rows: int

    @property
    def price(self) -> tuple[int, int, int]:
        """Fewer devices are better than fewer rows, and these than a simpler strategy."""
        return self.arm.devices, self.rows, STRATEGIES.index(self.arm.strategy)

    def __str__(self) -> str:
        return f"{self.arm}, {self.rows:,} rows a step"


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """The sizes of steps that each arm can have, in rising order."""

    sizes: dict[Arm, tuple[int, ...]]

    def neighbours(self, candidate: Candidate) -> list[Candidate]:
        """Those with the next smaller and the next larger step."""
        sizes = self.sizes[candidate.arm]
        at = sizes.index(candidate.rows)
        return [Candidate(candidate.arm, sizes[near]) for near in (at - 1, at + 1) if 0 <= near < len(sizes)]

    def spread(self, per_arm: int) -> list[Candidate]:
        """So many candidates of each arm, the largest among them, and the smallest if there is more than one."""
        return [Candidate(arm, rows) for arm, sizes in self.sizes.items() for rows in _spread(sizes, per_arm)]


def _spread(sizes: Sequence[int], count: int) -> list[int]:
    if count >= len(sizes):
        return list(reversed(sizes))
    last = len(sizes) - 1
    places = {last} if count == 1 else {round(last * at / (count - 1)) for at in range(count)}
    return [sizes[place] for place in sorted(places, reverse=True)]
