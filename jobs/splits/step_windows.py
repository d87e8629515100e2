"""The history of a run's times: windows of consecutive steps, in bounded memory.

The latest windows have ten steps each; older ones are merged in pairs, and again, so that their number stays bounded.
The first steps of a run are left out: libraries warm up in them. Within a window the largest value of each time is left
out too, so that a single hiccup is not taken for a slow device; and a backward, which is measured in every tenth step,
is not taken to be longer than the whole call of backward is in most steps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import msgspec

from jobs.splits.estimates import WARM_UP_STEPS, known_values

#: Steps of a window that has not been merged.
WINDOW_STEPS = 10
#: Windows that are kept as they were, and those that are merged of older ones.
MAX_RECENT = 16
MAX_EARLIER = 24
#: Fewer values than these have all to be taken as they are.
_MIN_TRIMMED = 5


@dataclass(frozen=True, slots=True)
class StepColumns:
    """One device in several steps; times in milliseconds, `None` where they were not measured. Devices of one process
    have the same `process` and the same whole calls of backward."""

    process: int
    rows: int
    forward: Sequence[float | None]
    backward: Sequence[float | None]
    wait: Sequence[float]
    whole_backward: Sequence[float | None]


class StepWindow(msgspec.Struct, array_like=True):
    """Means over the steps of a window: of a step's whole time, and for each device of its parts. A backward that was
    not measured in the window is `None`."""

    first_step: int
    steps: int
    cycle_ms: float
    rows: list[float]
    forward: list[float]
    backward: list[float | None]
    wait: list[float]

    def busy(self, device: int) -> float:
        return self.compute(device) + self.wait[device]

    def compute(self, device: int) -> float:
        return self.forward[device] + (self.backward[device] or 0.0)

    def merge(self, later: "StepWindow") -> "StepWindow":
        ours, theirs = self.steps, later.steps

        def mean(mine: float, other: float) -> float:
            return (mine * ours + other * theirs) / (ours + theirs)

        def known_mean(mine: float | None, other: float | None) -> float | None:
            return mean(mine, other) if mine is not None and other is not None else other if mine is None else mine

        return StepWindow(
            self.first_step,
            ours + theirs,
            mean(self.cycle_ms, later.cycle_ms),
            list(map(mean, self.rows, later.rows)),
            list(map(mean, self.forward, later.forward)),
            list(map(known_mean, self.backward, later.backward)),
            list(map(mean, self.wait, later.wait)),
        )


class _Pending(msgspec.Struct, array_like=True):
    """Steps of which no window has been made; each column has a list for each device."""

    numbers: list[int] = []
    cycles: list[float] = []
    rows: list[list[int]] = []
    forward: list[list[float | None]] = []
    backward: list[list[float | None]] = []
    wait: list[list[float]] = []
    processes: list[int] = []
    whole_backward: list[list[float | None]] = []

    @classmethod
    def none(cls, devices: int) -> "_Pending":
        return cls(
            [],
            [],
            [[] for _ in range(devices)],
            [[] for _ in range(devices)],
            [[] for _ in range(devices)],
            [[] for _ in range(devices)],
            [0] * devices,
            [[] for _ in range(devices)],
        )


class WindowHistory(msgspec.Struct, array_like=True):
    devices: int
    seen: int = 0
    pending: _Pending = msgspec.field(default_factory=_Pending)
    recent: list[StepWindow] = []
    earlier: list[StepWindow] = []
    width: int = WINDOW_STEPS  # steps of a window of `earlier`, but for the last one

    @property
    def is_consistent(self) -> bool:
        """Whether every column has an entry for each device."""
        pending = self.pending
        sizes = (
            [len(pending.rows), len(pending.forward), len(pending.backward), len(pending.wait)] if pending.rows else []
        )
        for window in self.windows():
            sizes += [len(window.rows), len(window.forward), len(window.backward), len(window.wait)]
        return set(sizes) <= {self.devices}

    def windows(self) -> list[StepWindow]:
        """All windows, in order."""
        return self.earlier + self.recent

    def add(self, numbers: Sequence[int], cycles: Sequence[float], columns: Sequence[StepColumns]) -> None:
        """Add steps: their numbers, how long each took as a whole, and what each device did."""
        skipped = max(0, min(len(numbers), WARM_UP_STEPS - self.seen))
        self.seen += len(numbers)
        if not self.pending.rows:
            self.pending = _Pending.none(self.devices)
        pending, count = self.pending, len(numbers) - skipped
        pending.numbers.extend(numbers[skipped:])
        pending.cycles.extend(cycles[skipped:])
        for index, column in enumerate(columns):
            pending.rows[index].extend([column.rows] * count)
            pending.forward[index].extend(column.forward[skipped:])
            pending.backward[index].extend(column.backward[skipped:])
            pending.wait[index].extend(column.wait[skipped:])
            pending.whole_backward[index].extend(column.whole_backward[skipped:])
            pending.processes[index] = column.process
        while len(pending.numbers) >= WINDOW_STEPS:
            self._close_window(pending)

    def _close_window(self, pending: _Pending) -> None:
        count = WINDOW_STEPS
        window = StepWindow(
            first_step=pending.numbers[0],
            steps=count,
            cycle_ms=_trimmed_mean(pending.cycles[:count]),
            rows=[sum(column[:count]) / count for column in pending.rows],
            forward=[_trimmed_mean(known_values(column[:count])) for column in pending.forward],
            backward=_typical_backwards(pending, count),
            wait=[_trimmed_mean(column[:count]) for column in pending.wait],
        )
        del pending.numbers[:count], pending.cycles[:count]
        for columns in (pending.rows, pending.forward, pending.backward, pending.wait, pending.whole_backward):
            for column in columns:
                del column[:count]
        self.recent.append(window)
        if len(self.recent) > MAX_RECENT:
            self._keep_earlier(self.recent.pop(0))

    def _keep_earlier(self, window: StepWindow) -> None:
        if self.earlier and self.earlier[-1].steps < self.width:
            self.earlier[-1] = self.earlier[-1].merge(window)
            return
        self.earlier.append(window)
        if len(self.earlier) > MAX_EARLIER:
            last = self.earlier.pop()
            self.earlier = [self.earlier[at].merge(self.earlier[at + 1]) for at in range(0, MAX_EARLIER, 2)] + [last]
            self.width *= 2


def fill_backwards(windows: Sequence[StepWindow]) -> list[StepWindow]:
    """Windows in which no backward was measured have those of the window before."""
    filled: list[StepWindow] = []
    last: list[float | None] = [None] * len(windows[0].rows)
    for window in windows:
        last = [known if known is not None else before for known, before in zip(window.backward, last, strict=True)]
        if None in last and any(known is not None for known in last):
            continue
        if last != window.backward:
            window = StepWindow(
                window.first_step,
                window.steps,
                window.cycle_ms,
                window.rows,
                window.forward,
                list(last),
                window.wait,
            )
        filled.append(window)
    return filled


def _trimmed_mean(values: Sequence[float]) -> float:
    """Without the largest one, where there are enough."""
    if len(values) < _MIN_TRIMMED:
        return sum(values) / len(values) if values else 0.0
    return (sum(values) - max(values)) / (len(values) - 1)


def _typical_backwards(pending: _Pending, count: int) -> list[float | None]:
    """The mean of what was measured, as far as it leaves room for the other devices of its process."""
    known = [known_values(column[:count]) for column in pending.backward]
    means = [_trimmed_mean(values) if values else None for values in known]
    totals: dict[int, float] = {}
    for process, mean in zip(pending.processes, means, strict=True):
        totals[process] = totals.get(process, 0.0) + (mean or 0.0)
    return [
        mean if mean is None else min(mean, _longest_backward(whole[:count], totals[process] - mean))
        for mean, process, whole in zip(means, pending.processes, pending.whole_backward, strict=True)
    ]


def _longest_backward(whole: Sequence[float | None], others_ms: float) -> float:
    known = known_values(whole)
    return max(0.0, median(known) - others_ms) if len(known) >= _MIN_TRIMMED else math.inf
