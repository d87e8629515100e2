"""Counts whole steps: how their batches were divided, and what they cost on each device.

Identical splits collapse into one pattern and times go into sketches, so memory does not grow with the number of steps.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from jobs.protocol.records import Shape, Step
from jobs.splits.device_sums import Share, Sums
from jobs.splits.findings.uneven_work import WorkTally
from jobs.splits.timings import Measures
from workers.supervisor.report.lru_cache import MAX_CACHED, LruCache
from workers.supervisor.report.patterns import PatternTable, WholeBatch
from workers.supervisor.report.process_state import StepWork, sum_known
from workers.supervisor.report.step_blocks import StepBlock, is_untimed
from workers.supervisor.report.step_joiner import JoinedStep

#: In order of what the numbers of devices are about.
PHASES = ("train", "forward", "eval")


@dataclass(frozen=True, slots=True)
class StepPart:
    """What one rank did in one step, or in each of those of a block, of which `step` is the sample."""

    source: int
    step: Step
    work: StepWork
    block: StepBlock | None = None


def expand_part(part: StepPart) -> list[tuple[Step, StepPart]]:
    """A block's steps one by one."""
    if part.block is None:
        return [(part.step, part)]
    return [(step, StepPart(part.source, step, part.work)) for step in part.block.steps()]


@dataclass(frozen=True, slots=True)
class _StepDivision:
    """One step as a whole: module by module, and the rows of each device in all modules."""

    batches: tuple[WholeBatch, ...]
    rows: tuple[int | None, ...]


class StepCounts:
    """The counts of one attempt's steps on `devices` devices.

    Times are measured in the steps of `phases`; the numbers of the report are about the first of them that was seen.
    `in_turn` and `comparable` are those of `jobs.splits.timings:Measures`.
    """

    def __init__(self, devices: int, phases: Sequence[str], *, in_turn: bool, comparable: bool) -> None:
        self.patterns = PatternTable()
        self.crowded = False  # several processes used one device at once
        self.work = WorkTally()
        self.absent_from: dict[int, int] = {}  # by rank: the first step of which it sent nothing
        self._devices = devices
        self._phases = phases
        self._in_turn = in_turn
        self._comparable = comparable
        self._measures: dict[str, Measures] = {}  # by phase
        self._divisions: LruCache[tuple[object, ...], _StepDivision] = LruCache(MAX_CACHED)

    @property
    def main_phase(self) -> str:
        """The phase that the numbers of devices are about."""
        return next((phase for phase in self._phases if phase in self._measures), self._phases[0])

    @property
    def main_measures(self) -> Measures:
        return self._measures.get(self.main_phase) or self._new_measures(Sums.none(self._devices))

    @property
    def sums(self) -> dict[str, Sums]:
        """What was measured, by phase."""
        return {phase: measures.sums for phase, measures in self._measures.items()}

    def restore(
        self, patterns: PatternTable, sums: Mapping[str, Sums], absent_from: dict[int, int], *, crowded: bool
    ) -> None:
        """Go on with the counts of an earlier attempt."""
        self.patterns, self.absent_from, self.crowded = patterns, absent_from, crowded
        self._measures = {phase: self._new_measures(known) for phase, known in sums.items()}

    def stop_comparing(self) -> None:
        """From now on the devices' times cannot be compared with each other."""
        self._comparable = False
        for measures in self._measures.values():
            measures.comparable = False

    def count(self, steps: Sequence[JoinedStep[StepPart]], expected: Collection[int]) -> None:
        """Count steps to which the `expected` ranks should have sent their parts."""
        for _, alike in groupby(steps, key=_division_key):
            self._count_alike(list(alike), expected)

    def _count_alike(self, steps: Sequence[JoinedStep[StepPart]], expected: Collection[int]) -> None:
        """Count steps in which the same processes divided their batches in the same way."""
        first = steps[0]
        division = self._divide(first)
        ends = [joined.step for joined in steps] + [joined.step + joined.count - 1 for joined in steps]
        count = sum([joined.count for joined in steps])
        for batch in division.batches:
            self.patterns.add(min(ends), max(ends), count, batch)
        if first.phase not in self._phases:
            return
        measures = self._measures.get(first.phase)
        if measures is None:
            measures = self._measures[first.phase] = self._new_measures(Sums.none(self._devices))
        timed = [joined for joined in steps if not all(is_untimed(part.step) for part in joined.parts.values())]
        shares = self._shares(first, timed, count - len(timed), division)
        measures.add(shares, count)
        if first.phase == self.main_phase and len(division.batches) == 1:
            self.work.add(division.batches[0].input_shapes, shares)
        if first.phase == self.main_phase and len(first.parts) < len(expected):
            for rank in expected:
                if rank not in first.parts:
                    self.absent_from.setdefault(rank, first.step)

    def _new_measures(self, sums: Sums) -> Measures:
        return Measures(sums, in_turn=self._in_turn, comparable=self._comparable)

    def _divide(self, joined: JoinedStep[StepPart]) -> _StepDivision:
        key = _division_key(joined)
        parts = [part for _, part in sorted(joined.parts.items())]
        known = all(part.work.known for part in parts)
        cached = self._divisions.get(key) if known else None
        if cached is not None:
            return cached
        modules = dict.fromkeys(batch.module for part in parts if part.work.known for batch in part.work.batches)
        batches = tuple(self._whole_batch(joined.phase, module, parts) for module in modules or [""])
        rows = tuple(map(sum_known, zip(*(batch.rows for batch in batches), strict=True)))
        division = _StepDivision(batches, rows)
        size = sum([len(part.step.splits) for part in parts])
        return self._divisions.put(key, division, size=size) if known else division

    def _whole_batch(self, phase: str, module: str, parts: Sequence[StepPart]) -> WholeBatch:
        rows: list[int | None] = [0] * self._devices
        inputs: list[Shape | None] = [None] * self._devices
        outputs: list[Shape | None] = [None] * self._devices
        batch_rows: list[int | None] = []
        for part in parts:
            for batch in part.work.batches:
                if part.work.known and batch.module != module:
                    continue
                batch_rows.append(batch.batch_rows)
                for index, device in enumerate(batch.devices):
                    rows[device] = sum_known([rows[device], batch.rows[index]])
                    inputs[device] = inputs[device] or batch.input_shapes[index]
                    outputs[device] = outputs[device] or batch.output_shapes[index]
        return WholeBatch(phase, module, sum_known(batch_rows), tuple(rows), tuple(inputs), tuple(outputs))

    def _shares(
        self, first: JoinedStep[StepPart], timed: Sequence[JoinedStep[StepPart]], untimed: int, division: _StepDivision
    ) -> list[Share]:
        """`timed` are those of the steps of which some rank has sent times; there are so many others."""
        shares: list[Share | None] = [None] * self._devices
        for rank, part in first.parts.items():
            sent = [joined.parts[rank].step for joined in timed]
            for index, device in enumerate(part.work.devices):
                crowded = shares[device] is not None
                self.crowded = self.crowded or crowded
                tokens = None if crowded else part.work.tokens_at(index)
                steps = None if crowded or not timed else sent
                shares[device] = Share(division.rows[device], steps, index, tokens, 0 if crowded else untimed)
        return [share or Share(rows, None) for share, rows in zip(shares, division.rows, strict=True)]


def _division_key(joined: JoinedStep[StepPart]) -> tuple[object, ...]:
    """Steps with the same key were divided in the same way by the same processes, where their splits are known."""
    sent = joined.parts.items()
    same = [(rank, part.source, part.step.splits, part.work.known) for rank, part in sent]
    return joined.phase, *(same if len(same) == 1 else sorted(same))
