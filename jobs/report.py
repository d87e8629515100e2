"""The split report: what each device got of every batch, what it cost there, and what to change.

The supervisor feeds an `Aggregator` with the records of all ranks as they come, and takes a
`Report` from it whenever it wants one. Identical splits collapse into one pattern and times go into
sketches, so neither memory nor a report grows with the number of steps.

`patterns` has every phase. `per_device`, `primitives` and `balance` are about the main phase alone
(train, or forward in forward mode): an evaluation runs other code at another batch size, and mixing
the two would hide both.

A number that could not be measured is `None`, and `notes` says why: its keys are paths in the report
("per_device.comm_ms"). Units are in the names; times are milliseconds where a name ends in `_ms`.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from jobs.joining import Joined, Joiner
from jobs.lint import Finding, lint
from jobs.measures import Balance, DeviceMeasures, Measures, PrimitiveTimings, Share
from jobs.plan import Pattern, Prediction, predict
from jobs.prediction_check import PredictionCheck, check
from jobs.shard_lines import Printer, ShardLine
from jobs.spec import JobSpec, RecipeProgram
from jobs.telemetry import MAX_INTERNED, AnyRecord, DeviceInfo, Note, Outcome, Outline, Shape, Split, Step

__all__ = ["Aggregator", "LeasedDevice", "Report", "ReportDevice", "ShardLine", "decode", "encode"]

#: Different splits that a report keeps; the rest counts in one pattern of the phase "other".
MAX_PATTERNS = 256
#: Splits from `MAX_INTERNED` on are sent anew for every step, so only the latest are kept.
MAX_PASSING_SPLITS = 64
#: Sums over micro-batches and over ranks that are kept to save time.
MAX_CACHED = 256
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


class ReportDevice(msgspec.Struct, frozen=True):
    device: int
    id: str
    node: str
    name: str
    rank: int
    memory_total_bytes: int | None


class Report(msgspec.Struct, frozen=True):
    job_id: str
    attempt: int
    final: bool
    strategy: str
    device_kind: str
    virtual: bool
    devices: tuple[ReportDevice, ...]
    patterns: tuple[Pattern, ...]
    per_device: tuple[DeviceMeasures, ...]
    primitives: PrimitiveTimings | None
    balance: Balance
    prediction: PredictionCheck
    findings: tuple[Finding, ...]
    notes: dict[str, str]


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Report)


def encode(report: Report) -> bytes:
    """The report as JSON."""
    return _encoder.encode(report)


def decode(body: bytes) -> Report:
    """Read a report from JSON; fields that this version does not know are ignored.

    Raises:
        ValueError: the bytes are not a report.
    """
    return _decoder.decode(body)


K = TypeVar("K")
V = TypeVar("V")


class _Recent(Generic[K, V]):
    """A mapping of bounded size that forgets what was not used for longest."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key]

    def put(self, key: K, value: V) -> V:
        self._entries[key] = value
        if len(self._entries) > self._size:
            self._entries.popitem(last=False)
        return value


class _Splits:
    """The splits of one rank, by id."""

    def __init__(self) -> None:
        self._kept: dict[int, Split] = {}
        self._passing: _Recent[int, Split] = _Recent(MAX_PASSING_SPLITS)

    def get(self, number: int) -> Split | None:
        return self._kept.get(number) or self._passing.get(number)

    def put(self, split: Split) -> None:
        if len(self._kept) < MAX_INTERNED:
            self._kept[split.id] = split
        else:
            self._passing.put(split.id, split)


@dataclass(frozen=True, slots=True)
class _Batch:
    """What one rank did with its part of one step, micro-batches added up."""

    module: str
    batch_rows: int | None
    devices: tuple[int, ...]
    rows: tuple[int | None, ...]
    input_shapes: tuple[Shape | None, ...]
    output_shapes: tuple[Shape | None, ...]


@dataclass(frozen=True, slots=True)
class _Part:
    step: Step
    batch: _Batch


_PatternKey = tuple[str, str, int | None, tuple[int | None, ...]]


