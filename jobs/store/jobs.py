"""Jobs: submit, read, list, cancel, delete."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from typing import Any, Literal

import msgspec
from msgspec.structs import replace as replace_fields

from jobs.model.error_words import nearest_choice
from jobs.model.records import ROW_FIELDS, AttemptRecord, JobRecord, JobRow, QueueView
from jobs.model.spec import JobSpec
from jobs.model.state import TERMINAL, JobState, StateReason
from jobs.model.trace_context import JobTrace
from jobs.protocol.names import job_ref
from jobs.store.accounts.quotas import raise_over_quota
from jobs.store.bundles import unknown_bundle
from jobs.store.call import Call, Word, call_function, read_hash
from jobs.store.specs import decode_spec, decompress_spec, encode_spec
from shardyard.contract.errors import (
    FieldError,
    IdempotencyConflict,
    InvalidSpec,
    JobFinished,
    JobNotFinished,
    NotFound,
    PreconditionFailed,
    TooLargeForPool,
    UnknownPool,
)

#: Those of a job that a change is for; None: whatever version it has.
Versions = Iterable[int] | None
MAX_CANCEL_SCANNED = 1_000
#: Jobs that one call cancels, and looks at: Redis answers nobody else meanwhile.
MAX_CANCELLED = 50
#: Jobs that one page looks at, when a filter matches rarely.
MAX_SCANNED = 1_000
#: A spec that is stored in more bytes has no columns in tables of jobs.
MAX_COLUMN_SPEC_BYTES = 32_768
#: Rows of jobs that have ended which a process keeps decoded, at about a kilobyte each.
KEPT_ROWS = 4096
IDEMPOTENCY_SECONDS = 7 * 86_400


@dataclass(frozen=True, slots=True)
class JobView:
    record: JobRecord
    spec: JobSpec
    queue: QueueView | None  # only while queued


@dataclass(frozen=True, slots=True)
class SubmitReply:
    """`view` is the new job as it was stored; None where it is not new, and has to be looked at."""

    job: str
    created: bool  # False: the idempotency key was used before, for the same body
    view: JobView | None = None


def submit(
    tenant: str,
    job: str,
    spec: JobSpec,
    *,
    idempotency_key: str = "",
    digest: str = "",
    parent: str = "",
    token: str = "",
    trace: JobTrace = JobTrace(),  # noqa: B008  (frozen)
) -> Call[SubmitReply]:
    """Store and queue a job.

    Raises (on execution):
        IdempotencyConflict: the key was used for another body.
        UnknownBundle: the tenant has no such bundle, or has none any more.
        UnknownPool, TooLargeForPool: it could never run.
        InvalidSpec: there is no such job to wait for.
        OverQuota, QuotaExceeded: the tenant or the token may not have it, or has no room for it now.
    """

    def decode(reply: Sequence[Any]) -> SubmitReply:
        if reply[0] == b"created":
            created, start_after, reason, message, *queue = reply[2:]
            record = replace_fields(
                _new_record(tenant, job, spec, parent, created=int(created)),
                token=token,
                reason=StateReason(reason.decode()),
                message=message.decode(),
                start_after=int(start_after or 0) or None,
            )
            return SubmitReply(job, True, JobView(record, spec, _read_queue(queue)))
        status, *detail = (part.decode() for part in reply)
        raise_if_refused(status, detail, spec)
        # The repeat of a call whose reply was lost is answered as that was.
        return SubmitReply(detail[0], detail[0] == job)

    return call_function(
        "submit",
        decode,
        tenant=tenant,
        id=job,
        idem=idempotency_key,
        digest=digest,
        remembered_seconds=IDEMPOTENCY_SECONDS,
        parent=parent,
        token=token,
        **spec_arguments(spec),
        traceparent=trace.traceparent,
        caller_span=trace.caller_span,
    )


def spec_arguments(spec: JobSpec) -> dict[str, Word]:
    """What the functions that store a job are told of its spec."""
    return {
        "pool": spec.pool,
        "devices": spec.resources.devices,
        "nodes": spec.resources.nodes,
        "priority": spec.priority,
        "name": spec.name or "",
        "strategy": spec.parallelism.strategy,
        "labels": msgspec.json.encode(spec.labels),
        "spec": encode_spec(spec),
        "max_retries": spec.limits.max_retries,
        "bundle": (spec.program.bundle or "").removeprefix("sha256:"),
        "wall": repr(spec.limits.wall_seconds),
        "start_after": _encode_start(spec),
        "depends_on": " ".join(spec.depends_on or ()),
    }


def _encode_start(spec: JobSpec) -> str:
    """A time in microseconds, or (+) how many from now on; '' without one."""
    if spec.start_after is None:
        return ""
    if isinstance(spec.start_after, str):
        return str(int(datetime.fromisoformat(spec.start_after).timestamp() * 1e6))
    return f"+{int(spec.start_after * 1e6)}"


def raise_if_refused(status: str, detail: Sequence[str], spec: JobSpec) -> None:
    if status == "conflict":
        raise IdempotencyConflict(
            f"this Idempotency-Key was used for job {detail[0]} with another body; send a new key"
        )
    if status == "over_quota":
        raise_over_quota(detail)
    if status in ("unknown_jobs", "many_dependents"):
        raise _refused_dependency(status, detail, spec)
    if status == "unknown_bundle":
        raise unknown_bundle(spec.program.bundle)
    if status == "unknown_pool":
        known = ", ".join(sorted(detail)) or "none: no worker has registered yet"
        near = nearest_choice(spec.pool, detail)
        hint = f"did you mean {near!r}?" if near else f"pools: {known}"
        raise UnknownPool(
            f"there is no pool {spec.pool!r}; pools: {known}",
            fields=(FieldError("pool", f"there is no pool {spec.pool!r}; {hint}"),),
        )
    if status == "too_large":
        raise TooLargeForPool(
            f"the job needs {spec.resources.devices} devices on one node, but the largest node of pool "
            f"{spec.pool!r} has {detail[0]}; lower resources.devices or choose another pool",
            fields=(FieldError("resources.devices", f"at most {detail[0]}, as the largest node of {spec.pool!r} has"),),
        )
    if status == "too_few_nodes":
        raise TooLargeForPool(
            f"the job needs {spec.resources.devices} devices on each of {spec.resources.nodes} nodes, but "
            f"{detail[0]} of pool {spec.pool!r} have so many; lower resources.nodes or choose another pool",
            fields=(FieldError("resources.nodes", f"at most {detail[0]} in pool {spec.pool!r} with so many devices"),),
        )


def _refused_dependency(status: str, jobs: Sequence[str], spec: JobSpec) -> InvalidSpec:
    places = {job: f"depends_on.{number}" for number, job in enumerate(spec.depends_on or ())}
    words = {
        "unknown_jobs": "there is no job {0!r} of yours, or it is archived; leave it out",
        "many_dependents": "as many jobs wait for {0!r} as may; wait for another one of these instead",
    }[status]
    return InvalidSpec(
        "the job cannot wait for these jobs", fields=tuple(FieldError(places[job], words.format(job)) for job in jobs)
    )


def _new_record(tenant: str, job: str, spec: JobSpec, parent: str, *, created: int) -> JobRecord:
    """A job as the script has just stored it."""
    return JobRecord(
        tenant=tenant,
        id=job,
        name=spec.name or "",
        pool=spec.pool,
        devices=spec.resources.devices,
        nodes=spec.resources.nodes,
        priority=spec.priority,
        strategy=spec.parallelism.strategy,
        labels=spec.labels,
        state=JobState.QUEUED,
        reason=StateReason.WAITING_FOR_DEVICES,
        message="",
        attempt=0,
        retries=0,
        max_retries=spec.limits.max_retries,
        version=1,
        created=created,
        started=None,
        first_step=None,
        finished=None,
        node=None,
        leased=(),
        cancel_requested=False,
        parent=parent or None,
        error=None,
        result=None,
    )


def read_job(tenant: str, job: str, known: JobView | None = None) -> Call[JobView]:
    """One job; `known` itself where nothing of it has changed.

    Raises (on execution):
        NotFound: no such job of this tenant.
    """

    def decode(reply: Sequence[Any]) -> JobView:
        if not reply:
            raise NotFound(f"there is no job {job!r}")
        if reply[0] == 1 and known is not None:
            queue = _read_queue(reply[1:])
            return known if queue == known.queue else replace(known, queue=queue)
        spec, fields, *numbers = reply
        return JobView(JobRecord.from_fields(tenant, job, read_hash(fields)), decode_spec(spec), _read_queue(numbers))

    return call_function(
        "read_job", decode, ref=job_ref(tenant, job), known_version="" if known is None else known.record.version
    )


def _read_queue(numbers: Sequence[int]) -> QueueView | None:
    """Of what `queue_view` of the scripts returns."""
    return QueueView(*numbers) if numbers else None


@dataclass(frozen=True, slots=True)
class JobFilter:
    state: JobState | None = None
    pool: str = ""
    label: tuple[str, str] | None = None
    name: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class JobRowPage:
    jobs: tuple[JobRow, ...]
    next_id: str | None  # pass it as `after` for the next page; None at the end
    queues: dict[str, QueueView] = field(default_factory=dict)  # by the ids of jobs that wait, as far as was asked for


def list_jobs(
    tenant: str,
    chosen: JobFilter,
    *,
    after: str = "",
    limit: int = 50,
    max_queues: int = 0,
    oldest_first: bool = False,
) -> Call[JobRowPage]:
    """A page of jobs, newest first unless it is said otherwise, with the queues of the first `max_queues` jobs that
    wait. A page may be short, even empty, while `next_id` is set: a filter that matches rarely looks at `MAX_SCANNED`
    jobs a call."""

    def decode(reply: Sequence[Any]) -> JobRowPage:
        next_id, waiting, *rows = reply
        queues = {job.decode(): QueueView(*map(int, queue)) for job, *queue in waiting}
        pairs = zip(rows[::2], rows[1::2], strict=True)
        jobs = tuple(_read_row(tenant, job, tuple(values)) for job, values in pairs)
        return JobRowPage(jobs, next_id.decode() or None, queues)

    return call_function(
        "list_jobs",
        decode,
        *ROW_FIELDS,
        **_filter_arguments(tenant, chosen),
        after=after,
        limit=limit,
        max_scanned=MAX_SCANNED,
        max_queues=max_queues,
        order="oldest" if oldest_first else "newest",
    )


@dataclass(frozen=True, slots=True)
class JobCount:
    """How many jobs match a filter; where that is not `exact`, more may match."""

    number: int
    exact: bool


def count_matching(tenant: str, chosen: JobFilter) -> Call[JobCount]:
    """Of a filter by more than the state only the newest `MAX_SCANNED` jobs are counted."""

    def decode(reply: Sequence[int]) -> JobCount:
        return JobCount(reply[0], bool(reply[1]))

    return call_function("count_matching", decode, **_filter_arguments(tenant, chosen), max_scanned=MAX_SCANNED)


def _read_row(tenant: str, job: bytes, values: tuple[bytes | None, ...]) -> JobRow:
    """The row of a job from the values of `ROW_FIELDS`; the same object as before where a job has ended, and so cannot
    change."""
    return (_decode_ended_row if values[0] in _ENDED else _decode_row)(tenant, job, values)


def _decode_row(tenant: str, job: bytes, values: tuple[bytes | None, ...]) -> JobRow:
    fields = {name: value for name, value in zip(ROW_FIELDS, values, strict=True) if value is not None}
    return JobRow.from_fields(tenant, job.decode(), fields)


_ENDED = frozenset(str(state).encode() for state in TERMINAL)
_decode_ended_row = lru_cache(KEPT_ROWS)(_decode_row)


def _filter_arguments(tenant: str, chosen: JobFilter) -> dict[str, Word]:
    key, value = chosen.label or ("", "")
    return {
        "tenant": tenant,
        "state": chosen.state or "",
        "pool": chosen.pool,
        "label_key": key,
        "label_value": value,
        "name": chosen.name,
        "group": job_ref(tenant, chosen.group) if chosen.group else "",
    }


@dataclass(frozen=True, slots=True)
class FoundJobs:
    """Ids of jobs that begin, and that end, with what was searched for."""

    beginning: tuple[str, ...]
    ending: tuple[str, ...]


def find_jobs(tenant: str, text: str, limit: int) -> Call[FoundJobs | None]:
    """Jobs whose ids begin or end with a text, at most so many of each. None: the index that this needs has grown, and
    is not complete yet; call it again."""

    def decode(reply: Sequence[Any]) -> FoundJobs | None:
        if not reply[0]:
            return None
        beginning, ending = (tuple(job.decode() for job in ids) for ids in reply[1:])
        return FoundJobs(beginning, ending)

    return call_function("find_jobs", decode, tenant=tenant, text=text, limit=limit)


def newest_jobs(tenant: str, token: str, limit: int) -> Call[tuple[str, ...]]:
    """Ids of the newest jobs that a token has submitted, newest first; where none of the newest `MAX_SCANNED` is its
    own, those of the whole tenant."""

    def decode(reply: Sequence[bytes]) -> tuple[str, ...]:
        return tuple(job.decode() for job in reply)

    return call_function("newest_jobs", decode, tenant=tenant, token=token, limit=limit, max_scanned=MAX_SCANNED)


def list_attempts(tenant: str, job: str) -> Call[tuple[AttemptRecord, ...]]:
    """All attempts of a job, oldest first. Raises NotFound on execution."""

    def decode(reply: Sequence[Any] | None) -> tuple[AttemptRecord, ...]:
        if reply is None:
            raise NotFound(f"there is no job {job!r}")
        return tuple(AttemptRecord.from_fields(i, read_hash(fields)) for i, fields in enumerate(reply, start=1))

    return call_function("list_attempts", decode, ref=job_ref(tenant, job))


def cancel(tenant: str, job: str, versions: Versions = None) -> Call[Literal["cancelled", "cancelling"]]:
    """Cancel a job. One that is cancelled already stays so: the caller may not have heard the first answer.

    Raises (on execution):
        NotFound: no such job of this tenant.
        JobFinished: it has ended otherwise.
    """

    def decode(reply: bytes) -> Literal["cancelled", "cancelling"]:
        _raise_if_changed(reply, job)
        if reply == b"missing":
            raise NotFound(f"there is no job {job!r}")
        if reply == b"finished":
            raise JobFinished(f"job {job} has ended; there is nothing to cancel")
        return "cancelled" if reply == b"cancelled" else "cancelling"

    return call_function("cancel", decode, ref=job_ref(tenant, job), versions=_join_versions(versions))


def suspend(tenant: str, job: str, versions: Versions = None) -> Call[Literal["suspended", "suspending"]]:
    """Suspend a job: one that is queued leaves the queue and keeps its place, one on devices saves and leaves them. One
    that is suspended already stays so.

    Raises (on execution):
        NotFound: no such job of this tenant.
        JobFinished: it has ended, or is being cancelled.
    """

    def decode(reply: bytes) -> Literal["suspended", "suspending"]:
        _raise_if_over(reply, job, "suspend")
        return "suspended" if reply == b"suspended" else "suspending"

    return call_function("suspend", decode, ref=job_ref(tenant, job), versions=_join_versions(versions))


def resume(tenant: str, job: str, versions: Versions = None) -> Call[None]:
    """Put a suspended job back to its place in the queue; one that is not suspended stays as it is. Raises as `suspend`
    does."""
    return call_function(
        "resume",
        lambda reply: _raise_if_over(reply, job, "resume"),
        ref=job_ref(tenant, job),
        versions=_join_versions(versions),
    )


def _join_versions(versions: Versions) -> str:
    """As the functions take them: a job never has the version -1."""
    return "" if versions is None else " ".join(map(str, versions)) or "-1"


def _raise_if_changed(reply: bytes, job: str) -> None:
    if reply == b"changed":
        raise PreconditionFailed(f"job {job} is not as it was any more; read it again, and decide again")


def _raise_if_over(reply: bytes, job: str, what: str) -> None:
    _raise_if_changed(reply, job)
    if reply == b"missing":
        raise NotFound(f"there is no job {job!r}")
    if reply == b"finished":
        raise JobFinished(f"job {job} has ended; there is nothing to {what}")
    if reply == b"cancelling":
        raise JobFinished(f"job {job} is being cancelled; there is nothing to {what}")


@dataclass(frozen=True, slots=True)
class CancelledChunk:
    next_id: str | None  # pass it as `after` to go on; None at the end
    cancelled: int
    cancelling: int  # told to end


def cancel_many(tenant: str, chosen: JobFilter, *, after: str) -> Call[CancelledChunk]:
    """Cancel a chunk of the jobs that match, newest first, with ids below `after`. The filter must name a state."""

    def decode(reply: Sequence[Any]) -> CancelledChunk:
        next_id, cancelled, cancelling = reply
        return CancelledChunk(next_id.decode() or None, cancelled, cancelling)

    return call_function(
        "cancel_many",
        decode,
        **_filter_arguments(tenant, chosen),
        after_id=after,
        max_jobs=MAX_CANCELLED,
        max_scanned=MAX_CANCEL_SCANNED,
    )


def count_jobs(tenant: str) -> Call[dict[JobState, int]]:
    """Jobs of a tenant in every state."""

    def decode(reply: Sequence[int]) -> dict[JobState, int]:
        return dict(zip(JobState, reply, strict=True))

    return call_function("count_jobs", decode, *JobState, tenant=tenant)


@dataclass(frozen=True, slots=True)
class JobColumns:
    """What a table shows of a job beside its row. `spec` is JSON, empty where it is too large for tables."""

    token: str
    result: dict[str, Any]
    spec: bytes


def read_columns(tenant: str, jobs: Sequence[str]) -> Call[tuple[JobColumns, ...]]:
    """Of jobs of a tenant, in their order; of one that is gone, nothing is known."""

    def decode(reply: Sequence[Any]) -> tuple[JobColumns, ...]:
        return tuple(
            JobColumns(
                token.decode(),
                msgspec.json.decode(result, type=dict[str, Any]) if result else {},
                decompress_spec(spec) if spec else b"",
            )
            for token, result, spec in reply
        )

    refs = [job_ref(tenant, job) for job in jobs]
    return call_function("read_columns", decode, *refs, max_spec_bytes=MAX_COLUMN_SPEC_BYTES)


def read_versions(jobs: Sequence[tuple[str, str]]) -> Call[tuple[int | None, ...]]:
    """Versions of jobs that are given as (tenant, id); None for one that is gone."""

    def decode(reply: Sequence[bytes]) -> tuple[int | None, ...]:
        return tuple(int(version) if version else None for version in reply)

    return call_function("read_versions", decode, *(job_ref(tenant, job) for tenant, job in jobs))


@dataclass(frozen=True, slots=True)
class ChangePage:
    """Part of the list of changes: (id of the entry, tenant, job), oldest first. `newest` is the id of the last entry
    there is; `known` is whether the entry that was asked for is still there, so that nothing after it was trimmed."""

    newest: str
    known: bool
    entries: tuple[tuple[str, str, str], ...]


def read_changes(after: str, limit: int) -> Call[ChangePage]:
    """Which jobs, of all tenants, changed after an entry, at most so many."""

    def decode(reply: Sequence[Any]) -> ChangePage:
        newest, known, entries = reply
        found = ((name.decode(), *fields[1].decode().split("/", 1)) for name, fields in entries)
        return ChangePage(newest.decode(), known == b"1", tuple(found))

    return call_function("read_changes", decode, after=after, limit=limit)


def read_records(jobs: Sequence[tuple[str, str]]) -> Call[tuple[JobRecord | None, ...]]:
    """Jobs that are given as (tenant, id); None for one that is gone."""

    def decode(reply: Sequence[Any]) -> tuple[JobRecord | None, ...]:
        return tuple(
            JobRecord.from_fields(tenant, job, read_hash(found)) if found else None
            for (tenant, job), found in zip(jobs, reply, strict=True)
        )

    return call_function("read_records", decode, *(job_ref(tenant, job) for tenant, job in jobs))


def delete_job(tenant: str, job: str, versions: Versions = None) -> Call[None]:
    """Forget a finished job. Raises NotFound, or JobNotFinished, on execution. Files are the caller's."""

    def decode(reply: bytes) -> None:
        if reply == b"missing":
            raise NotFound(f"there is no job {job!r}")
        _raise_if_changed(reply, job)
        if reply == b"not_finished":
            raise JobNotFinished(f"job {job} has not ended; cancel it first")

    return call_function("delete_job", decode, tenant=tenant, id=job, versions=_join_versions(versions))
