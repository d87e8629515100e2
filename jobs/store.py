"""Every call on the control Redis, as a value: which script, with what arguments, and how to read the reply.

The functions below touch no network. `jobs.redis_store` executes a `Call` over a synchronous or an
asynchronous client, so the worker and the API share one definition of each transition. What a
transition does is in its `.lua` file.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Any, Generic, Literal, TypeVar

import msgspec
import zstandard
from pydantic import ValidationError

from jobs.errors import (
    BundleQuota,
    FieldError,
    FormatMismatch,
    IdempotencyConflict,
    JobFinished,
    JobNotFinished,
    NodeInUse,
    NotFound,
    TooLargeForPool,
    UnknownBundle,
    UnknownPool,
    UnreadableSpec,
)
from jobs.record import AttemptRecord, Fields, JobRecord, NodeInfo, NodeRecord, Quarantine, QueueView
from jobs.spec import JobSpec
from jobs.state import CAUSE_OF, AttemptState, Cause, Order, Reason, State
from jobs.wire import attempt_ref, bundle_ref, job_ref

T = TypeVar("T")

#: Of the keys as a whole. It changes when a version of the service could not work beside the one before it; what is
#: added, keys and fields of hashes, changes nothing here: whoever does not know it leaves it alone.
FORMAT = "1"
IDEMPOTENCY_SECONDS = 7 * 86_400
#: How long it is remembered that a job was archived just now: longer than a call is repeated whose reply was lost.
ARCHIVED_SECONDS = 120
MAX_DISPATCHED = 32
MAX_SCANNED = 5_000
#: Jobs that one call cancels, and looks at: Redis answers nobody else meanwhile.
MAX_CANCELLED = 50
MAX_CANCEL_SCANNED = 1_000
#: Attempts that a job may lose to failures of the service without progress; the next loss parks it as failed.
MAX_LOSSES = 5
MAX_SPEC_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One script call: `parse` turns the raw reply into `T`, or raises an error of `jobs.errors`."""

    script: str
    args: tuple[str | bytes | int, ...]
    parse: Callable[[Any], T]


#: What a server that is short of memory, or cannot write, should still do. Reading needs no flag but the promise; a
#: new job is refused cleanly; everything else must go on, or running jobs could neither beat nor end.
_READING = (
    "attempts",
    "bundle_nonces",
    "changes",
    "count_jobs",
    "dump",
    "finished",
    "leases",
    "nodes",
    "orders",
    "page",
    "quarantine",
    "read_job",
    "records",
    "session_read",
    "snapshot",
    "token_list",
    "token_read",
    "versions",
)
_FLAGS = dict.fromkeys(_READING, " flags=no-writes") | {"submit": "", "put_bundle": ""}


@cache
def source(script: str) -> str:
    """Lua source of a script, with its flags and the shared library before it."""
    scripts = files("jobs") / "scripts"
    flags = _FLAGS.get(script, " flags=allow-oom")
    return f"#!lua{flags}\n" + (scripts / "_lib.lua").read_text() + (scripts / f"{script}.lua").read_text()


# -- jobs ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Submitted:
    job: str
    created: bool  # False: the idempotency key was used before, for the same body


def submit(
    tenant: str,
    job: str,
    spec: JobSpec,
    *,
    idempotency_key: str = "",
    digest: str = "",
    parent: str = "",
    token: str = "",
) -> Call[Submitted]:
    """Store and queue a job.

    Raises (on execution):
        IdempotencyConflict: the key was used for another body.
        UnknownBundle: the tenant has no such bundle, or has none any more.
        UnknownPool, TooLargeForPool: it could never run.
    """
    bundle = spec.program.bundle

    def parse(reply: Sequence[bytes]) -> Submitted:
        status, *detail = (part.decode() for part in reply)
        if status == "conflict":
            raise IdempotencyConflict(
                f"this Idempotency-Key was used for job {detail[0]} with another body; send a new key"
            )
        if status == "unknown_bundle":
            raise unknown_bundle(bundle)
        if status == "unknown_pool":
            known = ", ".join(sorted(detail)) or "none: no worker has registered yet"
            raise UnknownPool(f"there is no pool {spec.pool!r}; pools: {known}")
        if status == "too_large":
            raise TooLargeForPool(
                f"the job needs {spec.resources.devices} devices on one node, but the largest node of pool "
                f"{spec.pool!r} has {detail[0]}; lower resources.devices or choose another pool"
            )
        return Submitted(detail[0], detail[0] == job)  # so the repeat of a call whose reply was lost is no other answer

    return Call(
        "submit",
        (
            tenant,
            job,
            spec.pool,
            spec.resources.devices,
            spec.priority,
            spec.name or "",
            spec.parallelism.strategy,
            msgspec.json.encode(spec.labels),
            pack_spec(spec),
            spec.limits.max_retries,
            idempotency_key,
            digest,
            IDEMPOTENCY_SECONDS,
            parent,
            token,
            (bundle or "").removeprefix("sha256:"),
        ),
        parse,
    )


