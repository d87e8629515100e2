"""Makes the split report (`shardyard.contract.report`) of what the ranks of one attempt send.

The supervisor feeds an aggregator with the records of all ranks as they come, and takes a `Report` from it whenever it
wants one. What recipes and scripts have in common is here; `recipe_aggregator` and `script_aggregator` have the rest.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

import msgspec

from jobs.model.spec import JobSpec, RecipeProgram
from jobs.protocol.hardware import AttemptSamples
from jobs.protocol.packets import AnyRecord
from jobs.protocol.probe_records import NormLayers
from jobs.protocol.records import (
    MAX_COUNT,
    BatchSplit,
    DeviceInfo,
    MetricSample,
    Note,
    Outcome,
    Outline,
    ProgramBegan,
    Returned,
    Step,
)
from jobs.splits.card_peaks import find_peaks
from jobs.splits.device_sums import RowCost
from jobs.splits.findings.hardware_findings import HardwareRun, find_hardware_problems
from jobs.splits.findings.ranking import rank_findings
from jobs.splits.findings.time_findings import find_time_problems
from jobs.splits.findings.timed_run import TimedRun
from jobs.splits.findings.uneven_work import find_uneven_work
from jobs.splits.node_measures import measure_nodes
from jobs.splits.plan import Prediction, predict_splits
from jobs.splits.plan_check import check_prediction
from jobs.splits.step_times import list_step_times
from jobs.splits.throughput import WorkFacts, rate_run
from jobs.splits.verdict import describe_run
from shardyard.contract.report import (
    DeviceMeasures,
    Finding,
    Pattern,
    PredictionCheck,
    Report,
    ReportDevice,
    Resumed,
    SplitWeights,
)
from workers.supervisor.report import notes
from workers.supervisor.report.hardware_state import HardwareState
from workers.supervisor.report.leased_devices import LeasedDevice, name_cards
from workers.supervisor.report.notes import DeviceCooperation, NoteFacts, RankNotes
from workers.supervisor.report.process_state import (
    ProcessState,
    ProcessTable,
    StepWork,
    sum_forwards,
    work_of_unknown_splits,
)
from workers.supervisor.report.script_observations import ScriptObservations
from workers.supervisor.report.shard_lines import ShardLine, ShardLinePrinter
from workers.supervisor.report.step_blocks import StepBlock
from workers.supervisor.report.step_counts import PHASES, StepCounts, StepPart
from workers.supervisor.report.step_joiner import JoinedStep, StepJoiner

#: Ranks of a process group that are counted.
MAX_RANKS = 4096
#: The series that has it.
LEARNING_RATE = "learning_rate"


@dataclass(frozen=True, slots=True)
class ReportSubject:
    """The attempt that a report is about; `lease` is in the order of its logical devices."""

    job_id: str
    attempt: int
    spec: JobSpec
    lease: tuple[LeasedDevice, ...]

    @property
    def virtual(self) -> bool:
        return self.lease[0].kind == "cpu"


class Aggregator(ABC):
    """Collects the records of one attempt's processes. One thread feeds it."""

    def __init__(
        self,
        subject: ReportSubject,
        prediction: Prediction,
        joiner: StepJoiner[StepPart],
        counts: StepCounts,
        use: DeviceCooperation,
    ) -> None:
        self._subject = subject
        self._prediction = prediction
        self._processes = ProcessTable(subject.spec.world_size)
        self._joiner = joiner
        self._counts = counts
        self._use = use
        self._printer = ShardLinePrinter(subject.spec.observe, subject.spec.parallelism.dim)
        self._found: dict[int, DeviceInfo] = {}
        self._rank_notes = RankNotes()
        self._malformed = self._uncounted = 0
        self._resumed: Resumed | None = None
        self._hardware = HardwareState()
        self._learning_rate: float | None = None  # the largest
        self._earlier_costs: list[RowCost] = []  # of the attempts that the report goes on from

    # -- taking records in -------------------------------------------------------------------------

    def add_record(self, rank: int, record: AnyRecord, source: int = 0) -> list[ShardLine]:
        """Take one record; returns the log lines about it.

        `source` is 0 for the rank's own process, and a number of its own for each that descends from it.

        Raises:
            ValueError: the attempt has no such rank.
        """
        if isinstance(record, Step):
            return self.add_steps(rank, (record,), source)
        process = self._processes.find_or_add(rank, source)
        if process is not None:
            self._add(process, record)
        return []

    def add_steps(self, rank: int, steps: Sequence[Step], source: int = 0) -> list[ShardLine]:
        """Take steps that one process sent one after another: the same as `add_record` of each, at a third of the cost.

        Raises:
            ValueError: the attempt has no such rank.
        """
        process = self._processes.find_or_add(rank, source)
        if process is None or not 0 <= process.rank < MAX_RANKS:
            self._uncounted += len(steps)
            return []
        process.last_step_at = steps[-1].at
        if process.source and (starter := self._processes.get(process.origin, 0)) is not None:
            starter.last_step_at = steps[-1].at  # it runs at least as long, and may take no step itself
        parts: list[tuple[Step, StepPart]] = []
        lines: list[ShardLine] = []
        for (phase, ids), group in groupby(steps, key=attrgetter("phase", "splits")):
            alike = list(group)
            if phase not in PHASES:
                self._uncounted += len(alike)
                continue
            known, work = self._find_work(process, ids)
            numbered = self._number_steps(process, alike)
            self._malformed += 0 if work.known else len(numbered)
            parts += [(step, StepPart(process.source, step, work)) for step in numbered]
            lines += self._printer.lines(process.rank, numbered, known)
        self._count(self._joiner.add_steps(process.rank, parts))
        return lines

    def add_block(self, rank: int, block: StepBlock, source: int = 0) -> list[ShardLine]:
        """Take a block of training steps of one process: what `add_steps` would count of them one by one, but for times
        that only one of them has.

        Raises:
            ValueError: the attempt has no such rank.
        """
        process = self._processes.find_or_add(rank, source)
        if process is None or not 0 <= process.rank < MAX_RANKS or block.sample.phase != "train":
            self._uncounted += block.count
            return []
        process.last_step_at = block.at
        known, work = self._find_work(process, block.sample.splits)
        (last,) = self._number_steps(process, [block.last])
        process.trained_forwards += (block.count - 1) * len(block.sample.splits)
        block = block.renumbered(last.step)
        self._malformed += 0 if work.known else block.count
        part = StepPart(process.source, block.sample, work, block)
        shown = block.steps() if self._printer.shows_each(block.first) else [block.untimed(block.first)]
        lines = self._printer.lines(process.rank, shown, known)
        self._count(self._joiner.add_block(process.rank, block.untimed(block.first), last, part))
        return lines

    def _find_work(self, process: ProcessState, ids: tuple[int, ...]) -> tuple[list[BatchSplit], StepWork]:
        """The splits of a step as far as they have come, and what they add up to."""
        known = [split for split in map(process.splits.get, ids) if split is not None]
        if not len(known) == len(ids) > 0:
            return known, work_of_unknown_splits(self._devices_of(process))
        return known, process.works.get(ids) or process.works.put(ids, sum_forwards(known), size=len(ids))

    def add_samples(self, samples: AttemptSamples, now: float) -> None:
        """Take what the node has sampled of the hardware: all samples up to `now`, in seconds since the epoch."""
        self._hardware.add(samples, self._counts.main_measures.steps, now, read_through=self._has_read_through())

    def add_metrics(self, metrics: Sequence[MetricSample]) -> None:
        """Take points of series that processes have sent."""
        rates = [one.value for one in metrics if one.name == LEARNING_RATE and 0 < one.value < math.inf]
        if rates:
            self._learning_rate = max(self._learning_rate or 0.0, *rates)

    def rank_ended(self, rank: int) -> None:
        """Note that a rank and all that descends from it have ended, and everything they sent was added."""
        for process in self._processes.all_processes():
            if process.origin == rank:
                self._end_process(process)

    def source_ended(self, rank: int, source: int) -> None:
        """Note that one process has ended and everything it sent was added; another may go on in its place."""
        process = self._processes.get(rank, source)
        if process is not None:
            self._end_process(process)

    def _end_process(self, process: ProcessState) -> None:
        """Steps do not wait for a rank none of whose processes may still send one."""
        if process.ended:
            return
        process.mark_ended()
        if not self._processes.has_successor(process):
            self._count(self._joiner.end_rank(process.rank))

    def _add(self, process: ProcessState, record: AnyRecord) -> None:
        match record:
            case BatchSplit():
                self._add_split(process, record)
            case DeviceInfo():
                if 0 <= record.device < len(self._subject.lease):
                    self._found.setdefault(record.device, record)
            case Outline():
                self._add_outline(record)
                process.gradient_bytes = record.gradient_bytes
            case NormLayers():
                process.gradients.add_norms(record)
            case Note():
                self._rank_notes.add(record)
            case ProgramBegan():
                process.program_began = record.at
            case Outcome():
                process.outcome = record
                process.program_ended = process.program_ended or record.at or None
            case Returned():
                process.outcome = process.outcome or record.outcome  # it may hang in what is left to run
                process.program_ended = record.at or None

    def _add_outline(self, outline: Outline) -> None:
        """The worker knows the data set's size even where the plan could not."""
        if self._prediction.train_rows is None and outline.dataset_rows is not None:
            self._prediction = predict_splits(self._subject.spec, outline.dataset_rows, self._prediction.eval_rows)

    def _add_split(self, process: ProcessState, split: BatchSplit) -> bool:
        """Keep a split; False where its fields do not fit together, or are no numbers of rows."""
        sizes = {len(split.devices), len(split.rows), len(split.input_shapes), len(split.output_shapes)}
        devices = set(split.devices)
        fits = sizes == {len(devices)} and devices <= set(range(len(self._subject.lease)))
        if not (fits and _are_counts((split.batch_rows, *split.rows))):
            self._malformed += 1
            return False
        process.splits.put(split)
        return True

    def _number_steps(self, process: ProcessState, steps: Sequence[Step]) -> Sequence[Step]:
        """Steps with the numbers that the report gives them."""
        return steps

    def _devices_of(self, process: ProcessState) -> tuple[int, ...]:
        devices = len(self._subject.lease)
        return (process.rank % devices,) if len(self._processes.expected) > 1 else tuple(range(devices))

    def _count(self, steps: Sequence[JoinedStep[StepPart]]) -> None:
        self._counts.count(steps, self._processes.expected)

    # -- from one attempt to the next --------------------------------------------------------------

    def dump_state(self) -> bytes:
        """What the next attempt needs to go on with this report, as of a checkpoint.

        To be called when every rank has sent all its steps up to one training step (and the evaluation after it, if
        any took place), and none beyond: a step that only some ranks have sent then is one that the others skip.

        Raises:
            ValueError: each attempt begins this report anew; or it cannot be encoded.
        """
        raise ValueError("a script's report is not carried over: each attempt begins its own")

    def load_state(self, data: bytes) -> None:
        """Go on where an earlier attempt of the same job was when it made `data`; before any step is added.

        Raises:
            ValueError: `data` cannot be read, or is of another version or another job. Nothing has changed then.
        """
        raise ValueError("a script's report is not carried over: each attempt begins its own")

    # -- giving a report out -----------------------------------------------------------------------

    def make_report(self, final: bool, last_line: str = "", now: float | None = None) -> Report:
        """The report on everything added so far. `final`: all ranks have ended, nothing more will come.

        `last_line` is the last that a script has printed, `now` the time in seconds since the epoch.
        """
        if final:
            self._count(self._joiner.flush())
        subject, use, measures, walls_ms = self._subject, self._use, self._counts.main_measures, self._walls_ms(now)
        patterns = self._counts.patterns.listed_patterns()
        overflowed = self._counts.patterns.overflowed
        prediction, remark = PredictionCheck(None, []), None
        if final:
            complete = self._processes.succeeded
            prediction, remark = check_prediction(self._prediction, patterns, complete=complete, overflowed=overflowed)
        findings, seen = self._find_problems(patterns, final, last_line, now)
        leased, work = tuple(map(self._describe_device, subject.lease)), self._describe_work()
        devices, what_if = measures.devices(walls_ms, work), measures.what_if(walls_ms)
        run, nodes = self._describe_timed_run(walls_ms), [device.node for device in subject.lease]
        of_time = [*find_time_problems(measures, run), *find_uneven_work(self._counts.work, measures, run)]
        of_hardware = find_hardware_problems(self._hardware.samples, self._describe_hardware_run(devices, patterns))
        findings = rank_findings([*findings, *of_time, *of_hardware])
        report = Report(
            job_id=subject.job_id,
            attempt=subject.attempt,
            final=final,
            strategy=subject.spec.parallelism.strategy,
            device_kind=subject.lease[0].kind,
            virtual=subject.virtual,
            devices=leased,
            patterns=self._counts.patterns.to_report(),
            per_device=devices,
            primitives=measures.primitives() if use.scatters else None,
            balance=measures.balance(use.gathers_on if use.scatters and not subject.virtual else None, nodes),
            prediction=prediction,
            findings=tuple(findings),
            notes={},
            rehearsal=subject.spec.rehearsal,
            resumed=self._resumed,
            what_if=what_if,
            verdict=describe_run(devices, what_if),
            hardware=self._hardware.summaries(),
            learning_rate=self._learning_rate,
            per_node=measure_nodes(nodes, devices, measures.waited_ms()),
            step_times=list_step_times(measures, work.rows) if final else (),
            weights=self._describe_weights(),
            **msgspec.structs.asdict(rate_run(devices, work)),
        )
        facts = NoteFacts(
            seen=seen,
            prediction=self._prediction,
            on_prediction=remark,
            use=self._use,
            counts=self._counts,
            joiner=self._joiner,
            malformed=self._malformed,
            uncounted=self._uncounted,
            rank_notes=self._rank_notes.by_field,
        )
        return msgspec.structs.replace(report, notes=notes.make_notes(report, facts))

    def own_row_times(self) -> list[float | None]:
        """Milliseconds for a row on each device, in this attempt alone."""
        costs = [RowCost.of(device) for device in self._counts.main_measures.sums.devices]
        if self._earlier_costs:
            costs = [cost.since(earlier) for cost, earlier in zip(costs, self._earlier_costs, strict=True)]
        return [cost.ms_per_row for cost in costs]

    @abstractmethod
    def _find_problems(
        self, patterns: Sequence[Pattern], final: bool, last_line: str, now: float | None
    ) -> tuple[Sequence[Finding], ScriptObservations | None]:
        """The findings, and what was seen of a script; None of a recipe."""

    def _describe_weights(self) -> SplitWeights | None:
        """The effect of dividing rows by weights; `None` where the service does not."""
        return None

    def _describe_timed_run(self, walls_ms: Sequence[float | None]) -> TimedRun:
        spec, lease, main = self._subject.spec, self._subject.lease, self._counts.main_phase
        recipe = spec.program if isinstance(spec.program, RecipeProgram) else None
        straggler = recipe.straggler if recipe is not None else None
        return TimedRun(
            scatters=self._use.scatters,
            virtual=self._subject.virtual,
            is_script=recipe is None,
            ranks=[self._rank_of_device(device.logical) for device in lease],
            nodes=[device.node for device in lease],
            walls_ms=walls_ms,
            num_workers=self._num_workers(),
            straggler=None if straggler is None else straggler.device if straggler.rank is None else straggler.rank,
            is_work_alike=not any(one.shapes_vary for one in self._counts.patterns.to_report() if one.phase == main),
            cards=name_cards(lease),
            weights=None if recipe is None else spec.weights,
            takes_weights=recipe is not None and spec.parallelism.strategy in ("dp", "ddp") and len(lease) > 1,
            gradient_bytes=self._gradient_bytes(),
        )

    def _describe_hardware_run(self, measures: Sequence[DeviceMeasures], patterns: Sequence[Pattern]) -> HardwareRun:
        spec, use, main = self._subject.spec, self._use, self._counts.main_phase
        return HardwareRun(
            measures=measures,
            devices=[self._describe_device(one) for one in self._subject.lease],
            traces=self._hardware.traces,
            virtual=self._subject.virtual,
            is_script=not isinstance(spec.program, RecipeProgram),
            output_device=use.gathers_on if use.scatters and not self._subject.virtual else None,
            batch_rows=max((one.batch_rows or 0 for one in patterns if one.phase == main), default=0),
        )

    def _has_read_through(self) -> bool:
        """Whether a pass over the training data is over; a recipe's data is all there from the beginning."""
        return True

    def _num_workers(self) -> int | None:
        """Processes that make the batches of each rank, where that is known."""
        program = self._subject.spec.program
        return program.data.num_workers if isinstance(program, RecipeProgram) else None

    def _gradient_bytes(self) -> int | None:
        """What each rank contributes to a reduction, where all that told it agree."""
        told = {one.gradient_bytes for one in self._processes.all_processes() if one.gradient_bytes is not None}
        return told.pop() if len(told) == 1 else None

    def _describe_work(self) -> WorkFacts:
        main, lease = self._counts.main_phase, self._subject.lease
        shares_tensors = any(process.shares_tensors for process in self._processes.all_processes())
        return WorkFacts(
            peaks=[find_peaks(self._describe_device(device).name) for device in lease],
            is_work_alike=not any(one.shapes_vary for one in self._counts.patterns.to_report() if one.phase == main),
            rows="unknown" if shares_tensors else "same" if self._use.placed else "own",
        )

    def _walls_ms(self, now: float | None) -> list[float | None]:
        """For each device how long the program of its rank has run."""
        return [self._wall_ms_of(self._rank_of_device(device.logical), now) for device in self._subject.lease]

    def _wall_ms_of(self, rank: int, now: float | None) -> float | None:
        """Ranks that a rank has started itself run as long as it does."""
        process = self._processes.get(rank, 0) or self._processes.get(0, 0)
        return None if process is None else process.wall_ms(now)

    def _rank_of_device(self, device: int) -> int:
        return device if self._processes.ranks > 1 else 0

    def _describe_device(self, leased: LeasedDevice) -> ReportDevice:
        found = self._found.get(leased.logical) or leased
        rank = self._rank_of_device(leased.logical)
        return ReportDevice(leased.logical, leased.id, leased.node, found.name, rank, found.memory_total_bytes)


def _are_counts(numbers: Sequence[int | None]) -> bool:
    """Whether all that are known are possible numbers of rows, which can be added up."""
    return all(number is None or 0 <= number <= MAX_COUNT for number in numbers)
