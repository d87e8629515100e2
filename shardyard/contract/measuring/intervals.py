"""Intervals that hold a typical value, or the ratio of two, with 95 % certainty, from values measured repeatedly.

They are made of ranks, so no shape of the noise is assumed and a few wild values do not matter: the estimate of Hodges
and Lehmann, with the limits that follow from Wilcoxon's test of one sample, or from that of Mann and Whitney of two.
Values measured one after another may go up and down together (a neighbour needs the machine for some seconds), and then
say less than as many independent ones: the interval is widened by what their ranks tell of that.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from statistics import median

#: Fewer values than these say nothing about how they hang together.
MIN_VALUES = 8
#: Half of a 95 % confidence interval, in standard deviations.
Z_95 = 1.96
#: Of a larger correlation so few values can tell no difference.
MAX_CORRELATION = 0.9


@dataclass(frozen=True, slots=True)
class Interval:
    estimate: float
    low: float
    high: float


def typical_value(values: Sequence[float]) -> Interval | None:
    """The centre of the values; None where there are fewer than `MIN_VALUES`."""
    count = len(values)
    if count < MIN_VALUES:
        return None
    averages = sorted((values[i] + values[j]) / 2 for i in range(count) for j in range(i, count))
    beyond = count * (count + 1) / 4 - Z_95 * math.sqrt(count * (count + 1) * (2 * count + 1) / 24)
    return _widened(averages, beyond, _inflation(values))


def ratio_of(values: Sequence[float], others: Sequence[float]) -> Interval | None:
    """How many times as large the values are as the others, all above 0; None where one has fewer than
    `MIN_VALUES`."""
    ours, theirs = len(values), len(others)
    if min(ours, theirs) < MIN_VALUES:
        return None
    differences = sorted(one - other for one, other in product(map(math.log, values), map(math.log, others)))
    beyond = ours * theirs / 2 - Z_95 * math.sqrt(ours * theirs * (ours + theirs + 1) / 12)
    found = _widened(differences, beyond, max(_inflation(values), _inflation(others)))
    return Interval(math.exp(found.estimate), math.exp(found.low), math.exp(found.high))


def _widened(ordered: Sequence[float], beyond: float, inflation: float) -> Interval:
    """The median, between the values beyond which so many others lie on each side; for a variance that is so many
    times larger."""
    centre, place, wider = median(ordered), math.floor(beyond), math.sqrt(inflation)
    low, high = ordered[place - 1], ordered[-place]
    return Interval(centre, centre - wider * (centre - low), centre + wider * (high - centre))


def _inflation(values: Sequence[float]) -> float:
    """By what the variance of the mean of values grows, if each hangs together with the one before."""
    correlation = min(MAX_CORRELATION, max(0.0, _rank_correlation(values)))
    return (1 + correlation) / (1 - correlation)


def _rank_correlation(values: Sequence[float]) -> float:
    """Of each value with the next, by their ranks; what independent values would have is 0."""
    count = len(values)
    middle = (count - 1) / 2
    centred = [0.0] * count
    for rank, index in enumerate(sorted(range(count), key=values.__getitem__)):
        centred[index] = rank - middle
    squares = sum(one * one for one in centred)
    return sum(one * other for one, other in pairwise(centred)) / squares + 1 / count