@dataclass(frozen=True, slots=True)
class JobView:
    record: JobRecord
    spec: JobSpec
    queue: QueueView | None  # only while queued


def read_job(tenant: str, job: str) -> Call[JobView]:
    """One job.

    Raises (on execution):
        NotFound: no such job of this tenant.
    """

    def parse(reply: Sequence[Any]) -> JobView:
        if not reply:
            raise NotFound(f"there is no job {job!r}")
        record = JobRecord.read(tenant, job, fields_of(reply[0]))
        queue = QueueView(*(int(number) for number in reply[2:7])) if len(reply) > 2 else None
        return JobView(record, unpack_spec(reply[1]), queue)

    return Call("read_job", (job_ref(tenant, job),), parse)


@dataclass(frozen=True, slots=True)
class JobFilter:
    state: State | None = None
    pool: str = ""
    label: tuple[str, str] | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class JobPage:
    jobs: tuple[JobRecord, ...]
    next_id: str | None  # pass it as `after` for the next page; None at the end


def page(tenant: str, chosen: JobFilter, *, after: str = "", limit: int = 50) -> Call[JobPage]:
    """A page of jobs, newest first. A page may be short, even empty, while `next_id` is set: a filter
    that matches rarely looks at `MAX_SCANNED` jobs a call."""

    def parse(reply: Sequence[Any]) -> JobPage:
        next_id, *rows = reply
        jobs = tuple(JobRecord.read(tenant, row[0].decode(), fields_of(row[1])) for row in rows)
        return JobPage(jobs, next_id.decode() or None)

    key, value = chosen.label or ("", "")
    return Call(
        "page", (tenant, chosen.state or "", after, limit, chosen.pool, key, value, chosen.name, MAX_SCANNED), parse
    )


def attempts(tenant: str, job: str) -> Call[tuple[AttemptRecord, ...]]:
    """All attempts of a job, oldest first. Raises NotFound on execution."""

    def parse(reply: Sequence[Any] | None) -> tuple[AttemptRecord, ...]:
        if reply is None:
            raise NotFound(f"there is no job {job!r}")
        return tuple(AttemptRecord.read(i, fields_of(fields)) for i, fields in enumerate(reply, start=1))

    return Call("attempts", (job_ref(tenant, job),), parse)


def cancel(tenant: str, job: str) -> Call[Literal["cancelled", "cancelling"]]:
    """Cancel a job. One that is cancelled already stays so: the caller may not have heard the first answer.

    Raises (on execution):
        NotFound: no such job of this tenant.
        JobFinished: it has ended otherwise.
    """

    def parse(reply: bytes) -> Literal["cancelled", "cancelling"]:
        if reply == b"missing":
            raise NotFound(f"there is no job {job!r}")
        if reply == b"finished":
            raise JobFinished(f"job {job} has ended; there is nothing to cancel")
        return "cancelled" if reply == b"cancelled" else "cancelling"

    return Call("cancel", (job_ref(tenant, job),), parse)


@dataclass(frozen=True, slots=True)
class Cancelled:
    next_id: str | None  # pass it as `after` to go on; None at the end
    cancelled: int
    cancelling: int  # told to end


def cancel_many(tenant: str, chosen: JobFilter, *, after: str) -> Call[Cancelled]:
    """Cancel a chunk of the jobs that match, newest first, with ids below `after`. The filter must name a state."""

    def parse(reply: Sequence[Any]) -> Cancelled:
        next_id, cancelled, cancelling = reply
        return Cancelled(next_id.decode() or None, cancelled, cancelling)

    key, value = chosen.label or ("", "")
    args = (tenant, chosen.state or "", after, chosen.pool, key, value, chosen.name, MAX_CANCELLED, MAX_CANCEL_SCANNED)
    return Call("cancel_many", args, parse)


