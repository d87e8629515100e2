"""Makes the split report (`shardyard.contract.report`) of what the ranks of one attempt send.

The supervisor feeds an `Aggregator` with the records of all ranks as they come, and takes a
`Report` from it whenever it wants one. Identical splits collapse into one pattern and times go into
sketches, so neither memory nor a report grows with the number of steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import msgspec

from jobs.model.spec import JobSpec, RecipeProgram
from jobs.protocol.records import (
    Activity,
    AnyRecord,
    Began,
    DeviceInfo,
    Group,
    Loaded,
    Note,
    Outcome,
    Outline,
    Returned,
    Shape,
    Split,
    Step,
    Wrapped,
)
from jobs.splits.lint import lint_splits
from jobs.splits.plan import Prediction, predict_splits
from jobs.splits.plan_check import check_prediction
from jobs.splits.timings import Measures, Share, Sums
from shardyard.contract.report import Pattern, PredictionCheck, Report, ReportDevice, Resumed
from workers.supervisor.report import aggregator_state, notes
from workers.supervisor.report.notes import Facts
from workers.supervisor.report.patterns import MAX_PATTERNS, Patterns, Whole
from workers.supervisor.report.rank_state import (
    MAX_CACHED,
    SHARDING,
    Process,
    Recent,
    Work,
    add_up,
    total,
    unknown_work,
)
from workers.supervisor.report.script_lint import Sight, find
from workers.supervisor.report.shard_lines import Printer, ShardLine
from workers.supervisor.report.step_joiner import Joined, Joiner, by_epoch, by_round

#: Processes beside the ranks' own that are told apart, and ranks of a process group that are counted.
MAX_DESCENDANTS = 256
MAX_RANKS = 256
#: No process group is larger than this.
MAX_WORLD = 65_536
#: In order of what the numbers of devices are about.
PHASES = ("train", "forward", "eval")
#: Notes that are taken from the ranks of one attempt, and the length of each.
MAX_NOTES = 100
MAX_NOTE_LENGTH = 500


@dataclass(frozen=True, slots=True)
class LeasedDevice:
    """A device of the attempt: `logical` is its index within the lease, `kind` is "cuda" or "cpu"."""

    logical: int
    id: str
    node: str
    kind: str
    name: str
    memory_total_bytes: int | None = None


class _Part(NamedTuple):
    """What one rank did in one step."""

    source: int
    step: Step
    work: Work


@dataclass(frozen=True, slots=True)
class _Division:
    """One step as a whole: module by module, and the rows of each device in all modules."""

    wholes: tuple[Whole, ...]
    rows: tuple[int | None, ...]


def _phase_and_splits(step: Step) -> tuple[str, tuple[int, ...]]:
    return step.phase, step.splits


def _division_key(joined: Joined[_Part]) -> tuple[object, ...]:
    """Steps with the same key were divided in the same way by the same processes, where their splits are known."""
    sent = joined.parts.items()
    same = [(rank, part.source, part.step.splits, part.work.known) for rank, part in sent]
    return joined.phase, *(same if len(same) == 1 else sorted(same))


class Aggregator:
    """Collects the records of one attempt's processes. One thread feeds it."""

    def __init__(
        self, job_id: str, attempt: int, spec: JobSpec, lease: Sequence[LeasedDevice], prediction: Prediction
    ) -> None:
        self._job_id, self._attempt, self._spec = job_id, attempt, spec
        self._lease = sorted(lease, key=lambda device: device.logical)
        self._prediction = prediction
        self._virtual = self._lease[0].kind == "cpu"
        self._script = not isinstance(spec.program, RecipeProgram)
        self._ranks = spec.world_size
        self._processes = {(rank, 0): Process(rank, 0, rank) for rank in range(self._ranks)}
        self._expected = set(range(self._ranks))
        self._numbers: dict[tuple[int, str], int] = {}  # by rank and phase: its last step, over all its processes
        self._joiner: Joiner[_Part] = Joiner(
            self._ranks, by_round() if self._script else by_epoch(), loose=self._script
        )
        self._placed = not self._script and spec.parallelism.strategy == "single" and len(self._lease) > 1
        self._sharded = spec.parallelism.strategy == "fsdp"
        self._scatters = not self._script and spec.parallelism.strategy == "dp"
        self._gathers_on = spec.parallelism.output_device
        self._main: str = "train" if self._script else spec.recipe.mode
        self._measures: dict[str, Measures] = {}  # by phase
        self._printer = Printer(spec.observe, spec.parallelism.dim)
        self._divisions: Recent[tuple[object, ...], _Division] = Recent(MAX_CACHED)
        self._patterns = Patterns()
        self._divided: dict[tuple[str, str], set[tuple[int, ...]]] = {}  # by phase and module: splits of forwards
        self._divided_ways = 0
        self._found: dict[int, DeviceInfo] = {}
        self._drivers: dict[int, int] = {}  # by device: the rank that used it first
        self._absent_from: dict[int, int] = {}
        self._rank_notes: dict[str, list[str]] = {}
        self._malformed = self._uncounted = 0
        self._crowded = False
        self._resumed: Resumed | None = None

    # -- taking records in -------------------------------------------------------------------------

    def feed(self, rank: int, record: AnyRecord, source: int = 0) -> list[ShardLine]:
        """Take one record; the answer has the log lines that it gives rise to.

        `source` is 0 for the rank's own process, and a number of its own for each that descends from it.

        Raises:
            ValueError: the attempt has no such rank.
        """
        process = self._sender(rank, source)
        if process is None:
            self._uncounted += isinstance(record, Step)
            return []
        match record:
            case Step():
                return self._take_steps(process, (record,))
            case Split():
                self._take_split(process, record)
            case Began():
                process.began = record
            case DeviceInfo():
                self._found.setdefault(record.device, record)
            case Outline():
                self._take_outline(record)
            case Note():
                self._take_note(record)
            case Outcome():
                process.outcome = record
            case Returned():
                process.outcome = process.outcome or record.outcome  # it may hang in what is left to run
            case Group():
                self._take_group(process, record)
            case Wrapped():
                process.wraps(record)
                if record.kind in SHARDING:
                    self._stop_comparing()
            case Loaded():
                process.loaded(record)
            case Activity():
                process.activity = record
        return []

    def feed_steps(self, rank: int, steps: Sequence[Step], source: int = 0) -> list[ShardLine]:
        """Take steps that one process sent one after another: the same as `feed` of each, at a third of the cost.

        Raises:
            ValueError: the attempt has no such rank.
        """
        process = self._sender(rank, source)
        if process is None:
            self._uncounted += len(steps)
            return []
        return self._take_steps(process, steps)

    def rank_ended(self, rank: int) -> None:
        """Say that a rank and all that descends from it have ended, and everything sent has been fed."""
        for process in self._processes.values():
            if process.origin == rank and not process.ended:
                self._end(process)

    def source_ended(self, rank: int, source: int) -> None:
        """Say that one process has ended and everything it sent has been fed; another may go on in its place."""
        process = self._processes.get((rank, source))
        if process is not None and not process.ended:
            self._end(process)

    def _end(self, process: Process) -> None:
        """Nobody waits for a rank none of whose processes may still send a step."""
        process.end()
        alive = [other for other in self._processes.values() if other.rank == process.rank and not other.ended]
        if not any(other.done or not process.done for other in alive):
            self._count(self._joiner.rank_ended(process.rank))

    def _sender(self, rank: int, source: int) -> Process | None:
        """Who sent a record; `None` when there are too many to tell apart. Raises ValueError as `feed` does."""
        if not 0 <= rank < self._ranks:
            raise ValueError(f"rank {rank} is outside the {self._ranks} ranks of this attempt")
        process = self._processes.get((rank, source))
        if process is None and len(self._processes) < self._ranks + MAX_DESCENDANTS:
            process = self._processes[rank, source] = Process(rank, source, rank)
        return process

    def _take_note(self, note: Note) -> None:
        """Ranks say the same; what they say differently is kept side by side."""
        field, reason = note.field[:MAX_NOTE_LENGTH], note.reason[:MAX_NOTE_LENGTH]
        reasons = self._rank_notes.get(field, [])
        if reason not in reasons and sum(map(len, self._rank_notes.values())) < MAX_NOTES:
            self._rank_notes[field] = [*reasons, reason]

    def _take_group(self, process: Process, group: Group) -> None:
        """The rank that counts is the one in the process group; a group of one says nothing. A group that cannot be
        (a script may say anything) is none."""
        if not 0 <= group.rank < group.world_size <= MAX_WORLD:
            return
        process.group = group
        if self._script and group.world_size > 1:
            process.rank = group.rank
            members = set(range(min(group.world_size, MAX_RANKS)))
            for rank in members:
                self._joiner.expect(rank)
            self._expected |= members

    def _stop_comparing(self) -> None:
        self._sharded = True
        for measures in self._measures.values():
            measures.comparable = False

    def _take_outline(self, outline: Outline) -> None:
        """The worker knows the data set's size even where the plan could not."""
        if self._prediction.train_rows is None and outline.dataset_rows is not None:
            self._prediction = predict_splits(self._spec, outline.dataset_rows, self._prediction.eval_rows)

    def _take_split(self, process: Process, split: Split) -> None:
        sizes = {len(split.devices), len(split.rows), len(split.input_shapes), len(split.output_shapes)}
        if len(sizes) > 1 or not all(0 <= device < len(self._lease) for device in split.devices):
            self._malformed += 1
            return
        process.splits.put(split)
        if self._script:
            self._look_at(process, split)

    def _look_at(self, process: Process, split: Split) -> None:
        """What nobody has said about a script, and one forward shows."""
        for device in split.devices:
            self._drivers.setdefault(device, process.rank)
        if len(split.devices) > 1:
            self._scatters, self._gathers_on = True, split.devices[0]
        rows = tuple(count for count in split.rows if count is not None)
        if len(rows) == len(split.rows) and self._divided_ways < MAX_PATTERNS:
            ways = self._divided.setdefault((split.phase, split.module), set())
            self._divided_ways += rows not in ways
            ways.add(rows)

    def _take_steps(self, process: Process, steps: Sequence[Step]) -> list[ShardLine]:
        if not 0 <= process.rank < MAX_RANKS:
            self._uncounted += len(steps)
            return []
        parts: list[tuple[Step, _Part]] = []
        lines: list[ShardLine] = []
        for (phase, ids), group in groupby(steps, key=_phase_and_splits):
            alike = list(group)
            if phase not in PHASES:
                self._uncounted += len(alike)
                continue
            known = [split for split in map(process.splits.get, ids) if split is not None]
            whole = len(known) == len(ids) > 0
            work = self._work(process, ids, known) if whole else unknown_work(self._devices_of(process))
            sent = [self._numbered(process, step) for step in alike] if self._script else alike
            self._malformed += 0 if whole else len(sent)
            parts += [(step, _Part(process.source, step, work)) for step in sent]
            lines += self._printer.lines(process.rank, sent, known)
        self._count(self._joiner.feed(process.rank, parts))
        return lines

    def _work(self, process: Process, ids: tuple[int, ...], splits: Sequence[Split]) -> Work:
        return process.works.get(ids) or process.works.put(ids, add_up(splits))

    def _numbered(self, process: Process, step: Step) -> Step:
        """A process counts its own steps; those of the next one at the same rank go on where it left off."""
        which = process.rank, step.phase
        number = self._numbers[which] = self._numbers.get(which, -1) + process.step(step)
        return step if number == step.step else msgspec.structs.replace(step, step=number)

    def _devices_of(self, process: Process) -> tuple[int, ...]:
        if len(self._expected) > 1:
            return (process.rank % len(self._lease),)
        return tuple(range(len(self._lease)))

    # -- counting whole steps ----------------------------------------------------------------------

    def _count(self, steps: Sequence[Joined[_Part]]) -> None:
        for _, alike in groupby(steps, key=_division_key):
            self._count_alike(list(alike))

    def _count_alike(self, steps: Sequence[Joined[_Part]]) -> None:
        """Count steps in which the same processes divided their batches in the same way."""
        first = steps[0]
        division = self._join(first)
        numbers = [joined.step for joined in steps]
        for whole in division.wholes:
            self._patterns.add(numbers, whole)
        if self._script or first.phase == self._main:
            measures = self._measures.get(first.phase) or self._begin(first.phase)
            measures.add(self._shares(steps, division), len(steps))
        if first.phase == self._main:
            self._note_absent(first)

    def _begin(self, phase: str) -> Measures:
        """The numbers of devices are about one phase. Which one a script has, if it never trains, shows as it runs."""
        measures = self._measures[phase] = self._new_measures()
        self._main = min(self._measures, key=PHASES.index)
        return measures

    def _new_measures(self, sums: Sums | None = None) -> Measures:
        in_turn = self._virtual and (self._script or self._spec.parallelism.strategy == "dp")
        comparable = not self._placed and not self._sharded
        return Measures(sums or Sums.none(len(self._lease)), in_turn=in_turn, comparable=comparable)

    def _join(self, joined: Joined[_Part]) -> _Division:
        same = _division_key(joined)
        parts = sorted(joined.parts.items())
        known = all(part.work.known for _, part in parts)
        cached = self._divisions.get(same) if known else None
        if cached is not None:
            return cached
        modules = dict.fromkeys(batch.module for _, part in parts if part.work.known for batch in part.work.batches)
        wholes = tuple(self._whole(joined, module) for module in modules or [""])
        division = _Division(wholes, tuple(map(total, zip(*(whole.rows for whole in wholes), strict=True))))
        return self._divisions.put(same, division) if known else division

    def _whole(self, joined: Joined[_Part], module: str) -> Whole:
        rows: list[int | None] = [0] * len(self._lease)
        inputs: list[Shape | None] = [None] * len(self._lease)
        outputs: list[Shape | None] = [None] * len(self._lease)
        batch_rows: list[int | None] = []
        for _, part in sorted(joined.parts.items()):
            for batch in part.work.batches:
                if part.work.known and batch.module != module:
                    continue
                batch_rows.append(batch.batch_rows)
                for place, device in enumerate(batch.devices):
                    rows[device] = total([rows[device], batch.rows[place]])
                    inputs[device] = inputs[device] or batch.input_shapes[place]
                    outputs[device] = outputs[device] or batch.output_shapes[place]
        return Whole(joined.phase, module, total(batch_rows), tuple(rows), tuple(inputs), tuple(outputs))

    def _note_absent(self, joined: Joined[_Part]) -> None:
        if len(joined.parts) < len(self._expected):
            for rank in self._expected:
                if rank not in joined.parts:
                    self._absent_from.setdefault(rank, joined.step)

    def _shares(self, steps: Sequence[Joined[_Part]], division: _Division) -> list[Share]:
        shares: list[Share | None] = [None] * len(self._lease)
        for rank, part in steps[0].parts.items():
            sent = [joined.parts[rank].step for joined in steps]
            for place, device in enumerate(part.work.devices):
                crowded = shares[device] is not None
                self._crowded = self._crowded or crowded
                shares[device] = Share(division.rows[device], None if crowded else sent, place)
        return [share or Share(count, None) for share, count in zip(shares, division.rows, strict=True)]

    # -- from one attempt to the next --------------------------------------------------------------

    def dump(self) -> bytes:
        """What the next attempt of a recipe needs to go on with this report, as of a checkpoint.

        To be called when every rank has sent all its steps up to one training step (and the evaluation after it, if
        any took place), and none beyond: a step that only some ranks have sent then is one that the others skip.

        Raises:
            ValueError: this is a script's report, which each attempt begins anew; or it cannot be encoded.
        """
        self._count(self._joiner.flush())
        measures = {phase: one.sums for phase, one in self._measures.items()}
        return aggregator_state.encode(
            aggregator_state.State(
                version=aggregator_state.VERSION,
                about=self._about(),
                attempt=self._attempt,
                step=measures[self._main].steps if self._main in measures else 0,
                gone=self._joiner.gone,
                forced=self._joiner.forced,
                late=self._joiner.late,
                measures=measures,
                patterns=list(self._patterns.kept.values()),
                other=self._patterns.other,
                absent_from=self._absent_from,
                notes=self._rank_notes,
                malformed=self._malformed,
                uncounted=self._uncounted,
                crowded=self._crowded,
            )
        )

    def load(self, data: bytes) -> None:
        """Go on where an earlier attempt of the same job was when it made `data`; before any step is fed.

        Raises:
            ValueError: `data` cannot be read, or is of another version or another job. Nothing has changed then.
        """
        state = aggregator_state.decode(data, self._about())
        said, self._rank_notes = self._rank_notes, state.notes
        for note in (Note(field, reason) for field, reasons in said.items() for reason in reasons):
            self._take_note(note)
        self._measures = {phase: self._new_measures(sums) for phase, sums in state.measures.items()}
        kept = {count.first.key: count for count in state.patterns if count.first is not None}
        self._patterns = Patterns(kept, state.other)
        self._joiner.begin_after(state.gone, forced=state.forced, late=state.late)
        self._absent_from = state.absent_from
        self._malformed, self._uncounted, self._crowded = state.malformed, state.uncounted, state.crowded
        self._resumed = Resumed(state.step, state.attempt)

    def _about(self) -> aggregator_state.About:
        if self._script:
            raise ValueError("a script's report is not carried over: each attempt begins its own")
        return aggregator_state.About(
            job_id=self._job_id,
            strategy=self._spec.parallelism.strategy,
            ranks=self._ranks,
            devices=len(self._lease),
            phase=self._main,
        )

    # -- giving a report out -----------------------------------------------------------------------

    def snapshot(self, final: bool, last_line: str = "", now: float | None = None) -> Report:
        """The report on everything fed so far. `final`: all ranks have ended, nothing more will come.

        `last_line` is the last that a script has printed, `now` the time in seconds since the epoch.
        """
        if final:
            self._count(self._joiner.flush())
        how = self._spec.parallelism
        kept = self._patterns.told_apart()
        measures = self._measures.get(self._main) or self._new_measures()
        gathers_on = self._gathers_on if self._scatters and not self._virtual else None
        prediction, remark = self._check(kept) if final else (PredictionCheck(None, []), None)
        sight = self._sight(kept, final, last_line, now) if self._script else None
        findings = (
            find(sight)
            if sight is not None
            else lint_splits(self._spec, kept, self._prediction.train_rows)
            if kept
            else ()
        )
        report = Report(
            job_id=self._job_id,
            attempt=self._attempt,
            final=final,
            strategy=how.strategy,
            device_kind=self._lease[0].kind,
            virtual=self._virtual,
            devices=tuple(self._device(device) for device in self._lease),
            patterns=self._patterns.all(),
            per_device=measures.devices(),
            primitives=measures.primitives() if self._scatters else None,
            balance=measures.balance(gathers_on),
            prediction=prediction,
            findings=tuple(findings),
            notes={},
            rehearsal=self._spec.rehearsal,
            resumed=self._resumed,
        )
        facts = self._facts(sight, remark)
        return msgspec.structs.replace(report, notes=notes.notes(report, measures, facts))

    @property
    def _complete(self) -> bool:
        outcomes = [self._processes[rank, 0].outcome for rank in range(self._ranks)]
        return all(outcome is not None and outcome.exit_code == 0 for outcome in outcomes)

    def _check(self, kept: Sequence[Pattern]) -> tuple[PredictionCheck, str | None]:
        return check_prediction(self._prediction, kept, complete=self._complete, overflowed=self._patterns.overflowed)

    def _sight(self, kept: Sequence[Pattern], final: bool, last_line: str, now: float | None) -> Sight:
        return Sight(
            spec=self._spec,
            virtual=self._virtual,
            phase=self._main,
            patterns=kept,
            divided={module: splits for (phase, module), splits in self._divided.items() if phase == self._main},
            processes=tuple(self._processes.values()),
            final=final,
            succeeded=final and self._complete,
            last_line=last_line,
            blind="; ".join(self._rank_notes.get("per_device", [])),
            now=now,
        )

    def _device(self, leased: LeasedDevice) -> ReportDevice:
        found = self._found.get(leased.logical)
        return ReportDevice(
            device=leased.logical,
            id=leased.id,
            node=leased.node,
            name=found.name if found is not None else leased.name,
            rank=self._drivers.get(leased.logical, leased.logical if self._ranks > 1 else 0),
            memory_total_bytes=found.memory_total_bytes if found is not None else leased.memory_total_bytes,
        )

    def _facts(self, sight: Sight | None, on_prediction: str | None) -> Facts:
        return Facts(
            phase=self._main,
            sight=sight,
            prediction=self._prediction,
            on_prediction=on_prediction,
            scatters=self._scatters,
            placed=self._placed,
            sharded=self._sharded,
            crowded=self._crowded,
            overflowed=self._patterns.overflowed,
            malformed=self._malformed,
            uncounted=self._uncounted,
            forced=self._joiner.forced,
            late=self._joiner.late,
            absent_from=self._absent_from,
            said=self._rank_notes,
        )
