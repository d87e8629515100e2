"""Makes the report of a script: what its processes did shows in their records alone.

Nothing says beforehand which device a script uses, whether it divides batches, or which of its processes is which
rank; so all of that is read from its records as they come.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec

from jobs.model.spec import JobSpec
from jobs.protocol.packets import AnyRecord
from jobs.protocol.probe_records import (
    Activity,
    GradientSync,
    Group,
    Joining,
    Loaded,
    LoaderOpened,
    LossForm,
    LossWeights,
    Noise,
    ParameterSearch,
    Wrapped,
)
from jobs.protocol.records import MAX_COUNT, BatchSplit, Began, Step
from jobs.splits.plan import Prediction
from shardyard.contract.report import Finding, Pattern
from workers.supervisor.report.aggregator import MAX_RANKS, Aggregator, ReportSubject
from workers.supervisor.report.findings.script_lint import find_problems
from workers.supervisor.report.leased_devices import LeasedDevice
from workers.supervisor.report.notes import DeviceCooperation
from workers.supervisor.report.patterns import MAX_PATTERNS
from workers.supervisor.report.process_state import SHARDING, ProcessState
from workers.supervisor.report.script_observations import ScriptObservations
from workers.supervisor.report.step_counts import PHASES, StepCounts, StepPart, expand_part
from workers.supervisor.report.step_joiner import StepJoiner, order_by_round

#: Losses that are kept of each process.
MAX_BACKWARDS = 64
#: No process group is larger than this.
MAX_WORLD = 65_536


@dataclass(slots=True)
class _SeenForwards:
    """What single forwards have shown; of bounded size."""

    rank_of_device: dict[int, int] = field(default_factory=dict)  # the rank that used it first
    #: By module: rows of the devices where each of them returned one number in training.
    numbers_only: dict[str, set[tuple[int, ...]]] = field(default_factory=dict)
    divisions: dict[tuple[str, str], set[tuple[int, ...]]] = field(default_factory=dict)  # by phase and module: rows
    kept: int = 0

    def add(self, rank: int, split: BatchSplit) -> None:
        for device in split.devices:
            self.rank_of_device.setdefault(device, rank)
        rows = tuple(count for count in split.rows if count is not None)
        if len(rows) == len(split.rows) and self.kept < MAX_PATTERNS:
            divisions = self.divisions.setdefault((split.phase, split.module), set())
            self.kept += rows not in divisions
            divisions.add(rows)
            if split.phase == "train" and _returns_numbers(split):
                self.numbers_only.setdefault(split.module, set()).add(rows)


def _returns_numbers(split: BatchSplit) -> bool:
    """Whether several devices have rows, and each of them returned one number."""
    shapes = [shape for rows, shape in zip(split.rows, split.output_shapes, strict=True) if rows]
    return len(shapes) > 1 and all(shape is not None and shape in ((), (1,)) for shape in shapes)


class ScriptAggregator(Aggregator):
    def __init__(
        self, job_id: str, attempt: int, spec: JobSpec, lease: Sequence[LeasedDevice], prediction: Prediction
    ) -> None:
        subject = ReportSubject(job_id, attempt, spec, tuple(sorted(lease, key=lambda device: device.logical)))
        use = DeviceCooperation(
            scatters=False,
            gathers_on=spec.parallelism.output_device,
            placed=False,
            sharded=spec.parallelism.strategy == "fsdp",
        )
        counts = StepCounts(len(lease), PHASES, in_turn=subject.virtual, comparable=not use.sharded)
        joiner: StepJoiner[StepPart] = StepJoiner(spec.world_size, order_by_round(), loose=True, expand=expand_part)
        super().__init__(subject, prediction, joiner, counts, use)
        self._seen = _SeenForwards()
        self._numbers: dict[tuple[int, str], int] = {}  # by rank and phase: its last step, over all its processes

    def _add(self, process: ProcessState, record: AnyRecord) -> None:
        match record:
            case Began():
                process.began, process.joining_since = record, None
            case Joining():
                process.joining_since = record.at
            case Group():
                process.joining_since = None
                self._add_group(process, record)
            case Wrapped():
                process.add_wrapper(record)
                if record.kind in SHARDING:
                    self._use = replace(self._use, sharded=True)
                    self._counts.stop_comparing()
            case LoaderOpened():
                process.passes.add_loader(record)
            case Loaded():
                process.passes.add(record)
            case ParameterSearch():
                process.gradients.add_search(record)
            case LossForm():
                process.gradients.add_form(record)
            case Activity():
                process.activity = record
            case Noise():
                process.noise = process.noise or record
            case LossWeights():
                process.loss_weights = process.loss_weights or LossWeights(record.backwards[:MAX_BACKWARDS])
            case GradientSync():
                process.gradients.add_sync(record)
            case _:
                super()._add(process, record)

    def _add_group(self, process: ProcessState, group: Group) -> None:
        """The rank that counts is the one in the process group; a group of one says nothing. A group that is not
        possible (a script may send anything) is ignored."""
        if not 0 <= group.rank < group.world_size <= MAX_WORLD:
            return
        process.group = group
        if group.world_size > 1:
            process.rank = group.rank
            members = set(range(min(group.world_size, MAX_RANKS)))
            for rank in members:
                self._joiner.expect_rank(rank)
            self._processes.expected |= members

    def _add_split(self, process: ProcessState, split: BatchSplit) -> bool:
        if not super()._add_split(process, split):
            return False
        self._seen.add(process.rank, split)
        if len(split.devices) > 1:
            self._use = replace(self._use, scatters=True, gathers_on=split.devices[0])
        return True

    def _number_steps(self, process: ProcessState, steps: Sequence[Step]) -> Sequence[Step]:
        """A process counts its own steps; those of the next one at the same rank go on where it left off."""
        numbered = []
        for step in steps:
            key = process.rank, step.phase
            number = min(self._numbers.get(key, -1) + process.count_step(step), MAX_COUNT)
            self._numbers[key] = number
            numbered.append(step if number == step.step else msgspec.structs.replace(step, step=number))
        return numbered

    def _num_workers(self) -> int | None:
        numbers = set[int]().union(*(process.passes.training_workers() for process in self._processes.all_processes()))
        return numbers.pop() if len(numbers) == 1 else None

    def _rank_of_device(self, device: int) -> int:
        return self._seen.rank_of_device.get(device, super()._rank_of_device(device))

    def _has_read_through(self) -> bool:
        passes = (one for process in self._processes.all_processes() for one in process.passes.latest.values())
        return any(one.complete and one.trained for one in passes)

    def _find_problems(
        self, patterns: Sequence[Pattern], final: bool, last_line: str, now: float | None
    ) -> tuple[Sequence[Finding], ScriptObservations]:
        main = self._counts.main_phase
        seen = ScriptObservations(
            spec=self._subject.spec,
            virtual=self._subject.virtual,
            phase=main,
            patterns=patterns,
            divided={module: rows for (phase, module), rows in self._seen.divisions.items() if phase == main},
            numbers_only=self._seen.numbers_only,
            processes=self._processes.all_processes(),
            final=final,
            succeeded=final and self._processes.succeeded,
            last_line=last_line,
            blind="; ".join(self._rank_notes.by_field.get("per_device", [])),
            now=now,
            comm_ms=self._counts.main_measures.exposed_comm_ms,
            device_ms=sum(wall_ms or 0.0 for wall_ms in self._walls_ms(now)),
        )
        return find_problems(seen), seen
