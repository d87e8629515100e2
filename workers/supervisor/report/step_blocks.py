"""Blocks of steps: how supervisors of one attempt tell each other about fast steps.

A rank's record of a step has about a hundred bytes, and joining it with those of the other ranks takes time that grows
with their number. So of consecutive steps that were divided alike, one is told with all its times, and of the others
that there were so many. Rows are exact then; times are estimated from the steps that have them, as those are that are
measured in some steps anyway (`jobs.splits.estimates`).

Blocks end before multiples of their size, and all ranks choose the same step of a block, so that blocks of different
ranks can be joined like steps.
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from jobs.protocol.records import Count, Step

#: The largest block, and the first step that may be in one: a short run is told step by step.
MAX_BLOCK_STEPS = 1024
FIRST_BLOCKED_STEP = 128
#: A step that takes so long is told of itself: there are not many, and the pause has a reason.
LONG_CYCLE_MS = 1000.0
#: `step_ms` of a step whose times were left out.
UNTIMED_MS = -1.0
#: Blocks that one rank, and that all ranks together, send in a second, at most.
BLOCKS_A_SECOND = 4.0
BLOCKS_OF_ALL_RANKS = 128.0
#: Multiplied with the number of a block's first step, its upper bits are spread evenly (Knuth, volume 3, section 6.4).
_SPREAD = 2_654_435_761


class StepBlock(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`count` steps of one phase from `first` on, all divided as `sample` was, which is one of them; the last one ended
    `at`. The memory of `sample` is the peak of all."""

    first: Count
    count: Annotated[int, msgspec.Meta(ge=1, le=MAX_BLOCK_STEPS)]
    at: float
    sample: Step

    @property
    def last(self) -> Step:
        """The last step, without times."""
        return self.untimed(self.first + self.count - 1)

    def untimed(self, number: int) -> Step:
        sample = self.sample
        return Step(number, sample.epoch, sample.phase, sample.splits, self.at, UNTIMED_MS)

    def steps(self) -> list[Step]:
        """All of them, one by one."""
        numbers = range(self.first, self.first + self.count)
        return [self.sample if number == self.sample.step else self.untimed(number) for number in numbers]

    def renumbered(self, last: int) -> "StepBlock":
        """The same with another number of the last step."""
        shift = last - (self.first + self.count - 1)
        if not shift:
            return self
        sample = msgspec.structs.replace(self.sample, step=self.sample.step + shift)
        return StepBlock(self.first + shift, self.count, self.at, sample)


def is_untimed(step: Step) -> bool:
    """Whether the times of a step were left out."""
    return step.step_ms < 0


class BlockMaker:
    """Puts the steps of one process into blocks of `size` steps, which may change at any time; 1: into none."""

    def __init__(self) -> None:
        self._size = 1
        self._held: list[Step] = []

    def set_size(self, size: int) -> list[Step | StepBlock]:
        """From now on blocks are as large as this. Returns what was held."""
        if size == self._size:
            return []
        self._size = size
        return self.flush()

    def add(self, steps: Sequence[Step]) -> list[Step | StepBlock]:
        """Take steps in their order; returns those that are to be told now."""
        if self._size == 1 and not self._held:
            return list(steps)
        told: list[Step | StepBlock] = []
        for step in steps:
            if self._held and not _goes_on(self._held[-1], step):
                told += self.flush()
            if not _may_be_blocked(step):
                told += [*self.flush(), step]
                continue
            self._held.append(step)
            if (step.step + 1) % self._size == 0:
                told += self.flush()
        return told

    def flush(self) -> list[Step | StepBlock]:
        """What is held, since another record follows, or nothing."""
        held, self._held = self._held, []
        return [make_block(held)] if len(held) > 1 else list(held)


def make_block(steps: Sequence[Step]) -> StepBlock:
    """Several steps as one block."""
    sample = _choose_sample(steps)
    peaks = [peak for peak in zip(*(step.memory_peak_bytes for step in steps), strict=False) if None not in peak]
    if len(peaks) == len(sample.memory_peak_bytes) > 0:
        sample = msgspec.structs.replace(sample, memory_peak_bytes=tuple(map(max, peaks)))
    return StepBlock(steps[0].step, len(steps), steps[-1].at, sample)


def _choose_sample(steps: Sequence[Step]) -> Step:
    """One whose backward was measured, if there is one: that is done in few steps, the same on all ranks."""
    measured = [step for step in steps if any(took is not None for took in step.backward_ms)]
    candidates = measured if measured and len(measured) < len(steps) else steps
    return candidates[(steps[0].step * _SPREAD >> 16) % len(candidates)]


def _may_be_blocked(step: Step) -> bool:
    is_long = step.cycle_ms is not None and not step.cycle_ms < LONG_CYCLE_MS
    is_known = step.phase == "train" and step.step >= FIRST_BLOCKED_STEP
    return is_known and not is_long and step.flop is None and step.primitives is None and step.step_ms >= 0


def _goes_on(before: Step, step: Step) -> bool:
    """Whether a step follows directly, and was divided alike."""
    alike = (step.splits, step.epoch, step.phase) == (before.splits, before.epoch, before.phase)
    return alike and step.step == before.step + 1 and _may_be_blocked(step)


def choose_block_size(steps_a_second: float, ranks: int) -> int:
    """How many steps a block of each rank should have: four blocks a second, and fewer where there are many ranks."""
    wanted = max(steps_a_second / BLOCKS_A_SECOND, steps_a_second * ranks / BLOCKS_OF_ALL_RANKS)
    size = 1
    while size < wanted and size < MAX_BLOCK_STEPS:
        size *= 2
    return size
