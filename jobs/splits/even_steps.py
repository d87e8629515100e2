"""How long steps would take without slow devices, and with rows divided evenly.

In each step devices wait for the last one. Had a slow device worked as its peers do, the step would have ended with the
last of the peers, or with that device itself, which would then be later than they are at times, as they are among each
other: it is given the time that one of them took in the step before.

Slow devices are those whose average is more than a tenth above the (lower) median of all, and the one that has waited
least for the others; the rest are its peers.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec

#: A device is slow from so many times the median of all on.
SLOW_FROM = 1.10

Columns = Sequence[Sequence[float]]  # for each device its values, step by step


class EvenSteps(msgspec.Struct, array_like=True):
    """Over the steps in which the time of every device is known, with rows divided evenly."""

    gained_ms: float = 0.0  # by which the steps would have been shorter
    busy_ms: list[float] = []  # of each device
    waited_ms: list[float] = []
    last_busy_ms: list[float] = []  # in the step before

    def is_of(self, devices: int) -> bool:
        return {len(self.busy_ms), len(self.waited_ms), len(self.last_busy_ms)} in ({0}, {devices})

    def add(self, rows: Sequence[int], computed: Columns, busy: Columns, waited: Columns) -> None:
        """Add steps that were divided alike: for each device its rows, how long it computed in each of them, how long
        it was busy in all, and how long it waited for the others."""
        if len(rows) < 2:
            return
        shifts = _row_shifts(rows, computed)
        busy = [_add(times, shift) for times, shift in zip(busy, shifts, strict=True)]
        arrivals = [_subtract(shift, waits) for shift, waits in zip(shifts, waited, strict=True)]
        before = self.last_busy_ms or [column[0] for column in busy]
        self.busy_ms = _add(self.busy_ms or [0.0] * len(busy), list(map(sum, busy)))
        self.waited_ms = _add(self.waited_ms or [0.0] * len(busy), list(map(sum, waited)))
        slow = self.slow_devices()
        peers = [device for device in range(len(busy)) if device not in slow]
        ended, arrived = across_devices(min, waited), across_devices(max, [arrivals[peer] for peer in peers])
        worked = across_devices(max, [busy[peer] for peer in peers])
        stand_ins = across_devices(max, [[before[peer], *busy[peer][:-1]] for peer in peers[: len(slow)]])
        self.gained_ms += sum(
            -last - own - max(0.0, other - most)
            for last, own, other, most in zip(ended, arrived, stand_ins, worked, strict=True)
        )
        self.last_busy_ms = [column[-1] for column in busy]

    def slow_devices(self) -> set[int]:
        """Never all of them."""
        median = sorted(self.busy_ms)[(len(self.busy_ms) - 1) // 2]
        slow = {device for device, each in enumerate(self.busy_ms) if each > SLOW_FROM * median}
        last = self.waited_ms.index(min(self.waited_ms))
        return slow | {last} if len(slow | {last}) < len(self.busy_ms) else slow


def _row_shifts(rows: Sequence[int], computed: Columns) -> Columns:
    """By how much longer each device would work if all had the mean of the rows."""
    mean = sum(rows) / len(rows)
    if len(set(rows)) == 1 or not mean:
        return [[0.0] * len(column) for column in computed]
    a_row = [sum(times) / sum(rows) for times in zip(*computed, strict=True)]
    return [
        [took * (mean / count - 1) for took in column] if count else [each * mean for each in a_row]
        for count, column in zip(rows, computed, strict=True)
    ]


def _add(left: Sequence[float], right: Sequence[float]) -> list[float]:
    return [one + other for one, other in zip(left, right, strict=True)]


def _subtract(left: Sequence[float], right: Sequence[float]) -> list[float]:
    return [one - other for one, other in zip(left, right, strict=True)]


def across_devices(take: Callable[[Iterable[float]], float], columns: Columns) -> list[float]:
    """The greatest or least of all devices, step by step."""
    return list(map(take, zip(*columns, strict=True)))