def count_jobs(tenant: str) -> Call[dict[State, int]]:
    """Jobs of a tenant in every state."""

    def parse(reply: Sequence[int]) -> dict[State, int]:
        return dict(zip(State, reply, strict=True))

    return Call("count_jobs", (tenant, *State), parse)


def versions(jobs: Sequence[tuple[str, str]]) -> Call[tuple[int | None, ...]]:
    """Versions of jobs that are given as (tenant, id); None for one that is gone."""

    def parse(reply: Sequence[bytes]) -> tuple[int | None, ...]:
        return tuple(int(version) if version else None for version in reply)

    return Call("versions", tuple(job_ref(tenant, job) for tenant, job in jobs), parse)


@dataclass(frozen=True, slots=True)
class Changes:
    """Part of the list of changes: (id of the entry, tenant, job), oldest first. `newest` is the id of the last entry
    there is; `known` is whether the entry that was asked for is still there, so that nothing after it was trimmed."""

    newest: str
    known: bool
    entries: tuple[tuple[str, str, str], ...]


def changes(after: str, most: int) -> Call[Changes]:
    """Which jobs, of all tenants, changed after an entry, at most so many."""

    def parse(reply: Sequence[Any]) -> Changes:
        newest, known, entries = reply
        found = ((name.decode(), *fields[1].decode().split("/", 1)) for name, fields in entries)
        return Changes(newest.decode(), known == b"1", tuple(found))

    return Call("changes", (after, most), parse)


def records(jobs: Sequence[tuple[str, str]]) -> Call[tuple[JobRecord | None, ...]]:
    """Jobs that are given as (tenant, id); None for one that is gone."""

    def parse(reply: Sequence[Sequence[bytes]]) -> tuple[JobRecord | None, ...]:
        return tuple(
            JobRecord.read(tenant, job, fields_of(fields)) if fields else None
            for (tenant, job), fields in zip(jobs, reply, strict=True)
        )

    return Call("records", tuple(job_ref(tenant, job) for tenant, job in jobs), parse)


def delete(tenant: str, job: str) -> Call[None]:
    """Forget a finished job. Raises NotFound, or JobNotFinished, on execution. Files are the caller's."""

    def parse(reply: bytes) -> None:
        if reply == b"missing":
            raise NotFound(f"there is no job {job!r}")
        if reply == b"not_finished":
            raise JobNotFinished(f"job {job} has not ended; cancel it first")

    return Call("delete", (tenant, job), parse)


# -- archive ---------------------------------------------------------------------------------------


def finished(age_seconds: float, limit: int) -> Call[tuple[tuple[str, str], ...]]:
    """Jobs, as (tenant, id), that ended so long ago; those that ended first come first."""

    def parse(reply: Sequence[bytes]) -> tuple[tuple[str, str], ...]:
        refs = (ref.decode().partition("/") for ref in reply)
        return tuple((tenant, job) for tenant, _, job in refs)

    return Call("finished", (int(age_seconds * 1e6), limit), parse)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that the store has about a finished job, as it has it."""

    job: Fields
    spec: bytes  # JSON
    attempts: tuple[Fields, ...]

    @property
    def version(self) -> int:
        return int(self.job[b"version"])


def snapshot(tenant: str, job: str) -> Call[Snapshot | None]:
    """A finished job; None when it has not ended, or is not there."""

    def parse(reply: Sequence[Any]) -> Snapshot | None:
        if not reply:
            return None
        job, spec, *attempts = reply
        return Snapshot(fields_of(job), _unpacked(spec), tuple(fields_of(attempt) for attempt in attempts))

    return Call("snapshot", (job_ref(tenant, job),), parse)


class Archived(StrEnum):
    DONE = "archived"
    MISSING = "missing"  # it was deleted meanwhile
    CHANGED = "changed"  # it is not what was written


def archive(tenant: str, job: str, version: int) -> Call[Archived]:
    """Forget a finished job that is on disk now, if it is still of that version."""
    return Call("archive", (job_ref(tenant, job), version, ARCHIVED_SECONDS), lambda reply: Archived(reply.decode()))


def free_key(tenant: str, key: str, job: str) -> Call[None]:
    """Free the Idempotency-Key that made an archived job which is gone for good."""
    return Call("free_key", (tenant, key, job), lambda _: None)


# -- back-up ---------------------------------------------------------------------------------------


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One key as it was: its values in the order in which Redis lists those of its kind."""

    key: bytes
    kind: str  # string | hash | set | zset
    milliseconds: int  # left to live; -1: for ever
    values: tuple[bytes, ...]