@dataclass(frozen=True, slots=True)
class _Whole:
    """The batches of all ranks in one step, by logical device."""

    key: _PatternKey
    input_shapes: tuple[Shape | None, ...]
    output_shapes: tuple[Shape | None, ...]


@dataclass(slots=True)
class _Count:
    first: _Whole | None
    shapes_vary: bool = False
    steps: int = 0
    first_step: int | None = None
    last_step: int | None = None

    def add(self, step: int) -> None:
        self.steps += 1
        self.first_step = step if self.first_step is None else min(self.first_step, step)
        self.last_step = step if self.last_step is None else max(self.last_step, step)


class Aggregator:
    """Collects the records of one attempt's ranks. One thread feeds it."""

    def __init__(
        self, job_id: str, attempt: int, spec: JobSpec, lease: Sequence[LeasedDevice], prediction: Prediction
    ) -> None:
        self._job_id, self._attempt, self._spec = job_id, attempt, spec
        self._lease = sorted(lease, key=lambda device: device.logical)
        self._prediction = prediction
        self._virtual = self._lease[0].kind == "cpu"
        self._main = (
            "forward" if isinstance(spec.program, RecipeProgram) and spec.program.mode == "forward" else "train"
        )
        self._ranks = spec.world_size
        self._joiner: Joiner[_Part] = Joiner(self._ranks)
        self._placed = spec.parallelism.strategy == "single" and len(self._lease) > 1
        in_turn = self._virtual and spec.parallelism.strategy == "dp"
        comparable = not self._placed and spec.parallelism.strategy != "fsdp"
        self._measures = Measures(len(self._lease), in_turn=in_turn, comparable=comparable)
        self._printer = Printer(spec.observe, spec.parallelism.dim)
        self._splits = [_Splits() for _ in range(self._ranks)]
        self._batches: list[_Recent[tuple[int, ...], _Batch]] = [_Recent(MAX_CACHED) for _ in range(self._ranks)]
        self._wholes: _Recent[tuple[object, ...], _Whole] = _Recent(MAX_CACHED)
        self._patterns: dict[_PatternKey, _Count] = {}
        self._other = _Count(None)
        self._found: dict[int, DeviceInfo] = {}
        self._outcomes: dict[int, Outcome] = {}
        self._absent_from: dict[int, int] = {}
        self._rank_notes: dict[str, str] = {}
        self._malformed = 0

    # -- taking records in -------------------------------------------------------------------------

    def feed(self, rank: int, record: AnyRecord) -> list[ShardLine]:
        """Take one record of one rank; the answer has the log lines that it gives rise to.

        Raises:
            ValueError: the attempt has no such rank.
        """
        if not 0 <= rank < self._ranks:
            raise ValueError(f"rank {rank} is outside the {self._ranks} ranks of this attempt")
        match record:
            case Step():
                return self._take_step(rank, record)
            case Split():
                self._take_split(rank, record)
            case DeviceInfo():
                self._found.setdefault(record.device, record)
            case Outline():
                self._take_outline(record)
            case Note():
                if len(self._rank_notes) < MAX_NOTES:
                    self._rank_notes.setdefault(record.field[:MAX_NOTE_LENGTH], record.reason[:MAX_NOTE_LENGTH])
            case Outcome():
                self._outcomes.setdefault(rank, record)
        return []

    def rank_ended(self, rank: int) -> None:
        """Say that a rank has ended and everything it sent has been fed: nobody waits for it now."""
        self._count(self._joiner.rank_ended(rank))

    def _take_outline(self, outline: Outline) -> None:
        """The worker knows the data set's size even where the plan could not."""
        if self._prediction.train_rows is None and outline.dataset_rows is not None:
            self._prediction = predict(self._spec, outline.dataset_rows, self._prediction.eval_rows)

    def _take_split(self, rank: int, split: Split) -> None:
        sizes = {len(split.devices), len(split.rows), len(split.input_shapes), len(split.output_shapes)}
        if len(sizes) > 1 or not all(0 <= device < len(self._lease) for device in split.devices):
            self._malformed += 1
            return
        self._splits[rank].put(split)

    def _take_step(self, rank: int, step: Step) -> list[ShardLine]:
        known = [split for split in map(self._splits[rank].get, step.splits) if split is not None]
        if len(known) < len(step.splits) or not known:
            self._malformed += 1
            batch = self._unknown_batch(rank)
        else:
            batch = self._batches[rank].get(step.splits) or self._batches[rank].put(step.splits, _add_up(known))
        self._count(self._joiner.feed(rank, step, _Part(step, batch)))
        return self._printer.lines(rank, step, known)

    def _unknown_batch(self, rank: int) -> _Batch:
        devices = (rank,) if self._ranks > 1 else tuple(range(len(self._lease)))
        unknown = (None,) * len(devices)
        return _Batch("", None, devices, unknown, unknown, unknown)

    # -- counting whole steps ----------------------------------------------------------------------

    def _count(self, steps: Sequence[Joined[_Part]]) -> None:
        for joined in steps:
            whole = self._join(joined)
            self._count_pattern(joined, whole)
            if joined.phase == self._main:
                self._note_absent(joined)
                self._measures.add(self._shares(joined, whole))

    def _join(self, joined: Joined[_Part]) -> _Whole:
        parts = sorted(joined.parts.items())
        same = (joined.phase, *((rank, part.step.splits) for rank, part in parts))
        known = all(part.batch.module or part.batch.batch_rows is not None for _, part in parts)
        cached = self._wholes.get(same) if known else None
        if cached is not None:
            return cached
        batches = [part.batch for _, part in parts]
        rows: list[int | None] = [0] * len(self._lease)
        inputs: list[Shape | None] = [None] * len(self._lease)
        outputs: list[Shape | None] = [None] * len(self._lease)
        for batch in batches:
            for place, device in enumerate(batch.devices):
                rows[device] = batch.rows[place]
                inputs[device], outputs[device] = batch.input_shapes[place], batch.output_shapes[place]
        batch_rows = _sum([batch.batch_rows for batch in batches])
        whole = _Whole((joined.phase, batches[0].module, batch_rows, tuple(rows)), tuple(inputs), tuple(outputs))
        return self._wholes.put(same, whole) if known else whole

    def _count_pattern(self, joined: Joined[_Part], whole: _Whole) -> None:
        count = self._patterns.get(whole.key)
        if count is None and len(self._patterns) < MAX_PATTERNS:
            count = self._patterns[whole.key] = _Count(whole)
        if count is None:
            count = self._other
        first = count.first
        if first is not None and first is not whole and not count.shapes_vary:
            count.shapes_vary = (first.input_shapes, first.output_shapes) != (whole.input_shapes, whole.output_shapes)
        count.add(joined.step)

    def _note_absent(self, joined: Joined[_Part]) -> None:
        if len(joined.parts) < self._ranks:
            for rank in range(self._ranks):
                if rank not in joined.parts:
                    self._absent_from.setdefault(rank, joined.step)

    def _shares(self, joined: Joined[_Part], whole: _Whole) -> list[Share]:
        rows = whole.key[3]
        shares = [Share(count, None, 0) for count in rows]
        for part in joined.parts.values():
            for place, device in enumerate(part.batch.devices):
                shares[device] = Share(rows[device], part.step, place)
        return shares

    # -- giving a report out -----------------------------------------------------------------------

    def snapshot(self, final: bool) -> Report:
        """The report on everything fed so far. `final`: all ranks have ended, nothing more will come."""
        if final:
            self._count(self._joiner.flush())
        how = self._spec.parallelism
        kept = [_pattern(key, count) for key, count in self._patterns.items()]
        gathers_on = how.output_device if how.strategy == "dp" and not self._virtual else None
        prediction, remark = self._check(kept) if final else (PredictionCheck(None, []), None)
        report = Report(
            job_id=self._job_id,
            attempt=self._attempt,
            final=final,
            strategy=how.strategy,
            device_kind=self._lease[0].kind,
            virtual=self._virtual,
            devices=tuple(self._device(device) for device in self._lease),
            patterns=(*kept, *([_other_pattern(self._other)] if self._other.steps else [])),
            per_device=self._measures.devices(),
            primitives=self._measures.primitives() if how.strategy == "dp" else None,
            balance=self._measures.balance(gathers_on),
            prediction=prediction,
            findings=tuple(lint(self._spec, kept, self._prediction.train_rows)) if kept else (),
            notes={},
        )
        return msgspec.structs.replace(report, notes=self._notes(report, remark))

    @property
    def _complete(self) -> bool:
        return len(self._outcomes) == self._ranks and all(one.exit_code == 0 for one in self._outcomes.values())

    def _check(self, kept: Sequence[Pattern]) -> tuple[PredictionCheck, str | None]:
        return check(self._prediction, kept, complete=self._complete, overflowed=self._other.steps > 0)

    def _device(self, leased: LeasedDevice) -> ReportDevice:
        found = self._found.get(leased.logical)
        return ReportDevice(
            device=leased.logical,
            id=leased.id,
            node=leased.node,
            name=found.name if found is not None else leased.name,
            rank=leased.logical if self._ranks > 1 else 0,
            memory_total_bytes=found.memory_total_bytes if found is not None else leased.memory_total_bytes,
        )

    def _notes(self, report: Report, remark: str | None) -> dict[str, str]:
        """Remarks, what the ranks said, and a reason for every `None` that nobody has explained yet."""
        notes: dict[str, str] = {}
        for field, text in [*self._remarks(report), *([("prediction", remark)] if remark else [])]:
            notes[field] = f"{notes[field]}; {text}" if field in notes else text
        for field, text in self._rank_notes.items():
            notes[field] = f"{text}; {notes[field]}" if field in notes else text
        for field in _nulls(report):
            notes.setdefault(field, self._reason(field, report))
        return notes

    def _remarks(self, report: Report) -> Iterator[tuple[str, str]]:
        for rank, step in sorted(self._absent_from.items()):
            yield "patterns.rows", f"rank {rank} sent nothing for step {step}; where it is absent it counts 0 rows"
        if self._other.steps:
            yield "patterns", f'only {MAX_PATTERNS} splits are kept apart; the rest counts in the phase "other"'
        if self._malformed:
            yield "patterns", f"{self._malformed} records did not fit together, so their rows are not counted"
        if self._joiner.forced or self._joiner.late:
            forced, late = self._joiner.forced, self._joiner.late
            yield (
                "patterns",
                f"{forced} steps were counted before every rank had sent them; {late} records came too late",
            )
        for field, (count, steps) in self._measures.partly_measured().items():
            yield f"per_device.{field}", f"measured in {count:,} of {steps:,} steps, which the numbers are about"
        yield from self._balance_remarks()
        several_wait = len(self._lease) > 1 and report.per_device[0].data_wait_ms is not None
        if report.strategy == "dp" and several_wait and not self._virtual:
            yield "per_device.data_wait_ms", "one process feeds all devices, so they all show the same wait"

    def _balance_remarks(self) -> Iterator[tuple[str, str]]:
        covered, steps = self._measures.covered_steps, self._measures.steps
        for field in ("balance.time_max_over_mean", "balance.wasted_device_seconds"):
            if 0 < covered < steps:
                yield field, f"over the {covered:,} of {steps:,} steps in which every device was measured"
            if covered and self._virtual and self._spec.parallelism.strategy == "dp":
                yield field, "as if the shards had run at once"

    def _reason(self, field: str, report: Report) -> str:
        """Why a field is `None`, when no rank has said so."""
        if field == "prediction.matches":
            return "nothing could be compared" if report.final else "compared when the attempt has ended"
        if field.startswith("patterns."):
            return "these batches differ, or their rows could not be counted"
        if self._virtual and "memory" in field:
            return "virtual devices have no memory of their own"
        if field in ("balance.output_device_memory_skew", "primitives") and report.strategy != "dp":
            return 'only strategy "dp" gathers on one device'
        if len(self._lease) == 1 and field in _NEEDS_TWO:
            return "there is only one device"
        if self._measures.steps == 0:
            return f"no {self._main} step has been seen"
        if _only_idle_lack(report, field):
            return "a device that got no rows has none"
        if field.startswith("balance.") and self._placed:
            return "the devices hold different modules and take turns on each batch"
        if field.startswith("balance.") and report.strategy == "fsdp":
            return "a rank's forward contains waiting for the others under fsdp, so their times cannot be compared"
        if field == "per_device.comm_ms" and report.strategy != "ddp":
            return "the devices exchange nothing but what the primitives time"
        return _DEFAULT_REASONS.get(field, "no rank measured it")


