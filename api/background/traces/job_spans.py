"""The spans of a job that has ended, made from what the store has about it.

    job                                 from its submission to its end
    ├── queued                          from the submission, or the end of the attempt before, to the dispatch
    ├── attempt                         from the dispatch to its end
    │   ├── claim                       until a supervisor has it
    │   ├── start                       until a rank is up
    │   ├── first step                  until a rank has made one
    │   └── training                    until the end
    └── queued, attempt ...

The part in which an attempt ends lasts until its end, and there are none after it. The ids are made of the job's, so
spans that are sent twice are the same ones.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from jobs.model.records import AttemptRecord, JobRecord, Placement
from jobs.model.state import STATE_OF, JobState
from jobs.model.trace_context import TraceContext, read_job_trace, span_id
from jobs.protocol.names import job_ref

#: Of one job: the newest ones. A job that moves often, and is never lost, may have any number.
MAX_ATTEMPTS = 100
#: Of what a job says of its end.
MAX_MESSAGE = 1024
_SCOPE = InstrumentationScope("shardyard")

Attribute = str | int | Sequence[str]


@dataclass(frozen=True, slots=True)
class _SpanMaker:
    """Makes spans below that of a job."""

    ref: str
    root: TraceContext
    resource: Resource

    def make(
        self,
        name: str,
        key: str,
        parent: SpanContext | None,
        times: tuple[int, int],
        attributes: Mapping[str, Attribute],
        *,
        failure: str | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> ReadableSpan:
        """`key` names the span within its job, `times` are in microseconds, `failure` is the message of an error."""
        start, end = times
        return ReadableSpan(
            name=name,
            context=_span_context(self.root, span_id(self.ref, key), is_remote=False),
            parent=parent,
            resource=self.resource,
            attributes=attributes,
            kind=kind,
            instrumentation_scope=_SCOPE,
            status=Status() if failure is None else Status(StatusCode.ERROR, failure[:MAX_MESSAGE]),
            start_time=start * 1000,
            end_time=max(start, end) * 1000,  # the clock may have been set back
        )


def build_job_spans(record: JobRecord, attempts: Sequence[AttemptRecord], resource: Resource) -> list[ReadableSpan]:
    """Of a job that has ended; none where its caller does not have its trace recorded."""
    ref = job_ref(record.tenant, record.id)
    root, caller = read_job_trace(ref, record.trace)
    if not root.is_sampled or record.finished is None:
        return []
    maker = _SpanMaker(ref, root, resource)
    above = None if caller is None else _span_context(caller, caller.span_id, is_remote=True)
    job = maker.make(
        "job",
        "job",
        above,
        (record.created, record.finished),
        _describe_job(record),
        failure=record.message if record.state is JobState.FAILED else None,
        kind=SpanKind.CONSUMER,
    )
    return [job, *_waits_and_attempts(maker, job.context, record, attempts)]


def _waits_and_attempts(
    maker: _SpanMaker, job: SpanContext, record: JobRecord, attempts: Sequence[AttemptRecord]
) -> Iterator[ReadableSpan]:
    finished = record.finished or record.created
    recent = attempts[-MAX_ATTEMPTS:]
    before = attempts[-MAX_ATTEMPTS - 1] if len(attempts) > MAX_ATTEMPTS else None
    waits_from = record.created if before is None else before.ended or before.created
    for attempt in recent:
        number, ended = attempt.number, attempt.ended or finished
        named = {"shardyard.attempt": number}
        yield maker.make("queued", f"queued {number}", job, (waits_from, attempt.created), named)
        failed = attempt.reason is not None and STATE_OF.get(attempt.reason) is JobState.FAILED
        span = maker.make(
            "attempt",
            f"attempt {number}",
            job,
            (attempt.created, ended),
            _describe_attempt(attempt),
            failure=attempt.message if failed else None,
        )
        yield span
        for name, times in _parts_of(attempt, ended):
            yield maker.make(name, f"{name} {number}", span.context, times, named)
        waits_from = ended
    if finished > waits_from:  # it ended while it waited
        yield maker.make("queued", "queued last", job, (waits_from, finished), {})


def _parts_of(attempt: AttemptRecord, ended: int) -> Iterator[tuple[str, tuple[int, int]]]:
    reached = (attempt.created, attempt.claimed, attempt.started, attempt.first_step, ended)
    for name, (start, end) in zip(("claim", "start", "first step", "training"), pairwise(reached), strict=True):
        if start is None:
            return
        yield name, (start, ended if end is None else end)


def _describe_job(record: JobRecord) -> dict[str, Attribute]:
    return {
        "shardyard.job.id": record.id,
        "shardyard.job.name": record.name,
        "shardyard.tenant": record.tenant,
        "shardyard.pool": record.pool,
        "shardyard.nodes": record.nodes,
        "shardyard.devices": record.all_devices,
        "shardyard.strategy": record.strategy,
        "shardyard.state": str(record.state),
        "shardyard.reason": str(record.reason),
        "shardyard.attempts": record.attempt,
    }


def _describe_attempt(attempt: AttemptRecord) -> dict[str, Attribute]:
    described: dict[str, Attribute | None] = {
        "shardyard.attempt": attempt.number,
        "shardyard.placement": [name for place in attempt.placement for name in _name_devices(place)],
        "shardyard.reason": None if attempt.reason is None else str(attempt.reason),
        "shardyard.network": attempt.network,
        "shardyard.resumed_step": None if attempt.resumed is None else attempt.resumed.get("step"),
    }
    return {name: value for name, value in described.items() if value is not None}


def _name_devices(place: Placement) -> list[str]:
    """`host-a/0` for the first device of a node."""
    return [f"{place.node}/{device}" for device in place.devices]


def _span_context(trace: TraceContext, span: str, *, is_remote: bool) -> SpanContext:
    return SpanContext(int(trace.trace_id, 16), int(span, 16), is_remote, TraceFlags(trace.flags))