def dump() -> Call[tuple[Entry, ...]]:
    """Everything that a back-up holds, at one moment. Redis answers nobody else meanwhile: 0.3 s for 10,000 jobs."""

    def parse(reply: Sequence[Any]) -> tuple[Entry, ...]:
        return tuple(Entry(key, kind.decode(), left, tuple(values)) for key, kind, left, values in reply)

    return Call("dump", (), parse)


def restored() -> Call[int]:
    """End the attempts that were live in a back-up; their jobs are queued again. Returns how many there were."""
    return Call("restored", (), int)


# -- bundles ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BundleRecord:
    """A bundle of a tenant; sizes in bytes, times in microseconds since the epoch."""

    id: str
    nonce: str  # names its file: layout.bundle_file
    bytes: int
    files: int
    unpacked: int
    created: int
    used: int
    jobs: int  # that need it, also those that have ended and could be submitted again


@dataclass(frozen=True, slots=True)
class BundlePut:
    created: bool
    nonce: str  # of the file that is kept: another one than the caller's when that came second


def put_bundle(
    tenant: str, bundle: str, nonce: str, *, size: int, files: int, unpacked: int, gone: str = "", quota: int
) -> Call[BundlePut]:
    """Note an upload whose file is in place. `gone` is the nonce of a record whose file was found missing. `quota` is
    how many bytes all bundles of the tenant may have.

    Raises (on execution):
        BundleQuota: they would have more.
    """

    def parse(reply: Sequence[bytes]) -> BundlePut:
        status, *detail = (part.decode() for part in reply)
        if status == "full":
            raise BundleQuota(
                f"your bundles have {detail[0]} bytes, and with this one of {size} they would have more than {quota}; "
                "delete finished jobs that you do not need, and their bundles go when they have rested"
            )
        kept = detail[0] if detail else nonce
        return BundlePut(kept == nonce, kept)  # so the repeat of a call whose reply was lost is no other answer

    return Call("put_bundle", (bundle_ref(tenant, bundle), nonce, size, files, unpacked, gone, quota), parse)


def read_bundle(tenant: str, bundle: str) -> Call[BundleRecord | None]:
    """A bundle, which counts as used now; None when the tenant has no such one."""

    def parse(reply: Sequence[bytes]) -> BundleRecord | None:
        if not reply:
            return None
        fields = {name.decode(): value.decode() for name, value in fields_of(reply).items()}
        nonce = fields.pop("nonce")
        return BundleRecord(id=bundle, nonce=nonce, **{name: int(value) for name, value in fields.items()})

    return Call("read_bundle", (bundle_ref(tenant, bundle),), parse)


def unknown_bundle(bundle: str | None) -> UnknownBundle:
    problem = "there is no such bundle; upload it with POST /v1/bundles, and submit again"
    return UnknownBundle(f"there is no bundle {bundle}", fields=(FieldError("program.bundle", problem),))


@dataclass(frozen=True, slots=True)
class StoredBundle:
    """Which file a bundle has, or had."""

    tenant: str
    id: str
    nonce: str


def collect_bundles(rested_seconds: float, limit: int = 100) -> Call[tuple[StoredBundle, ...]]:
    """Forget bundles that no job needs and nobody has used for so long; their files are the caller's."""

    def parse(reply: Sequence[Sequence[bytes]]) -> tuple[StoredBundle, ...]:
        rows = ((*ref.decode().split("/"), nonce.decode()) for ref, nonce in reply)
        return tuple(StoredBundle(tenant, f"sha256:{digest}", nonce) for tenant, digest, nonce in rows)

    return Call("collect_bundles", (int(rested_seconds * 1e6), limit), parse)


