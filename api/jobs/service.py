"""The service of jobs: submits, reads, waits for, cancels and deletes them."""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeVar

import msgspec
import structlog
import uuid_utils

from api.accounts.secrets_service import SecretService
from api.bundles.service import BundleService
from api.data import attempt_files
from api.data.change_notifier import ChangeNotifier
from api.data.file_threads import AttemptStorage
from api.data.fleet_cache import FleetCache
from api.data.job_repository import JobRepository
from api.data.telemetry_reader import TelemetryReader
from api.http import audit, cursors
from api.http.auth import Principal
from api.http.responses import TaggedJson
from api.http.tenant_slots import TenantSlots
from api.jobs.list_order import NEWEST, OLDEST, Order, read_sorted
from api.jobs.listed_rows import EncodedJobList, ListedRows
from api.jobs.owner_names import OwnerNames
from api.jobs.status_poll import StatusCache
from api.jobs.submit_limits import SubmitLimits
from api.schemas import views
from api.schemas.job_requests import parse_cancel, parse_spec
from api.schemas.request_body import refuse_body
from jobs import store
from jobs.model.device_history import RowHistory, find_common_times
from jobs.model.records import AttemptRecord, JobRecord, JobRow, QueueView
from jobs.model.spec import JobSpec
from jobs.model.state import TERMINAL, JobState
from jobs.model.trace_context import JobTrace, TraceContext, trace_job
from jobs.protocol.names import job_ref
from jobs.store import AttemptId, JobFilter, JobRowPage
from jobs.store.client import AsyncRedisStore
from jobs.support import failpoints
from shardyard.contract.errors import (
    FieldError,
    Forbidden,
    InvalidRequest,
    JobFinished,
    JobNotFinished,
    NotFound,
    PreconditionFailed,
    TooManyReads,
    Unavailable,
    UnreadableSpec,
)
from shardyard.contract.responses import AttemptList, CancelledJobs, JobStatus, Progress

T = TypeVar("T")
log = structlog.get_logger(__name__)

#: Devices of a plan whose histories are read.
MAX_PLANNED_DEVICES = 64
#: The longest that a status may be waited for.
MAX_WAIT_SECONDS = 60.0
#: Requests that wait at once in one process, of one tenant, of each tenant when others hold all, and all of these.
MAX_WAITING, MAX_WAITING_OF_TENANT, OWN_WAITING, RESERVED_WAITING = 2_000, 1_500, 20, 400
#: A cancel of many jobs answers after this long at the latest, with what it has done so far.
CANCEL_SECONDS = 20.0
#: Jobs change state while they are cancelled, so all states are searched again until no job is found.
CANCEL_ROUNDS = 3
#: Jobs of a page whose position in the queue is read.
MAX_QUEUE_POSITIONS = 25
#: A search goes through so many pages of the store, of so many jobs, before it answers with what it has.
SEARCH_PAGES, SEARCH_JOBS = 10, 200


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    status: JobStatus
    created: bool