_NEEDS_TWO = frozenset(
    {"balance.slowest_device", "balance.output_device_memory_skew", "per_device.comm_ms", "primitives"}
)

_DEFAULT_REASONS = {
    "per_device.rows": "the rows of some batch could not be counted",
    "per_device.share": "the rows of some batch could not be counted",
    "balance.rows_max_over_mean": "the rows of some batch could not be counted",
    "balance.time_max_over_mean": "there was no step in which every device was measured",
    "balance.slowest_device": "there was no step in which every device was measured",
    "balance.cause": "there was no step in which every device was measured",
    "balance.wasted_device_seconds": "there was no step in which every device was measured",
    "devices.memory_total_bytes": "no rank has looked at the device yet",
}


def _nulls(report: Report) -> Iterator[str]:
    """Paths of the fields that are `None` somewhere."""
    for name in ("devices", "patterns", "per_device"):
        for struct in getattr(report, name):
            yield from (f"{name}.{field}" for field in _null_fields(struct))
    yield from (f"balance.{field}" for field in _null_fields(report.balance))
    if report.primitives is None:
        yield "primitives"
    if report.prediction.matches is None:
        yield "prediction.matches"


def _only_idle_lack(report: Report, field: str) -> bool:
    """Whether a field is missing only on devices that never got a row."""
    name = field.removeprefix("per_device.")
    busy = [device for device in report.per_device if device.steps > device.idle_steps]
    return field.startswith("per_device.") and bool(busy) and all(getattr(d, name) is not None for d in busy)


