"""Cuts the texts of records, whatever a rank has cut or not: they are kept in the report, the status and the log.

Lists and numbers have bounds in `jobs.protocol.records`. docs/architecture.md has a table of all that grows with
records, and of who bounds it.
"""

from dataclasses import dataclass
from typing import TypeVar, get_args, get_type_hints

import msgspec

from jobs.files.metric_file import MAX_NAME_CHARACTERS
from jobs.protocol.packets import SingleRecord, StepBatch
from jobs.protocol.records import MetricSample, Outcome, Record, Result, Returned, Step

#: Characters of a text of a record.
MAX_TEXT = 512
MAX_MESSAGE = 2_000
MAX_TRACEBACK = 64 * 1024
#: Numbers in the result of a job, and characters of the name of an arithmetic.
MAX_RESULTS = 256
MAX_ARITHMETIC = 64

T = TypeVar("T", bound=Record)


@dataclass(frozen=True, slots=True)
class TextBound:
    """How long a field may be. Of a traceback the end says what went wrong."""

    field: str
    characters: int = MAX_TEXT
    keeps_end: bool = False

    def cut(self, text: str) -> str:
        return text[-self.characters :] if self.keeps_end else text[: self.characters]


_LONGER = {
    (Outcome, "message"): TextBound("message", MAX_MESSAGE),
    (Outcome, "advice"): TextBound("advice", MAX_MESSAGE),
    (Outcome, "traceback"): TextBound("traceback", MAX_TRACEBACK, keeps_end=True),
}
_TEXTS: dict[type[Record], tuple[TextBound, ...]] = {
    kind: tuple(
        _LONGER.get((kind, field), TextBound(field)) for field, hint in get_type_hints(kind).items() if hint is str
    )
    for kind in get_args(SingleRecord)
}


def bound_record(record: StepBatch | SingleRecord) -> StepBatch | SingleRecord:
    """The record with texts that are no longer than they may be."""
    if isinstance(record, StepBatch):
        return _bound_batch(record)
    record = _cut_texts(record)
    if isinstance(record, Returned):
        return msgspec.structs.replace(record, outcome=_cut_texts(record.outcome))
    return _bound_result(record) if isinstance(record, Result) else record


def _cut_texts(record: T) -> T:
    cut = {
        bound.field: bound.cut(getattr(record, bound.field))
        for bound in _TEXTS[type(record)]
        if len(getattr(record, bound.field)) > bound.characters
    }
    return msgspec.structs.replace(record, **cut) if cut else record


def _bound_result(result: Result) -> Result:
    numbers = list(result.metrics.items())[:MAX_RESULTS]
    return Result(result.loss, {name[:MAX_NAME_CHARACTERS]: value for name, value in numbers})


def _bound_batch(batch: StepBatch) -> StepBatch:
    """Steps and metrics come in masses, and nearly all of them are as they should be."""
    is_long = any(len(metric.name) > MAX_NAME_CHARACTERS for metric in batch.metrics)
    has_flop = any(step.flop is not None for step in batch.steps)
    if not (is_long or has_flop):
        return batch
    return StepBatch([_bound_step(step) for step in batch.steps], [_bound_metric(metric) for metric in batch.metrics])


def _bound_metric(metric: MetricSample) -> MetricSample:
    return msgspec.structs.replace(metric, name=metric.name[:MAX_NAME_CHARACTERS])


def _bound_step(step: Step) -> Step:
    if step.flop is None:
        return step
    return msgspec.structs.replace(step, flop={name[:MAX_ARITHMETIC]: each for name, each in step.flop.items()})