def are_kept(stored: Sequence[StoredBundle]) -> Call[tuple[bool, ...]]:
    """Whether each of these files is the one that its bundle has."""

    def parse(reply: Sequence[bytes]) -> tuple[bool, ...]:
        return tuple(nonce.decode() == one.nonce for nonce, one in zip(reply, stored, strict=True))

    return Call("bundle_nonces", tuple(bundle_ref(one.tenant, one.id) for one in stored), parse)


# -- scheduling ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AttemptId:
    """Names one attempt everywhere. `number` is the fencing token."""

    tenant: str
    job: str
    number: int

    @classmethod
    def parse(cls, ref: str) -> "AttemptId":
        tenant, job, number = ref.split("/")
        return cls(tenant, job, int(number))

    def __str__(self) -> str:
        return attempt_ref(self.tenant, self.job, self.number)

    @property
    def job_ref(self) -> str:
        return job_ref(self.tenant, self.job)


def dispatch(hold_seconds: float) -> Call[tuple[AttemptId, ...]]:
    """Lease free devices to queued jobs; the attempts that were created."""
    return Call("dispatch", (MAX_DISPATCHED, int(hold_seconds * 1e6)), _attempt_ids)


@dataclass(frozen=True, slots=True)
class Hint:
    """Tells `node` that an attempt waits there for a supervisor. Harmless however often it is sent."""

    node: str
    attempt: AttemptId


def hints(resend_seconds: float, limit: int = 128) -> Call[tuple[Hint, ...]]:
    """Take the hints that are due; each is due again after `resend_seconds` unless it is claimed."""

    def parse(reply: Sequence[bytes]) -> tuple[Hint, ...]:
        pairs = (member.decode().split(" ", 1) for member in reply)
        return tuple(Hint(node, AttemptId.parse(ref)) for node, ref in pairs)

    return Call("hints", (limit, int(resend_seconds * 1e6)), parse)


@dataclass(frozen=True, slots=True)
class Claim:
    spec: JobSpec | None
    refused: str = ""


def claim(attempt: AttemptId, claimant: str, node: str) -> Call[Claim]:
    """Take an attempt for a supervisor. `claimant` is a nonce that every later call must show."""

    def parse(reply: Sequence[bytes]) -> Claim:
        if reply[0] != b"claimed":
            return Claim(None, reply[1].decode())
        return Claim(unpack_spec(reply[1]))

    return Call("claim", (attempt.job_ref, attempt.number, claimant, node), parse)


def mark(attempt: AttemptId, claimant: str, what: Literal["running", "first_step"]) -> Call[bool]:
    """Note that the first rank is up, or has made its first step. False: the lease is lost."""
    return Call("mark", (attempt.job_ref, attempt.number, claimant, what), _is_ok)


def renew(attempt: AttemptId, claimant: str) -> Call[bool]:
    """Beat the lease. False: it is lost."""
    return Call("renew", (attempt.job_ref, attempt.number, claimant), _is_ok)


def orders(attempt: AttemptId, claimant: str) -> Call[Order]:
    """What the supervisor should do now."""
    return Call("orders", (attempt.job_ref, attempt.number, claimant), lambda reply: Order(reply.decode()))


def commit_checkpoint(
    attempt: AttemptId, claimant: str, *, step: int, epoch: int, sha256: str
) -> Call[Literal["ok", "stale", "lost"]]:
    """Point the job to a checkpoint that is whole and on disk, if it is of a higher step than the one before.
    `sha256` is its manifest's. lost: the lease is."""
    answers: dict[bytes, Literal["ok", "stale", "lost"]] = {b"ok": "ok", b"stale": "stale", b"lost": "lost"}
    return Call("checkpoint", (attempt.job_ref, attempt.number, claimant, step, epoch, sha256), answers.__getitem__)


def resume_from(
    attempt: AttemptId, claimant: str, *, step: int | None, epoch: int = 0, saved_by: int = 0, sha256: str = ""
) -> Call[bool]:
    """Note which checkpoint an attempt goes on from, saved by attempt `saved_by`; `step` is None where it begins at the
    first step, since none could be used. False: the lease is lost."""
    args = ("" if step is None else step, epoch, saved_by, sha256)
    return Call("resume_from", (attempt.job_ref, attempt.number, claimant, *args), _is_ok)


def script_resumes(attempt: AttemptId, claimant: str, *, saved_by: int) -> Call[bool]:
    """Note that a script goes on from what attempt `saved_by` has saved, which makes up for the losses before that.
    False: the lease is lost."""
    return Call("script_resumes", (attempt.job_ref, attempt.number, claimant, saved_by), _is_ok)