def _null_fields(struct: msgspec.Struct) -> list[str]:
    return [field for field in struct.__struct_fields__ if getattr(struct, field) is None]


def _add_up(splits: Sequence[Split]) -> _Batch:
    """The forwards of one optimizer step as one batch; shapes are those of the first forward."""
    first = splits[0]
    rows: dict[int, list[int | None]] = {device: [] for device in first.devices}
    for split in splits:
        for device, count in zip(split.devices, split.rows, strict=True):
            rows.setdefault(device, []).append(count)
    beyond = len(rows) - len(first.devices)
    return _Batch(
        module=first.module,
        batch_rows=_sum([split.batch_rows for split in splits]),
        devices=tuple(rows),
        rows=tuple(_sum(counts) for counts in rows.values()),
        input_shapes=first.input_shapes + (None,) * beyond,
        output_shapes=first.output_shapes + (None,) * beyond,
    )


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _pattern(key: _PatternKey, count: _Count) -> Pattern:
    phase, module, batch_rows, rows = key
    return Pattern(
        phase=phase,
        module=module,
        batch_rows=batch_rows,
        rows=rows,
        shapes_vary=count.shapes_vary,
        input_shapes=count.first.input_shapes if count.first is not None else None,
        output_shapes=count.first.output_shapes if count.first is not None else None,
        steps=count.steps,
        first_step=count.first_step,
        last_step=count.last_step,
    )


def _other_pattern(count: _Count) -> Pattern:
    """Everything beyond the splits that are kept apart. Its steps may be of several phases."""
    return Pattern("other", "", None, None, True, None, None, count.steps, count.first_step, count.last_step)
