"""Writes the notes of a report: why a number is missing, and what limits the meaning of one that is there.

Keys are paths in the report. What the ranks have sent about a path comes first, then the remarks made here; a path that
is `None` somewhere and has no note gets the reason that follows from how the attempt ran.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from jobs.protocol.records import Note
from jobs.splits.plan import Prediction
from jobs.splits.timings import Measures
from shardyard.contract.report import RATES, REASON_SEPARATOR, Report, join_reasons
from workers.supervisor.report.findings.evaluation_findings import remarks_on_evaluation
from workers.supervisor.report.findings.gradient_findings import remarks_on_gradients
from workers.supervisor.report.findings.script_lint import remarks_on_averages
from workers.supervisor.report.patterns import MAX_PATTERNS
from workers.supervisor.report.rate_notes import explain_missing_rate, missing_rates
from workers.supervisor.report.script_observations import (
    ScriptObservations,
    describe_run,
    find_unfinished_steps,
    name_modules,
    remarks_on_rows,
)
from workers.supervisor.report.step_counts import StepCounts
from workers.supervisor.report.step_joiner import StepJoiner

#: Notes that are taken from the ranks of one attempt, and the length of each.
MAX_NOTES = 100
MAX_NOTE_LENGTH = 500
#: Ranks that one note names.
MAX_NAMED = 8


@dataclass(frozen=True, slots=True)
class DeviceCooperation:
    """How the devices of an attempt work together."""

    scatters: bool  # DataParallel divides batches
    gathers_on: int | None  # the device on which DataParallel gathers outputs
    placed: bool  # the devices hold different modules
    sharded: bool  # the devices wait for each other within forward


class RankNotes:
    """The notes that ranks have sent, by field of the report; of bounded number and length."""

    def __init__(self) -> None:
        self.by_field: dict[str, list[str]] = {}

    def add(self, note: Note) -> None:
        """Keep a note once, however many ranks send it; different notes on one field stand side by side."""
        field, reason = note.field[:MAX_NOTE_LENGTH], note.reason[:MAX_NOTE_LENGTH]
        reasons = self.by_field.get(field, [])
        if reason not in reasons and sum(map(len, self.by_field.values())) < MAX_NOTES:
            self.by_field[field] = [*reasons, reason]

    def restore(self, earlier: dict[str, list[str]]) -> None:
        """Begin with the notes of an earlier attempt."""
        since, self.by_field = self.by_field, earlier
        for note in (Note(field, reason) for field, reasons in since.items() for reason in reasons):
            self.add(note)


@dataclass(frozen=True, slots=True)
class NoteFacts:
    """What is known of an attempt beside the numbers of its report."""

    seen: ScriptObservations | None  # of a script; None of a recipe
    prediction: Prediction
    on_prediction: str | None  # what is to be said of the prediction's check
    use: DeviceCooperation
    counts: StepCounts
    joiner: StepJoiner[Any]
    malformed: int  # records that did not fit together
    uncounted: int  # steps of more processes than a report can hold
    rank_notes: Mapping[str, Sequence[str]]  # by path: what the ranks sent


def make_notes(report: Report, facts: NoteFacts) -> dict[str, str]:
    """The notes of a report that has none yet."""
    measures = facts.counts.main_measures
    made: dict[str, list[str]] = {field: list(texts) for field, texts in facts.rank_notes.items()}
    for field, text in _all_remarks(report, measures, facts):
        made.setdefault(field, []).append(text)
    for field in _null_paths(report):
        twin = _field_of_devices(field)
        made.setdefault(field, made.get(twin) or [_missing_reason(twin, report, measures, facts)])
    return {field: join_reasons(texts) for field, texts in made.items()}


def _all_remarks(report: Report, measures: Measures, facts: NoteFacts) -> Iterator[tuple[str, str]]:
    yield from _count_remarks(facts)
    yield from _measure_remarks(report, measures, facts)
    if facts.on_prediction:
        yield "prediction", facts.on_prediction
    if facts.seen is not None:
        yield from _script_remarks(report, facts.seen)


def _count_remarks(facts: NoteFacts) -> Iterator[tuple[str, str]]:
    forced, late = facts.joiner.forced, facts.joiner.late
    if facts.counts.absent_from:
        yield "patterns.rows", _absence_remark(facts.counts.absent_from)
    if facts.counts.patterns.overflowed:
        yield (
            "patterns",
            f'only {MAX_PATTERNS} different splits are listed, and all others count together in the phase "other"',
        )
    if facts.malformed:
        yield "patterns", f"{facts.malformed} records were inconsistent, so their rows are not counted"
    if facts.uncounted:
        yield "patterns", f"{facts.uncounted} steps came from more processes than a report can hold"
    if forced or late:
        then = ", and were counted as separate steps" if facts.seen is not None and late else ""
        yield "patterns", f"{forced} steps were counted before every rank had reported them"
        yield "patterns", f"{late} records came too late{then}"


def _absence_remark(absent_from: Mapping[int, int]) -> str:
    """Ranks that did not report a step, each with the first one, as one reason."""
    named = [f"rank {rank} sent nothing for step {step}" for rank, step in sorted(absent_from.items())]
    if len(named) > MAX_NAMED:
        named[MAX_NAMED:] = [f"{len(named) - MAX_NAMED} more ranks are like that"]
    return f"{', '.join(named)}, and a rank counts 0 rows in steps that it did not report"


def _measure_remarks(report: Report, measures: Measures, facts: NoteFacts) -> Iterator[tuple[str, str]]:
    for field, (count, steps) in measures.partly_measured().items():
        yield f"per_device.{field}", f"measured in {count:,} of {steps:,} steps, and the total is an estimate for all"
    covered, steps = measures.covered_steps, measures.steps
    counted = max(device.work.counted_steps for device in measures.sums.devices)
    for field in ("balance.time_max_over_mean", "balance.wasted_device_seconds"):
        if 0 < covered < steps - counted:
            yield field, f"from the {covered:,} of {steps:,} steps in which the time of every device is known"
        if covered and report.virtual and facts.use.scatters:
            yield field, "computed as if the shards had run in parallel"
    several_wait = len(report.devices) > 1 and report.per_device[0].data_wait_ms is not None
    if facts.use.scatters and several_wait and not report.virtual:
        yield "per_device.data_wait_ms", "one process feeds all devices, so they all show the same wait"


def _script_remarks(report: Report, seen: ScriptObservations) -> Iterator[tuple[str, str]]:
    for reason in ("as the job asked", *describe_run(seen.processes).split(REASON_SEPARATOR)):
        yield "strategy", reason
    if seen.phase != "train":
        yield "per_device", f"the numbers cover the phase {seen.phase}, because no training step was seen"
    modules = sorted({pattern.module for pattern in report.patterns if pattern.phase == seen.phase})
    if len(modules) > 1:
        yield "per_device.rows", f"the rows of {len(modules)} modules are added up: {name_modules(modules)}"
    for text in remarks_on_rows(seen):
        yield "patterns.rows", text
    for text in (*remarks_on_averages(seen), *remarks_on_gradients(seen), *remarks_on_evaluation(seen)):
        yield "findings", text
    for one in find_unfinished_steps(seen):
        if not one.long:
            yield "patterns.steps", str(one)


def _missing_reason(field: str, report: Report, measures: Measures, facts: NoteFacts) -> str:
    """Why a field is `None`, when no rank has said so."""
    if field == "prediction.matches":
        return _no_prediction(report, facts.prediction)
    if field.startswith("patterns."):
        return "these batches differ, or their rows could not be counted"
    if report.virtual and "memory" in field:
        return "virtual devices share the memory of the host"
    if field in ("balance.output_device_memory_skew", "primitives") and not facts.use.scatters:
        who = 'strategy "dp"' if facts.seen is None else "DataParallel"
        return f"only {who} gathers on one device"
    if len(report.devices) == 1 and field in _NEEDS_TWO:
        return "there is only one device"
    if measures.steps == 0:
        return f"no {facts.counts.main_phase} step has been seen"
    if facts.counts.crowded and field.startswith(("per_device.", "balance.")):
        return "several processes used one device at the same time"
    if field in _ROW_RATES and any(device.rows is None for device in report.per_device):
        return _UNCOUNTED
    if _only_idle_lack(report, field):
        return "a device that got no rows has none"
    if field.removeprefix("per_device.") in RATES:
        return explain_missing_rate(
            field,
            report,
            measures.steps,
            is_work_alike=not any(one.shapes_vary for one in report.patterns if one.phase == facts.counts.main_phase),
            rank_notes=facts.rank_notes,
        )
    if (field.startswith("balance.") or field == "what_if") and facts.use.placed:
        return "the devices hold different modules and take turns on each batch"
    if field.startswith(("balance.", "what_if", "weights.seen", "weights.even", "weights.speed")) and facts.use.sharded:
        return "under fsdp a rank's forward includes waiting for the other ranks, so the times cannot be compared"
    if field == "per_device.comm_ms" and (report.strategy != "ddp" if facts.seen is None else facts.use.scatters):
        return "the devices exchange no data outside the timed primitives"
    return _DEFAULT_REASONS.get(field, "no rank measured it")


def _no_prediction(report: Report, prediction: Prediction) -> str:
    if not prediction.planned:
        return f"nothing was planned: {prediction.notes['patterns']}"
    return "nothing could be compared" if report.final else "compared when the attempt has ended"


_NEEDS_TWO = frozenset(
    {"balance.slowest_device", "balance.output_device_memory_skew", "per_device.comm_ms", "primitives", "what_if"}
)

_ROW_RATES = frozenset({"per_device.ms_per_row", "per_device.rows_per_second", "rows_per_second"})
_UNCOUNTED = "the rows of some batch could not be counted"
_UNMEASURED = "there was no step in which every device was measured"
_DEFAULT_REASONS = {
    **dict.fromkeys(("per_device.rows", "per_device.share", "balance.rows_max_over_mean"), _UNCOUNTED),
    **dict.fromkeys(("balance.time_max_over_mean", "balance.slowest_device", "balance.cause"), _UNMEASURED),
    "balance.wasted_device_seconds": _UNMEASURED,
    "per_device.optimizer_ms": "no step of an optimizer was seen",
    "per_device.other_ms": "it is not known how long the program has run",
    "per_device.wall_ms": "it is not known how long the program has run",
    "learning_rate": "no optimizer's learning rate was seen",
    "what_if": "there was no step in which the time of every device is known",
    "weights.weights": "rows are divided evenly; in a last batch that does not divide, ranks are weighed",
    "weights.predicted_ms": "rows were not timed before the first step",
    "weights.gradient": "no step was trained in which the devices had unequal numbers of rows",
    **dict.fromkeys(("weights.seen_ms", "weights.even_ms", "weights.speed_share"), "too few steps were measured"),
    "devices.memory_total_bytes": "no rank has reported on the device yet",
}


def _null_paths(report: Report) -> Iterator[str]:
    """Paths of the fields that are `None` somewhere."""
    for name in ("devices", "patterns", "per_device", "per_node"):
        for struct in getattr(report, name):
            yield from (f"{name}.{field}" for field in _null_fields(struct))
    balance = _null_fields(report.balance)
    yield from (f"balance.{field}" for field in balance if field != "slowest_node" or report.per_node)
    if report.primitives is None:
        yield "primitives"
    if report.prediction.matches is None:
        yield "prediction.matches"
    if report.what_if is None:
        yield "what_if"
    if report.weights is not None:
        yield from (f"weights.{field}" for field in _null_fields(report.weights))
    yield from missing_rates(report)
    if report.learning_rate is None:
        yield "learning_rate"


def _field_of_devices(field: str) -> str:
    """The field of devices from which one of nodes is made."""
    if field in ("balance.slowest_node", "per_node.slowest_device"):
        return "balance.slowest_device"
    return field.replace("per_node.", "per_device.")


def _only_idle_lack(report: Report, field: str) -> bool:
    """Whether a field is missing only on devices that never got a row."""
    name = field.removeprefix("per_device.")
    busy = [device for device in report.per_device if device.steps > device.idle_steps]
    return field.startswith("per_device.") and bool(busy) and all(getattr(d, name) is not None for d in busy)


def _null_fields(struct: msgspec.Struct) -> list[str]:
    return [field for field in struct.__struct_fields__ if getattr(struct, field) is None]