def finish(
    attempt: AttemptId,
    claimant: str,
    reason: Reason,
    message: str,
    *,
    error: Mapping[str, Any] | None = None,
    result: Mapping[str, Any] | None = None,
    backoff_seconds: float = 0,
) -> Call[bool]:
    """Write the end of an attempt. False: the lease was lost, and what happened there does not count."""
    return Call(
        "finish",
        (
            attempt.job_ref,
            attempt.number,
            claimant,
            reason,
            message,
            CAUSE_OF[reason],
            _json(error),
            _json(result),
            int(backoff_seconds * 1e6),
            MAX_LOSSES,
        ),
        _is_ok,
    )


def reap(
    attempt: AttemptId,
    reason: Reason,
    message: str,
    *,
    beat: int | None,
    backoff_seconds: float,
    node_beat: int | None = None,
    node_message: str = "",
) -> Call[Reason | None]:
    """End an attempt whose supervisor is gone. `beat` is the value that stood still; None with proof of death.
    `node_beat` is that of its node, where that stood still too: the attempt then ends as `node_lost`, with
    `node_message`; so it does on a node that is down, unless there is proof. Returns the reason that it ended with;
    None: it is alive after all, or has ended already."""
    args = (
        attempt.job_ref,
        attempt.number,
        "" if beat is None else beat,
        reason,
        message,
        int(backoff_seconds * 1e6),
        MAX_LOSSES,
        "" if node_beat is None else node_beat,
        node_message,
    )

    def parse(reply: Sequence[bytes]) -> Reason | None:
        status, ended = (part.decode() for part in reply)
        return Reason(ended) if status == "ok" else None

    return Call("reap", args, parse)


def refuse(attempt: AttemptId, node: str, reason: Reason, message: str, *, backoff_seconds: float = 0) -> Call[bool]:
    """Say that a node cannot start an attempt that nobody has claimed yet."""
    cause: Cause = CAUSE_OF[reason]
    args = (attempt.job_ref, attempt.number, node, reason, message, cause, int(backoff_seconds * 1e6), MAX_LOSSES)
    return Call("refuse", args, _is_ok)


def release(node: str, attempt: AttemptId, quarantine: Mapping[int, str]) -> Call[int]:
    """Give back the devices of an ended attempt; those in `quarantine` stay unused for that reason.
    Returns how many changed hands, -1 while the attempt is live."""
    bad = [part for device, reason in quarantine.items() for part in (device, reason)]
    return Call("release", (node, str(attempt), *bad), int)


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A device in quarantine, with its entry as it is stored: what is decided about it holds for that entry only."""

    device: int
    why: Quarantine
    entry: bytes


def quarantined(node: str) -> Call[tuple[Quarantined, ...]]:
    """The devices of a node that are in quarantine."""

    def parse(reply: Sequence[bytes]) -> tuple[Quarantined, ...]:
        entries = sorted((int(device), entry) for device, entry in fields_of(reply).items())
        return tuple(Quarantined(device, Quarantine.read(entry), entry) for device, entry in entries)

    return Call("quarantine", (node,), parse)


def quarantine_device(node: str, device: int, reason: str) -> Call[None]:
    """Set a device apart, by the operator's command. What runs on it goes on. Raises NotFound on execution."""
    return Call("quarantine_device", (node, device, reason), _device_found(node, device))


def unquarantine(node: str, device: int) -> Call[None]:
    """Bring a device back, by the operator's command. Raises NotFound on execution."""
    return Call("unquarantine", (node, device, ""), _device_found(node, device))


def prove_fit(node: str, found: Quarantined) -> Call[bool]:
    """Bring a device back, on proof. False: its entry has changed since it was found."""
    return Call("unquarantine", (node, found.device, found.entry), _is_ok)


def keep_quarantine(node: str, found: Quarantined, reason: str) -> Call[bool]:
    """Note why a device could not be proven fit. False: its entry has changed since it was found."""
    return Call("keep_quarantine", (node, found.device, found.entry, reason), _is_ok)


def _device_found(node: str, device: int) -> Callable[[bytes], None]:
    def parse(reply: bytes) -> None:
        if reply == b"missing":
            raise NotFound(f"there is no node {node!r}")
        if reply == b"no_device":
            raise NotFound(f"node {node} has no device {device}")

    return parse


