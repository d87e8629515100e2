"""Joins the ranks' records of one step, in bounded memory.

Each rank sends its steps in order, but the ranks' pipes are read one by one. A step is whole once no
rank can still add to it: each has sent it, has gone past it, or has ended. What "it" is on another rank
an order tells:

- A recipe counts epochs (`order_by_epoch`). Evaluation shards differ in length, so a rank may have fewer
  evaluation batches than another and no batch has the same number on every rank: these are joined by
  their place within the epoch instead of by step.
- A script's epochs are not known (`order_by_round`). Training steps are joined by their number, and
  evaluations by their place after the same training step: a rank that trains on has evaluated enough.

Blocks of training steps (`step_blocks`) are joined as they are where those of all ranks begin and end with the same
steps, and step by step where they do not.
"""

import heapq
from collections.abc import Callable, Iterable, Sequence
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
    """One step, or `count` of them from `step` on: what each rank sent about it. A rank that had nothing to add is
    absent. `last`: where the last of several belongs."""

    phase: str
    step: int
    parts: dict[int, T]
    count: int = 1
    last: Key | None = None


class StepJoiner(Generic[T]):
    """Steps of `ranks` ranks. `forced` counts steps let go before every rank had sent them, `late` the
    records that came after that. Late records are left out, unless the joiner is `loose`: then each is a
    step of its own, and ranks may come and go, or never send a step.
    """

    def __init__(
        self,
        ranks: int,
        order: StepOrder,
        *,
        loose: bool = False,
        expand: Callable[[T], Sequence[tuple[Step, T]]] = lambda part: (),
    ) -> None:
        """`expand` makes of what a rank sent about a block what it would have sent about each of its steps."""
        self.late = 0
        self.forced = 0
        self._order_of = order
        self._expand = expand
        self._blocks: set[Key] = set()  # that are pending, by their first step
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
            done += self._add_step(rank, key, step, part)
        self._positions[rank] = position
        return done + self._release_complete()

    def add_block(self, rank: int, first: Step, last: Step, part: T) -> list[JoinedStep[T]]:
        """Add one rank's part of its next training steps, from `first` to `last`; the answer is that of `add_steps`."""
        done: list[JoinedStep[T]] = []
        start, end = self._order_of(rank, first), self._order_of(rank, last)
        pending = self._pending.get(start)
        if start in self._blocks and pending is not None and pending.last == end:
            pending.parts[rank] = part
        elif start <= self.last_released or self._overlaps(start, end):
            for block in [one for one in self._blocks if one <= end and self._end_of(one) >= start]:
                self._split_block(block)
            for key, (step, own) in zip(_keys_between(start, end), self._expand(part), strict=True):
                done += self._add_step(rank, key, step, own)
        else:
            count = 1 + sum(end) - sum(start)
            self._pending[start] = JoinedStep(first.phase, first.step, {rank: part}, count, end)
            self._blocks.add(start)
            heapq.heappush(self._order, start)
        self._positions[rank] = max(self._positions.get(rank, _NOTHING_YET), end)
        return done + self._release_complete()

    def _add_step(self, rank: int, key: Key, step: Step, part: T) -> list[JoinedStep[T]]:
        """Returns a step of its own, where it comes too late to be joined and is counted all the same."""
        if key <= self.last_released:
            self.late += 1
            return [JoinedStep(step.phase, step.step, {rank: part})] if self._loose else []
        if self._blocks:
            for block in [one for one in self._blocks if one <= key <= self._end_of(one)]:
                self._split_block(block)
        pending = self._pending.get(key)
        if pending is None:
            pending = self._pending[key] = JoinedStep(step.phase, step.step, {})
            heapq.heappush(self._order, key)
        pending.parts[rank] = part
        pending.step = max(pending.step, step.step)
        return []

    def _overlaps(self, start: Key, end: Key) -> bool:
        """Whether a step, or a block, that is pending has steps in common with these."""
        return any(key <= end and (pending.last or key) >= start for key, pending in self._pending.items())

    def _end_of(self, block: Key) -> Key:
        return self._pending[block].last or block

    def _split_block(self, start: Key) -> None:
        """Wait for the steps of a block one by one: another rank has sent them so, or in another block."""
        block = self._pending.pop(start)
        self._blocks.discard(start)
        self._order.remove(start)
        heapq.heapify(self._order)
        for rank, part in block.parts.items():
            for key, (step, own) in zip(_keys_between(start, block.last or start), self._expand(part), strict=True):
                self._add_step(rank, key, step, own)

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
        while self._order and (slowest is None or self._end_of(self._order[0]) <= slowest):
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
        self._blocks.discard(key)
        released = self._pending.pop(key)
        self.last_released = max(self.last_released, released.last or key)
        return released


def _keys_between(start: Key, end: Key) -> list[Key]:
    """Those of a block's steps: its first and its last differ in the number of the step alone."""
    if start == end:
        return [start]
    (at,) = [index for index in range(len(start)) if start[index] != end[index]]
    return [(*start[:at], number, *start[at + 1 :]) for number in range(start[at], end[at] + 1)]  # type: ignore[misc]
