"""What a benchmark measures and how two sides become a ratio: rounds in turns, medians, spread, goals, growth.

Nothing here knows what is measured. All arithmetic is on samples of one unit, one sample a round and side; the first
side of a figure is ours.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median
from typing import TypeVar

T = TypeVar("T")
Say = Callable[[str], None]

#: Rest before each measurement, so that the end of one is not part of the next.
REST_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Scale:
    """How much time there is: fifteen minutes for everything, or two."""

    quick: bool = False
    rounds: int | None = None  # asked for on the command line

    def pick(self, full: T, quick: T) -> T:
        return quick if self.quick else full

    def rounds_of(self, full: int, quick: int) -> int:
        return self.rounds or self.pick(full, quick)


def in_turns(
    sides: Mapping[str, Callable[[], T]],
    rounds: int,
    *,
    say: Say,
    warm_up: int = 1,
    rest_seconds: float = REST_SECONDS,
) -> dict[str, list[T]]:
    """What each side returned in each of `rounds`, A B A B, so that all see the same machine.

    `warm_up` rounds before the first fill the caches and are thrown away.
    """
    samples: dict[str, list[T]] = {name: [] for name in sides}
    for number in range(warm_up + rounds):
        for name, once in sides.items():
            time.sleep(rest_seconds)
            sample = once()
            if number >= warm_up:
                samples[name].append(sample)
        say(f"round {number - warm_up + 1} of {rounds}" if number >= warm_up else "warm-up")
    return samples


class Kind(StrEnum):
    TIMES_BETTER = "times better than"
    AT_MOST_TIMES = "at most times"
    SHARE_OF = "share of"
    AT_MOST = "at most"
    AT_LEAST = "at least"


@dataclass(frozen=True, slots=True)
class Goal:
    """What a figure should reach, against another side or, where nothing else does the same thing, in its own unit."""

    kind: Kind
    value: float
    against: str = ""

    def words(self, unit: str) -> str:
        match self.kind:
            case Kind.TIMES_BETTER:
                return f"{self.value:g} times better than {self.against}"
            case Kind.AT_MOST_TIMES:
                return f"at most {self.value:g} times {self.against}"
            case Kind.SHARE_OF:
                return f"{self.value:.0%} of {self.against}"
            case _:
                return f"{self.kind} {amount(self.value, unit)}"


def times_better(than: str, value: float) -> Goal:
    return Goal(Kind.TIMES_BETTER, value, than)


def at_most_times(of: str, value: float) -> Goal:
    return Goal(Kind.AT_MOST_TIMES, value, of)


def share_of(of: str, value: float) -> Goal:
    return Goal(Kind.SHARE_OF, value, of)


def at_most(value: float) -> Goal:
    return Goal(Kind.AT_MOST, value)


def at_least(value: float) -> Goal:
    return Goal(Kind.AT_LEAST, value)


@dataclass(frozen=True, slots=True)
class Figure:
    """One quantity, sampled in rounds on two or more sides.

    `samples` has our side first. Figures of one name and different `size` show growth; `size_of` says what grows.
    """

    name: str
    unit: str
    samples: Mapping[str, Sequence[float]]
    goals: Sequence[Goal] = ()
    lower_is_better: bool = True
    size: float | None = None
    size_of: str = ""
    note: str = ""

    @property
    def ours(self) -> str:
        return next(iter(self.samples))

    def ratio(self, against: str) -> "Spread":
        """How many times better ours is, round by round: above 1 is better, whichever way the unit points."""
        pairs = zip(self.samples[self.ours], self.samples[against], strict=True)
        return spread([_over(theirs, ours) if self.lower_is_better else _over(ours, theirs) for ours, theirs in pairs])

    def reached(self, goal: Goal) -> float:
        match goal.kind:
            case Kind.TIMES_BETTER | Kind.SHARE_OF:
                return self.ratio(goal.against).median
            case Kind.AT_MOST_TIMES:
                return 1 / self.ratio(goal.against).median
            case _:
                return median(self.samples[self.ours])

    def met(self, goal: Goal) -> bool:
        reached = self.reached(goal)
        return reached <= goal.value if goal.kind in (Kind.AT_MOST, Kind.AT_MOST_TIMES) else reached >= goal.value


@dataclass(frozen=True, slots=True)
class Spread:
    median: float
    lowest: float
    highest: float


def spread(values: Sequence[float]) -> Spread:
    """Raises ValueError where there is no value."""
    if not values:
        raise ValueError("no samples")
    return Spread(median(values), min(values), max(values))


def _over(numerator: float, denominator: float) -> float:
    if denominator:
        return numerator / denominator
    return math.inf if numerator else 1.0


@dataclass(frozen=True, slots=True)
class Growth:
    """How one side of a figure grows: `exponent` is 0 for flat, 1 for as fast as the size (least squares, log-log)."""

    name: str
    side: str
    size_of: str
    unit: str
    sizes: tuple[float, ...]
    values: tuple[float, ...]
    exponent: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "exponent", _slope(self.sizes, self.values))


def growths(figures: Iterable[Figure]) -> list[Growth]:
    """One for each name and side that was measured at two sizes or more."""
    found: dict[tuple[str, str], list[tuple[float, float, Figure]]] = {}
    for figure in figures:
        if figure.size is not None:
            for side, values in figure.samples.items():
                found.setdefault((figure.name, side), []).append((figure.size, median(values), figure))
    return [
        Growth(
            name,
            side,
            points[0][2].size_of,
            points[0][2].unit,
            tuple(size for size, _, _ in points),
            tuple(value for _, value, _ in points),
        )
        for (name, side), points in ((key, sorted(each, key=lambda point: point[0])) for key, each in found.items())
        if len(points) > 1
    ]


def _slope(sizes: Sequence[float], values: Sequence[float]) -> float:
    if min(sizes) <= 0 or min(values) <= 0:
        return math.nan
    x, y = [math.log(size) for size in sizes], [math.log(value) for value in values]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum((a - mean_x) ** 2 for a in x)


#: From the unit that samples are kept in to the one that people read, by size.
_STEPS = {
    "s": ((1, "s"), (1e-3, "ms"), (1e-6, "us")),
    "bytes": ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "bytes")),
}


def amount(value: float, unit: str) -> str:
    """For people, three digits: `0.0123 s` is `12.3 ms`."""
    for factor, name in _STEPS.get(unit, ()):
        if abs(value) >= factor:
            return f"{_digits(value / factor)} {name}"
    return f"{_digits(value)} {unit}".rstrip()


def _digits(value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