# -- nodes -----------------------------------------------------------------------------------------


class Registered(StrEnum):
    OK = "ok"
    TAKEN = "taken"  # another worker, with another state directory, serves this node now
    STRANDED = "stranded"  # the node holds devices of attempts whose traces are in another state directory


def register_node(node: str, instance: str, pool: str, address: str, info: NodeInfo, *, home: str) -> Call[Registered]:
    """Announce a node. `home` is the nonce of the state directory that keeps the traces of its attempts."""
    args = (node, instance, pool, address, msgspec.json.encode(info), len(info.devices), home)
    return Call("register_node", args, lambda reply: Registered(reply.decode()))


def forget_node(node: str) -> Call[None]:
    """Drop a node that is gone for good, and what it held.

    Raises (on execution):
        NotFound: there is no such node.
        NodeInUse: it is alive, or a lease on it has not expired yet.
    """

    def parse(reply: bytes) -> None:
        if reply == b"missing":
            raise NotFound(f"there is no node {node!r}")
        if reply == b"alive":
            raise NodeInUse(f"node {node} is alive; stop its worker first")
        if reply == b"leased":
            raise NodeInUse(f"an attempt on node {node} still holds its lease; try again when it has expired")

    return Call("forget_node", (node,), parse)


class NodeStanding(StrEnum):
    OK = "ok"
    REPLACED = "replaced"  # another worker registered under the same node id
    UNKNOWN = "unknown"  # the control Redis has lost this node; register again


@dataclass(frozen=True, slots=True)
class Deadline:
    """When what runs on a node that drains is to move. `drain` is the number of the drain that set it."""

    drain: int
    seconds_left: float


@dataclass(frozen=True, slots=True)
class NodeBeat:
    standing: NodeStanding
    holding: dict[AttemptId, AttemptState]
    deadline: Deadline | None = None  # None: there is none, or it is over and told


def beat_node(node: str, instance: str, deadline: Deadline | None = None) -> Call[NodeBeat]:
    """Beat as a node; learns which attempts hold devices here, in which state they are, and how long they may stay.
    `deadline` is what the node knows of that; the rest of it is kept for a worker that comes back."""

    def parse(reply: Sequence[bytes]) -> NodeBeat:
        status, *rest = (part.decode() for part in reply)
        if not rest:
            return NodeBeat(NodeStanding(status), {})
        drain, left, *attempts = rest
        pairs = zip(attempts[::2], attempts[1::2], strict=True)
        holding = {AttemptId.parse(ref): AttemptState(state) for ref, state in pairs}
        return NodeBeat(NodeStanding(status), holding, Deadline(int(drain), float(left)) if left else None)

    known = (deadline.drain, f"{deadline.seconds_left:.3f}") if deadline is not None else ("", "")
    return Call("beat_node", (node, instance, *known), parse)


def node_down(node: str, beat: int | None) -> Call[bool]:
    """Take a node out of scheduling: its beat stood still, or (`beat` None) it says so itself."""
    return Call("node_down", (node, "" if beat is None else beat), _is_ok)


def stop_node(node: str) -> Call[int]:
    """Tell the supervisors of a node to end their attempts, which go back to queued. Returns how many are live;
    those that nobody had claimed have ended with this call."""
    return Call("stop_node", (node,), int)


def drain_node(node: str, *, deadline_seconds: float | None = None) -> Call[None]:
    """Give a node no new work. After the deadline, where there is one, what still runs there goes to other nodes.
    Asking again replaces the deadline. Raises NotFound on execution."""
    seconds = "" if deadline_seconds is None else f"{deadline_seconds:.3f}"
    return Call("drain_node", (node, "draining", "1", seconds), _node_found(node))


def undrain_node(node: str) -> Call[None]:
    """Give a node work again. Raises NotFound on execution."""
    return Call("drain_node", (node, "draining", "", ""), _node_found(node))


def leave_node(node: str, *, deadline_seconds: float | None = None) -> Call[None]:
    """A drain that the node's own worker asks for, before it leaves; it ends when another worker registers the node.
    Raises NotFound on execution."""
    seconds = "" if deadline_seconds is None else f"{deadline_seconds:.3f}"
    return Call("drain_node", (node, "leaving", "1", seconds), _node_found(node))