class JobService:
    def __init__(
        self,
        control: AsyncRedisStore,
        records: JobRepository,
        telemetry: TelemetryReader,
        fleet: FleetCache,
        changes: ChangeNotifier,
        storage: AttemptStorage,
        bundles: BundleService,
        secrets: SecretService,
        limits: SubmitLimits,
        owners: OwnerNames,
        *,
        traces_are_on: bool = False,
    ) -> None:
        self._store = control
        self._records = records
        self._telemetry = telemetry
        self._fleet = fleet
        self._changes = changes
        self._storage = storage
        self._bundles = bundles
        self._secrets = secrets
        self._limits = limits
        self._owners = owners
        self._traces_are_on = traces_are_on
        self._statuses = StatusCache()
        self._statuses_for_readers = StatusCache(shows_env=False)
        self._rows = ListedRows()
        self._waiting = TenantSlots(MAX_WAITING, MAX_WAITING_OF_TENANT, OWN_WAITING, RESERVED_WAITING)

    async def submit(
        self, who: Principal, body: bytes, idempotency_key: str, caller: TraceContext | None = None
    ) -> SubmittedJob:
        """Store a job. `caller` is the span that it belongs to.

        Raises:
            MalformedJson, InvalidSpec, NotSupported, UnknownBundle, UnknownSecret, UnknownPool, TooLargeForPool: it
                could never run.
            IdempotencyConflict: the key was used with another body.
            StorageLow, StoreFull: a disk of the service, or the control Redis, has too little room.
            OverQuota, QuotaExceeded: the tenant or the token may not have it, or has no room for it now.
        """
        digest = hashlib.sha256(body).hexdigest()
        return await self._store_job(who, parse_spec(body), digest, idempotency_key, caller)

    async def compute(self, work: Callable[[], T]) -> T:
        """What `work` returns, which computes for a while: in a thread. Raises TooManyReads, and what it raises."""
        return await self._storage.run_in_thread(work)

    async def read_spec(self, who: Principal, job: str) -> JobSpec:
        """The spec of a job.

        Raises:
            NotFound: there is no such job.
        """
        return (await self._records.read_view(who.tenant, job)).spec

    async def read_row_times(self, who: Principal, wanted: JobSpec) -> RowHistory | None:
        """What a row took on each device that a job would get, in the newest attempt of the caller's tenant that had
        all of them. Which ones it would get is known where it takes all of its pool."""
        if not 1 < wanted.all_devices <= MAX_PLANNED_DEVICES:
            return None
        nodes = [node for node in (await self._fleet.read_fleet()).nodes if node.pool == wanted.pool]
        names = [device.name_in_fleet(node.id) for node in nodes for device in node.info.devices]
        if len(nodes) > 1 or len(names) != wanted.all_devices:
            return None
        histories = await self._store.run(store.read_recent_history(names, 0))
        return find_common_times(histories, lambda ref: AttemptId.parse(ref).tenant == who.tenant)

    async def resubmit(
        self, who: Principal, job: str, body: bytes, idempotency_key: str, caller: TraceContext | None = None
    ) -> SubmittedJob:
        """Store a new job of the same spec. Raises as `submit` does; a body is refused."""
        view = await self._records.read_view(who.tenant, job)
        refuse_body(body)
        wanted = parse_spec(_without_dependencies(view.spec))  # it was accepted once, maybe by an earlier version
        digest = hashlib.sha256(f"resubmit {job}".encode()).hexdigest()
        return await self._store_job(who, wanted, digest, idempotency_key, caller, parent=job)

    async def _store_job(
        self,
        who: Principal,
        wanted: JobSpec,
        digest: str,
        idempotency_key: str,
        caller: TraceContext | None,
        parent: str = "",
    ) -> SubmittedJob:
        await self.check_spec(who, wanted)
        job = str(uuid_utils.uuid7())
        call = store.submit(
            who.tenant,
            job,
            wanted,
            idempotency_key=idempotency_key,
            digest=digest,
            parent=parent,
            token=who.token,
            trace=self.trace_of(who, job, caller),
        )
        owner = await self._owners.read_name(who.token)  # before it is stored: after that nothing may fail
        failpoints.reach("submit.before_store")
        submitted = await self._store.run(call)
        failpoints.reach("submit.after_store")
        if submitted.created:
            parents = {"parent": parent} if parent else {}
            audit.log_audit_event(who, "job_submitted", job=submitted.job, pool=wanted.pool, **parents)
        if submitted.view is None:
            status = await self.read_status(who, submitted.job)
        else:
            status = views.job_status(submitted.view, None, self._fleet.last_facts, owner)
        failpoints.reach("submit.before_reply")
        return SubmittedJob(status, submitted.created)

    async def check_spec(self, who: Principal, wanted: JobSpec) -> None:
        """Whether a job may be stored, as far as that is known before. Raises as `submit` does."""
        await self._limits.check(wanted)
        if wanted.priority > 0 and not who.may_rank_first:
            raise Forbidden("a priority above 0 needs a token with the scope 'priority'; submit with priority 0")
        await self._bundles.check_entrypoint(who, wanted)
        await self._secrets.check_secrets(who, wanted)

    def trace_of(self, who: Principal, job: str, caller: TraceContext | None) -> JobTrace:
        """The trace that a new job belongs to; `caller` is the span that it belongs to."""
        return trace_job(job_ref(who.tenant, job), caller, traces_are_on=self._traces_are_on)

    async def largest_node(self, pool: str) -> int:
        """How many devices the largest node of a pool has, or may have that its provider starts."""
        return views.pool_view(pool, await self._fleet.read_fleet()).largest_node

    async def read_status(self, who: Principal, job: str) -> JobStatus:
        """The status as it is. Raises NotFound, UnreadableSpec."""
        view = await self._records.read_view(who.tenant, job)
        progress, fleet = await self._read_progress(view.record), await self._fleet.read_facts()
        owner = await self._owners.read_name(view.record.token)
        return views.job_status(view, progress, fleet, owner, shows_env=who.may_submit)

    async def read_tagged_status(self, who: Principal, job: str) -> TaggedJson:
        """The status as it is, as JSON. Raises as `status` does."""
        statuses = self._statuses if who.may_submit else self._statuses_for_readers
        last = statuses.last_status(who.tenant, job)
        view = await self._records.read_view(who.tenant, job, None if last is None else last.view)
        is_final = last is not None and last.view is view and last.is_final
        progress = last.progress if last and is_final else await self._read_progress(view.record)
        owner = await self._owners.read_name(view.record.token)
        return statuses.encode_status(view, progress, await self._fleet.read_facts(), owner)

    async def wait_for_status(self, who: Principal, job: str, wait: float, known: Collection[int] | None) -> TaggedJson:
        """As `shown`, after the next change, at the latest after `wait` seconds.

        Raises TooManyReads where too many wait, else as `read_tagged_status`.

        A change is one of the record's `version`: state, reason, attempt, devices, first step, a cancel. Progress and
        the place in the queue are none. With `known` versions it is waited only while the job has one of them. A job
        that has ended is not waited for.
        """
        record = (await self._records.read_view(who.tenant, job)).record
        if record.state not in TERMINAL and (known is None or record.version in known):
            if not self._waiting.has_room(who.tenant):
                raise TooManyReads("too many requests are waiting for a job to change; send fewer of them with `wait`")
            with self._waiting.hold(who.tenant):
                await self._changes.wait_for_change(who.tenant, job, record.version, min(wait, MAX_WAIT_SECONDS))
        return await self.read_tagged_status(who, job)

    async def _read_progress(self, record: JobRecord) -> Progress | None:
        if not record.attempt or record.state is JobState.QUEUED:
            return None
        return await self._telemetry.read_progress(record.tenant, record.id, record.attempt)

    async def list_jobs(
        self,
        who: Principal,
        chosen: JobFilter,
        cursor: str,
        limit: int,
        *,
        archived: bool = False,
        search: str = "",
        order: Order = NEWEST,
    ) -> EncodedJobList:
        """A page of the jobs in Redis or of archived ones; `cursor` is the `next` of the previous page, or empty.
        `search` is for jobs that have it in their id, their name or a label.

        Raises:
            MalformedCursor: the cursor is not one of ours, or of another order.
            InvalidRequest: archived jobs have no other order than the newest first.
        """
        if archived and order != NEWEST:
            message = "archived jobs come newest first; leave it out"
            raise InvalidRequest("archived jobs have one order", fields=(FieldError("sort", message),))
        read = partial(
            self._records.read_page,
            who.tenant,
            chosen,
            archived=archived,
            max_queues=0 if search or order not in (NEWEST, OLDEST) else MAX_QUEUE_POSITIONS,
            oldest_first=order == OLDEST,
        )
        if search:
            read = partial(_search_jobs, read, search.casefold())
        if order not in (NEWEST, OLDEST):
            offset = cursors.decode_position(cursor) if cursor else 0
            ordered = await read_sorted(read, order, offset, limit)
            end = offset + len(ordered.jobs)
            following = cursors.encode_position(end) if ordered.jobs and end < ordered.sorted_jobs else None
            rows = await self._encode_rows(who, ordered.jobs, None)
            return EncodedJobList(rows, following, ordered.sorted_jobs, total_is_exact=ordered.is_all)
        after = cursors.decode_job(cursor) if cursor else ""
        page = await read(after=after, limit=limit)
        following = None if page.next_id is None else cursors.encode_job(page.next_id)
        rows = await self._encode_rows(who, page.jobs, None if search else page.queues)
        if not (search or archived):
            count = await self._store.run(store.count_matching(who.tenant, chosen))
            return EncodedJobList(rows, following, count.number, total_is_exact=count.exact)
        total = None if cursor else len(rows)
        return EncodedJobList(rows, following, total, total_is_exact=following is None)

    async def _encode_rows(
        self, who: Principal, jobs: Sequence[JobRow], queues: Mapping[str, QueueView] | None
    ) -> list[msgspec.Raw]:
        """`queues` are those of the first jobs that wait; None: they are not known yet."""
        live = [job for job in jobs if job.state not in TERMINAL]
        if queues is None:
            queues = await self._read_queues(who, live)
        progress, fleet = await self._read_progress_by_job(who, live), await self._fleet.read_facts()
        encode = self._rows.encode_row
        return [encode(job, queues.get(job.id), progress.get(job.id), fleet) for job in jobs]

    async def _read_queues(self, who: Principal, jobs: Sequence[JobRow]) -> dict[str, QueueView]:
        """What the first jobs that wait do wait behind."""
        waiting = [job.id for job in jobs if job.state is JobState.QUEUED][:MAX_QUEUE_POSITIONS]
        found = await asyncio.gather(*(self._read_queue(who, job) for job in waiting))
        return {job: queue for job, queue in zip(waiting, found, strict=True) if queue is not None}

    async def _read_queue(self, who: Principal, job: str) -> QueueView | None:
        try:
            return (await self._store.run(store.read_job(who.tenant, job))).queue
        except (NotFound, UnreadableSpec):  # it was deleted since, or only its status can say what is wrong
            return None

    async def _read_progress_by_job(self, who: Principal, jobs: Sequence[JobRow]) -> dict[str, Progress | None]:
        running = [job for job in jobs if job.state in (JobState.STARTING, JobState.RUNNING)]
        found = await self._telemetry.read_many_progress([(who.tenant, job.id, job.attempt) for job in running])
        return {job.id: progress for job, progress in zip(running, found, strict=True)}

    # `versions` of changes: those that the job may have, as the client has seen it; None: any.

    async def cancel(self, who: Principal, job: str, versions: Collection[int] | None = None) -> JobStatus:
        """Raises JobFinished, PreconditionFailed."""
        try:
            outcome: Literal["cancelled", "cancelling"] = await self._store.run(store.cancel(who.tenant, job, versions))
        except NotFound:
            found = await self._records.read_archived(who.tenant, job)
            if found is None:
                raise
            _require_version(found.record, versions)
            if found.record.state is not JobState.CANCELLED:
                raise JobFinished(f"job {job} has ended, and is archived; there is nothing to cancel") from None
            outcome = "cancelled"
        audit.log_audit_event(who, "job_cancelled", job=job, outcome=outcome)
        return await self.read_status(who, job)

    async def suspend(self, who: Principal, job: str, versions: Collection[int] | None = None) -> JobStatus:
        """Raises NotFound, JobFinished, PreconditionFailed."""
        await self._run_unless_archived(who, job, store.suspend(who.tenant, job, versions))
        audit.log_audit_event(who, "job_suspended", job=job)
        return await self.read_status(who, job)

    async def resume(self, who: Principal, job: str, versions: Collection[int] | None = None) -> JobStatus:
        """Raises NotFound, JobFinished, PreconditionFailed."""
        await self._run_unless_archived(who, job, store.resume(who.tenant, job, versions))
        audit.log_audit_event(who, "job_resumed", job=job)
        return await self.read_status(who, job)

    async def _run_unless_archived(self, who: Principal, job: str, call: store.Call[Any]) -> None:
        """Raises JobFinished also where the job has been archived."""
        try:
            await self._store.run(call)
        except NotFound:
            if await self._records.read_archived(who.tenant, job) is None:
                raise
            raise JobFinished(f"job {job} has ended, and is archived") from None

    async def cancel_many(self, who: Principal, body: bytes) -> CancelledJobs:
        """Cancel the jobs that the body describes, chunk by chunk, so that others are served in between. Jobs that are
        submitted later are left alone.

        Raises:
            MalformedJson, InvalidRequest: the body does not say clearly which jobs.
        """
        chosen = parse_cancel(body)
        states = [chosen.state] if chosen.state else [state for state in JobState if state not in TERMINAL]
        newest, deadline = str(uuid_utils.uuid7()), time.monotonic() + CANCEL_SECONDS
        done = CancelledJobs(cancelled=0, cancelling=0, complete=True)
        for _ in range(CANCEL_ROUNDS):
            before = done.cancelled + done.cancelling
            for state in states:
                await self._cancel_state(who, replace(chosen, state=state), newest, deadline, done)
            if done.cancelled + done.cancelling == before or not done.complete:
                break
        audit.log_audit_event(
            who, "jobs_cancelled", cancelled=done.cancelled, cancelling=done.cancelling, **_filter_fields(chosen)
        )
        return done

    async def _cancel_state(
        self, who: Principal, chosen: JobFilter, newest: str, deadline: float, done: CancelledJobs
    ) -> None:
        after: str | None = newest
        while after is not None:
            if time.monotonic() > deadline:
                done.complete = False
                return
            chunk = await self._store.run(store.cancel_many(who.tenant, chosen, after=after))
            done.cancelled += chunk.cancelled
            done.cancelling += chunk.cancelling
            after = chunk.next_id

    async def delete(self, who: Principal, job: str, versions: Collection[int] | None = None) -> None:
        """Forget a finished job with its files.

        Raises:
            JobNotFinished: it has not ended, or its devices are not given back yet.
        """
        try:
            attempts = await self._delete_record(who, job, versions)
        except NotFound:
            attempts = await self._delete_archived(who, job, versions)
        audit.log_audit_event(who, "job_deleted", job=job)
        try:
            storage = self._storage
            removal = partial(attempt_files.remove_job, storage.root, who.tenant, job, storage.files)
            await storage.fetch_in_thread(removal)
            await self._telemetry.delete_job(who.tenant, job, attempts)
        except (Unavailable, OSError) as error:
            log.warning("job_remains_not_removed", job=job, tenant=who.tenant, error=str(error))

    async def _delete_record(
        self, who: Principal, job: str, versions: Collection[int] | None
    ) -> tuple[AttemptRecord, ...]:
        attempts = await self._store.run(store.list_attempts(who.tenant, job))
        await self._refuse_while_held(who, job)
        try:
            await self._store.run(store.delete_job(who.tenant, job, versions))
        except NotFound:  # it was there: it was archived since, or it went by this call, whose first reply was lost
            if await self._records.read_archived(who.tenant, job) is not None:
                raise
        return attempts

    async def _delete_archived(
        self, who: Principal, job: str, versions: Collection[int] | None
    ) -> tuple[AttemptRecord, ...]:
        found = await self._records.read_archived(who.tenant, job)
        if found is None and await self._storage.fetch_in_thread(partial(self._has_files, who, job)):
            return ()  # a delete that was cut off has left its files
        if found is None:
            raise NotFound(f"there is no job {job!r}")
        _require_version(found.record, versions)
        if found.key:
            await self._store.run(store.free_idempotency_key(who.tenant, found.key, job))
        return found.attempts

    def _has_files(self, who: Principal, job: str) -> bool:
        return bool(self._storage.files.list_names(self._storage.job_dir(who.tenant, job)))

    async def _refuse_while_held(self, who: Principal, job: str) -> None:
        fleet = await self._fleet.read_fleet(max_age=0)
        prefix = f"{who.tenant}/{job}/"
        if any(holder.startswith(prefix) for node in fleet.nodes if node.alive for holder in node.held.values()):
            raise JobNotFinished(
                f"job {job} still holds devices; cancel it if it is running, otherwise try again in a moment"
            )

    async def attempts(self, who: Principal, job: str) -> AttemptList:
        records = await self._records.read_attempts(who.tenant, job)
        fleet = await self._fleet.read_facts()
        return AttemptList([views.attempt_view(record, fleet) for record in records], len(records))


