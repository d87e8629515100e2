"""Bring the ranks' records of one step together, in bounded memory.

Each rank sends its steps in order, but the ranks' pipes are read one by one. A step is whole once no
rank can still add to it: each has sent it, has gone past it, or has ended. Evaluation shards differ
in length, so a rank may have fewer evaluation batches than another and no batch has the same number
on every rank: these are joined by their place within the epoch instead of by step.
"""

import heapq
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from jobs.telemetry import Step

#: Records held back while slower ranks catch up, over all ranks.
MAX_PENDING = 32_768

_ORDER = {"train": 0, "forward": 0, "eval": 1}

T = TypeVar("T")
_Key = tuple[int, int, int]  # epoch, place of the phase within it, place of the step within the phase
_NOTHING_YET: _Key = (-1, 0, 0)


@dataclass(frozen=True, slots=True)
class Joined(Generic[T]):
    """One step: what each rank sent about it. A rank that had nothing to add is absent."""

    phase: str
    step: int
    parts: dict[int, T]


@dataclass(slots=True)
class _Pending(Generic[T]):
    phase: str
    step: int
    parts: dict[int, T] = field(default_factory=dict)


class Joiner(Generic[T]):
    """Steps of `ranks` ranks. `forced` counts steps let go before every rank had sent them, `late` the
    records that came after that and were left out.
    """

    def __init__(self, ranks: int) -> None:
        self.late = 0
        self.forced = 0
        self._window = max(64, MAX_PENDING // ranks)
        self._positions: dict[int, _Key] = dict.fromkeys(range(ranks), _NOTHING_YET)
        self._in_epoch: dict[tuple[int, str], tuple[int, int]] = {}
        self._pending: dict[_Key, _Pending[T]] = {}
        self._order: list[_Key] = []
        self._gone = _NOTHING_YET

    def feed(self, rank: int, step: Step, part: T) -> list[Joined[T]]:
        """Add one rank's part; the answer has the steps that this completes, oldest first."""
        key = self._key(rank, step)
        if rank in self._positions:
            self._positions[rank] = max(self._positions[rank], key)
        if key <= self._gone:
            self.late += 1
            return []
        pending = self._pending.get(key)
        if pending is None:
            pending = self._pending[key] = _Pending(step.phase, step.step)
            heapq.heappush(self._order, key)
        pending.parts[rank] = part
        pending.step = max(pending.step, step.step)
        return self._complete()

    def rank_ended(self, rank: int) -> list[Joined[T]]:
        """Stop waiting for a rank: it has sent its last record."""
        self._positions.pop(rank, None)
        return self._complete()

    def flush(self) -> list[Joined[T]]:
        """Everything that is still waiting: no rank will send anything more."""
        return [self._pop() for _ in range(len(self._order))]

    def _key(self, rank: int, step: Step) -> _Key:
        order = _ORDER.get(step.phase, 0)
        if step.phase != "eval":
            return step.epoch, order, step.step
        epoch, place = self._in_epoch.get((rank, step.phase), (-1, 0))
        place = place + 1 if epoch == step.epoch else 0
        self._in_epoch[rank, step.phase] = step.epoch, place
        return step.epoch, order, place

    def _complete(self) -> list[Joined[T]]:
        slowest = min(self._positions.values(), default=None)
        done = []
        while self._order and (slowest is None or self._order[0] <= slowest):
            done.append(self._pop())
        while len(self._order) > self._window:
            self.forced += 1
            done.append(self._pop())
        return done

    def _pop(self) -> Joined[T]:
        key = heapq.heappop(self._order)
        self._gone = max(self._gone, key)
        pending = self._pending.pop(key)
        return Joined(pending.phase, pending.step, pending.parts)