def move_attempts(node: str, drain: int) -> Call[bool]:
    """Send what runs on a node to other nodes: the deadline of its drain, the one of that number, is over. False: it
    drains no longer, or has another deadline by now."""
    return Call("move_attempts", (node, drain), _is_ok)


def _node_found(node: str) -> Callable[[bytes], None]:
    def parse(reply: bytes) -> None:
        if reply == b"missing":
            raise NotFound(f"there is no node {node!r}")

    return parse


@dataclass(frozen=True, slots=True)
class Beats:
    """Everything that the reaper watches."""

    leases: dict[AttemptId, int]
    nodes: dict[str, int]  # those that count as alive
    node_of: dict[AttemptId, str]


def beats() -> Call[Beats]:
    def parse(reply: Sequence[Any]) -> Beats:
        leases, nodes = reply
        return Beats(
            {AttemptId.parse(ref.decode()): int(beat) for ref, beat, _ in leases},
            {node.decode(): int(beat) for node, beat in nodes},
            {AttemptId.parse(ref.decode()): node.decode() for ref, _, node in leases},
        )

    return Call("leases", (), parse)


def storage_nonce(proposed: str) -> Call[str]:
    """The nonce of the service's storage directory; `proposed` becomes it when there is none yet.

    Raises (on execution):
        FormatMismatch: another version of the service keeps its keys in another way there.
    """

    def parse(reply: Sequence[bytes]) -> str:
        nonce, found = (part.decode() for part in reply)
        if found != FORMAT:
            raise FormatMismatch(
                f"the control Redis has keys of format {found}, and this version of the service knows {FORMAT}; "
                "install the version that the rest of the service has"
            )
        return nonce

    return Call("storage", (proposed, FORMAT), parse)


def lead(candidate: str, ttl_seconds: float) -> Call[bool]:
    """True while `candidate` is the one that reaps; it must ask again within `ttl_seconds`."""
    return Call("lead", (candidate, int(ttl_seconds * 1000)), bool)


@dataclass(frozen=True, slots=True)
class Fleet:
    nodes: tuple[NodeRecord, ...]
    queued: dict[str, int]  # pool -> jobs that wait in it


def fleet() -> Call[Fleet]:
    """Every node and pool."""

    def parse(reply: Sequence[Any]) -> Fleet:
        nodes, pools = reply
        records = (NodeRecord.read(n.decode(), fields_of(f), fields_of(h), fields_of(q)) for n, f, h, q in nodes)
        return Fleet(
            tuple(sorted(records, key=lambda node: node.id)), {pool.decode(): int(n) for pool, n in sorted(pools)}
        )

    return Call("nodes", (), parse)


# -- encoding --------------------------------------------------------------------------------------


def pack_spec(spec: JobSpec) -> bytes:
    """What is not set is left out, so that a worker of an earlier version reads every spec but those that ask for what
    it has not."""
    return zstandard.compress(spec.model_dump_json(exclude_none=True).encode())


def unpack_spec(data: bytes) -> JobSpec:
    """Raises UnreadableSpec: another version of the service wrote it, with fields that this one does not know."""
    return read_spec(_unpacked(data))


def _unpacked(spec: bytes) -> bytes:
    unpacked: bytes = zstandard.decompress(spec, max_output_size=MAX_SPEC_BYTES)
    return unpacked


def read_spec(data: bytes) -> JobSpec:
    """A stored spec, from its JSON. Raises as `unpack_spec` does."""
    try:
        return JobSpec.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UnreadableSpec(
            f"this version of the service cannot read the stored spec: {where}: {first['msg']}"
        ) from error


def _json(value: Mapping[str, Any] | None) -> bytes:
    return b"" if value is None else msgspec.json.encode(value)


def fields_of(flat: Iterable[bytes] | Fields) -> Fields:
    """A hash reply: RESP2 lists it flat, RESP3 as a mapping."""
    if isinstance(flat, Mapping):
        return flat
    items = list(flat)
    return dict(zip(items[::2], items[1::2], strict=True))


def _is_ok(reply: bytes) -> bool:
    return reply == b"ok"


def _attempt_ids(reply: Sequence[bytes]) -> tuple[AttemptId, ...]:
    return tuple(AttemptId.parse(ref.decode()) for ref in reply)
