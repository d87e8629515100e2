"""Joins the ranks' records of one step, in bounded memory.

Each rank sends its steps in order, but the ranks' pipes are read one by one. A step is whole once no
rank can still add to it: each has sent it, has gone past it, or has ended. What "it" is on another rank
an order tells:

- A recipe counts epochs (`order_by_epoch`). Evaluation shards differ in length, so a rank may have fewer
  evaluation batches than another and no batch has the same number on every rank: these are joined by
  their place within the epoch instead of by step.
- A script's epochs are not known (`order_by_round`). Training steps are joined by their number, and
  evaluations by their place after the same training step: a rank that trains on has evaluated enough.
"""

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from jobs.protocol.records import Step

#: Records held back while slower ranks catch up, over all ranks.
MAX_PENDING = 32_768
#: Steps held back for a rank of a script that has not sent any: it may never train.
MAX_WAITING = 1024

_ORDER = {"train": 0, "forward": 0, "eval": 1}

T = TypeVar("T")
Key = tuple[int, int, int]  # epoch or round, then the place within it
_NOTHING_YET: Key = (-2, 0, 0)

#: Where a rank's step belongs. It is asked once about every step of a rank, in order.
StepOrder = Callable[[int, Step], Key]


def order_by_epoch() -> StepOrder:
    """The order of a recipe's steps."""
    in_epoch: dict[tuple[int, str], tuple[int, int]] = {}

    def key(rank: int, step: Step) -> Key:
        order = _ORDER.get(step.phase, 0)
        if step.phase != "eval":
            return step.epoch, order, step.step
        epoch, place = in_epoch.get((rank, step.phase), (-1, 0))
        place = place + 1 if epoch == step.epoch else 0
        in_epoch[rank, step.phase] = step.epoch, place
        return step.epoch, order, place

    return key


def order_by_round() -> StepOrder:
    """The order of a script's steps. A round is a training step and whatever forwards follow it without one."""
    rounds: dict[int, tuple[int, int]] = {}  # by rank: its last training step, and what came since

    def key(rank: int, step: Step) -> Key:
        last, place = rounds.get(rank, (-1, 0))
        if step.phase == "train":
            rounds[rank] = step.step, 0
            return step.step, 0, 0
        rounds[rank] = last, place + 1
        return last, place + 1, _ORDER.get(step.phase, 0)

    return key


@dataclass(slots=True)
class JoinedStep(Generic[T]):
    """One step: what each rank sent about it. A rank that had nothing to add is absent."""

    phase: str
    step: int
    parts: dict[int, T]


class StepJoiner(Generic[T]):
    """Steps of `ranks` ranks. `forced` counts steps let go before every rank had sent them, `late` the
    records that came after that. Late records are left out, unless the joiner is `loose`: then each is a
    step of its own, and ranks may come and go, or never send a step.
    """

    def __init__(self, ranks: int, order: StepOrder, *, loose: bool = False) -> None:
        self.late = 0
        self.forced = 0
        self._order_of = order
        self._loose = loose
        self._positions: dict[int, Key] = dict.fromkeys(range(ranks), _NOTHING_YET)
        self._pending: dict[Key, JoinedStep[T]] = {}
        self._order: list[Key] = []
        self.last_released = _NOTHING_YET  # the last step that was let go

    def expect_rank(self, rank: int) -> None:
        """Wait for a rank that has been heard of and may send steps."""
        self._positions.setdefault(rank, _NOTHING_YET)

    def add_steps(self, rank: int, steps: Iterable[tuple[Step, T]]) -> list[JoinedStep[T]]:
        """Add one rank's part of each of its next steps; the answer has the steps that these complete, oldest first."""
        done: list[JoinedStep[T]] = []
        position = self._positions.get(rank, _NOTHING_YET)
        for step, part in steps:
            key = self._order_of(rank, step)
            position = max(position, key)
            if key <= self.last_released:
                self.late += 1
                if self._loose:
                    done.append(JoinedStep(step.phase, step.step, {rank: part}))
                continue
            pending = self._pending.get(key)
            if pending is None:
                pending = self._pending[key] = JoinedStep(step.phase, step.step, {})
                heapq.heappush(self._order, key)
            pending.parts[rank] = part
            pending.step = max(pending.step, step.step)
        self._positions[rank] = position
        return done + self._release_complete()

    def end_rank(self, rank: int) -> list[JoinedStep[T]]:
        """Stop waiting for a rank: it has sent its last record, or the last for now."""
        self._positions.pop(rank, None)
        return self._release_complete()

    def flush(self) -> list[JoinedStep[T]]:
        """Everything that is still waiting: no rank will send anything more."""
        return [self._release_first() for _ in range(len(self._order))]

    def resume_after(self, last: Key, *, forced: int, late: int) -> None:
        """Go on where another joiner was flushed."""
        self.last_released, self.forced, self.late = last, forced, late

    def _release_complete(self) -> list[JoinedStep[T]]:
        if self._loose and len(self._order) > MAX_WAITING:
            self._positions = {rank: key for rank, key in self._positions.items() if key != _NOTHING_YET}
        slowest = min(self._positions.values(), default=None)
        done = []
        while self._order and (slowest is None or self._order[0] <= slowest):
            done.append(self._release_first())
        while len(self._order) > self._window:
            self.forced += 1
            done.append(self._release_first())
        return done

    @property
    def _window(self) -> int:
        return max(64, MAX_PENDING // max(1, len(self._positions)))

    def _release_first(self) -> JoinedStep[T]:
        key = heapq.heappop(self._order)
        self.last_released = max(self.last_released, key)
        return self._pending.pop(key)
