"""One job: submit, read, cancel, suspend, resume, delete."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

import msgspec
from msgspec.structs import replace as replace_fields

from jobs.model.error_words import nearest_choice
from jobs.model.records import AttemptRecord, JobRecord, QueueView
from jobs.model.spec import JobSpec
from jobs.model.state import JobState, StateReason
from jobs.model.trace_context import JobTrace
from jobs.protocol.names import job_ref
from jobs.store.accounts.quotas import raise_over_quota
from jobs.store.bundles import unknown_bundle
from jobs.store.call import Call, Word, call_function, read_hash
from jobs.store.specs import decode_spec, encode_spec
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
    if status == "network_closed":
        allow = f"an operator allows more with `shardyard pool set {spec.pool} --network none`"
        raise InvalidSpec(
            f"jobs of pool {spec.pool!r} never have the network of their node, which a job over several nodes needs",
            fields=(FieldError("resources.nodes", f"set it to 1, or choose another pool; {allow}"),),
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
            fields=(
                FieldError("resources.nodes", f"at most {detail[0]} in pool {spec.pool!r} with that many devices"),
            ),
        )


def _refused_dependency(status: str, jobs: Sequence[str], spec: JobSpec) -> InvalidSpec:
    places = {job: f"depends_on.{number}" for number, job in enumerate(spec.depends_on or ())}
    words = {
        "unknown_jobs": "there is no job {0!r} of yours, or it is archived; leave it out",
        "many_dependents": "no more jobs may wait for {0!r}; wait for another one of these instead",
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
        raise PreconditionFailed(f"job {job} has changed meanwhile; read it again, and decide again")


def _raise_if_over(reply: bytes, job: str, what: str) -> None:
    _raise_if_changed(reply, job)
    if reply == b"missing":
        raise NotFound(f"there is no job {job!r}")
    if reply == b"finished":
        raise JobFinished(f"job {job} has ended; there is nothing to {what}")
    if reply == b"cancelling":
        raise JobFinished(f"job {job} is being cancelled; there is nothing to {what}")


def delete_job(tenant: str, job: str, versions: Versions = None) -> Call[None]:
    """Forget a finished job. Raises NotFound, or JobNotFinished, on execution. Files are the caller's."""

    def decode(reply: bytes) -> None:
        if reply == b"missing":
            raise NotFound(f"there is no job {job!r}")
        _raise_if_changed(reply, job)
        if reply == b"not_finished":
            raise JobNotFinished(f"job {job} has not ended; cancel it first")

    return call_function("delete_job", decode, tenant=tenant, id=job, versions=_join_versions(versions))