def _without_dependencies(spec: JobSpec) -> bytes:
    """What it depended on has ended, and may be gone."""
    if not spec.depends_on:
        return spec.as_json
    fields = msgspec.json.decode(spec.as_json)
    del fields["depends_on"]
    return msgspec.json.encode(fields)


def _require_version(record: JobRecord, versions: Collection[int] | None) -> None:
    """Of an archived job, which does not change any more. Raises PreconditionFailed."""
    if versions is not None and record.version not in versions:
        raise PreconditionFailed(f"job {record.id} has changed meanwhile; read it again, and decide again")


async def _search_jobs(
    read: Callable[..., Awaitable[JobRowPage]], words: str, *, after: str | None, limit: int
) -> JobRowPage:
    """The next jobs that have `words` in their id, their name or a label; perhaps none yet, while there are more."""
    found: list[JobRow] = []
    following = after
    for _ in range(SEARCH_PAGES):
        page = await read(after=following, limit=SEARCH_JOBS)
        found += [job for job in page.jobs if _has_words(job, words)]
        if len(found) > limit:
            return JobRowPage(tuple(found[:limit]), found[limit - 1].id)
        following = page.next_id
        if following is None or len(found) == limit:
            break
    return JobRowPage(tuple(found), following)


def _has_words(job: JobRow, words: str) -> bool:
    labels = (f"{name}={value}" for name, value in job.labels.items())
    return any(words in text.casefold() for text in (job.id, job.name, *labels))


def _filter_fields(chosen: JobFilter) -> dict[str, str]:
    """The parts of a filter that are set, for the record."""
    parts = {
        "state": str(chosen.state or ""),
        "pool": chosen.pool,
        "label": "=".join(chosen.label or ()),
        "name": chosen.name,
    }
    return {f"with_{name}": value for name, value in parts.items() if value}
