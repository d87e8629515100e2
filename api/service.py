"""What the routes call: one function for each thing a user can ask for. No web framework in here.

Raises, from every function that names a job: NotFound (also for a job of another tenant). From every
function: Unavailable, while the control Redis does not answer.
"""

import hashlib
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import anyio
import anyio.to_thread
import msgspec
import structlog
import uuid_utils

from api import artifacts, cursors, files, views
from api.artifacts import Artifact
from api.auth import Authenticator, Principal
from api.bodies import parse_cancel, parse_new_token, refuse_body
from api.cursors import LogCursor
from api.files import LogQuery
from api.fleet import FleetCache
from api.monitoring import Counts
from api.schemas import (
    ArtifactList,
    AttemptList,
    CancelledJobs,
    JobList,
    JobStatus,
    LogPage,
    MetricList,
    NewToken,
    NodeList,
    NodeView,
    Plan,
    PoolList,
    Readiness,
    TokenList,
    TokenView,
)
from api.telemetry import Telemetry
from api.waiting import Changes
from jobs import counts, layout, report, spec, store, tokens
from jobs.errors import (
    FieldError,
    Forbidden,
    InvalidRequest,
    InvalidSpec,
    JobNotFinished,
    NotFound,
    Unavailable,
)
from jobs.record import AttemptRecord
from jobs.redis_store import AsyncRedisStore
from jobs.report import Report
from jobs.report_diff import ReportDiff
from jobs.spec import JobSpec
from jobs.state import TERMINAL, AttemptState, State
from jobs.store import JobFilter
from jobs.wire import DEFAULT_TENANT

log = structlog.get_logger(__name__)
#: Who did what, for those who must account for it.
audit = structlog.get_logger("shardyard.audit")

T = TypeVar("T")

FILE_THREADS = 8
#: Far more than any spec needs, and few enough that reading a hostile one takes a few hundredths of a second.
MAX_SPEC_VALUES = 5_000
#: `/readyz` needs no token, so it does not ask Redis each time it is asked itself.
READY_SECONDS = 0.5
#: The longest that a status may be waited for.
MAX_WAIT_SECONDS = 60.0
#: A cancel of many jobs answers after this long at the latest, with what it has done so far.
CANCEL_SECONDS = 20.0
#: Jobs move between states while they are cancelled, so the states are gone through again until none is found.
CANCEL_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Submitted:
    status: JobStatus
    created: bool


class Service:
    def __init__(
        self,
        control: AsyncRedisStore,
        telemetry: Telemetry,
        authenticator: Authenticator,
        storage: Path,
        scheduler_alive: Callable[[], bool],
    ) -> None:
        self._store = control
        self._telemetry = telemetry
        self._authenticator = authenticator
        self._storage = storage.resolve()
        self._scheduler_alive = scheduler_alive
        self._fleet = FleetCache(control)
        self._changes = Changes(control)
        self._file_threads = anyio.CapacityLimiter(FILE_THREADS)

    def release(self) -> None:
        """Answer all requests that wait: the process is about to end."""
        self._changes.release()

    # -- jobs --------------------------------------------------------------------------------------

    async def submit(self, who: Principal, body: bytes, idempotency_key: str) -> Submitted:
        """Store a job.

        Raises:
            MalformedJson, InvalidSpec, NotSupported, UnknownPool, TooLargeForPool: it could never run.
            IdempotencyConflict: the key was used with another body.
        """
        return await self._submit(who, checked_spec(body), hashlib.sha256(body).hexdigest(), idempotency_key)

    async def resubmit(self, who: Principal, job: str, body: bytes, idempotency_key: str) -> Submitted:
        """Store a new job of the same spec. Raises as `submit` does; a body is refused."""
        view = await self._store.run(store.read_job(who.tenant, job))
        refuse_body(body)
        wanted = checked_spec(view.spec.model_dump_json().encode())  # it was accepted once, maybe by an earlier version
        digest = hashlib.sha256(f"resubmit {job}".encode()).hexdigest()
        return await self._submit(who, wanted, digest, idempotency_key, parent=job)

    async def _submit(
        self, who: Principal, wanted: JobSpec, digest: str, idempotency_key: str, parent: str = ""
    ) -> Submitted:
        call = store.submit(
            who.tenant,
            str(uuid_utils.uuid7()),
            wanted,
            idempotency_key=idempotency_key,
            digest=digest,
            parent=parent,
            token=who.token,
        )
        submitted = await self._store.run(call)
        if submitted.created:
            parents = {"parent": parent} if parent else {}
            audit.info("job_submitted", job=submitted.job, pool=wanted.pool, **parents, **_by(who))
        return Submitted(await self.status(who, submitted.job), submitted.created)

    async def status(
        self, who: Principal, job: str, *, wait: float = 0, known: Collection[int] | None = None
    ) -> JobStatus:
        """The status as it is, or, with `wait`, as it is after the next change, at the latest after so many seconds.

        A change is one of the record's `version`: state, reason, attempt, devices, first step, a cancel. Progress and
        the place in the queue are none. With `known` versions it is waited only while the job has one of them. A job
        that has ended is not waited for.
        """
        view = await self._store.run(store.read_job(who.tenant, job))
        version = view.record.version
        if wait and view.record.state not in TERMINAL and (known is None or version in known):
            await self._changes.wait(who.tenant, job, version, min(wait, MAX_WAIT_SECONDS))
            view = await self._store.run(store.read_job(who.tenant, job))
        record = view.record
        progress = None
        if record.attempt and record.state is not State.QUEUED:
            progress = await self._telemetry.progress(who.tenant, job, record.attempt)
        return views.status(view, progress, await self._fleet.labels())

    async def list_jobs(self, who: Principal, chosen: JobFilter, cursor: str, limit: int) -> JobList:
        """A page, newest first; `cursor` is the `next` of the page before, or empty.

        Raises:
            MalformedCursor: the cursor is not one of ours.
        """
        after = cursors.decode_job(cursor) if cursor else ""
        page = await self._store.run(store.page(who.tenant, chosen, after=after, limit=limit))
        labels = await self._fleet.labels()
        following = None if page.next_id is None else cursors.encode_job(page.next_id)
        return JobList([views.summary(job, labels) for job in page.jobs], following)

    async def cancel(self, who: Principal, job: str) -> JobStatus:
        """Raises JobFinished."""
        outcome: Literal["cancelled", "cancelling"] = await self._store.run(store.cancel(who.tenant, job))
        audit.info("job_cancelled", job=job, outcome=outcome, **_by(who))
        return await self.status(who, job)

    async def cancel_many(self, who: Principal, body: bytes) -> CancelledJobs:
        """Cancel the jobs that the body describes, chunk by chunk, so that others are served in between. Jobs that are
        submitted later are left alone.

        Raises:
            MalformedJson, InvalidRequest: the body does not say clearly which jobs.
        """
        chosen = parse_cancel(body)
        states = [chosen.state] if chosen.state else [state for state in State if state not in TERMINAL]
        newest, deadline = str(uuid_utils.uuid7()), time.monotonic() + CANCEL_SECONDS
        done = CancelledJobs(cancelled=0, cancelling=0, complete=True)
        for _ in range(CANCEL_ROUNDS):
            before = done.cancelled + done.cancelling
            for state in states:
                await self._cancel_state(who, replace(chosen, state=state), newest, deadline, done)
            if done.cancelled + done.cancelling == before or not done.complete:
                break
        audit.info("jobs_cancelled", cancelled=done.cancelled, cancelling=done.cancelling, **_named(chosen), **_by(who))
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

    async def delete(self, who: Principal, job: str) -> None:
        """Forget a finished job with its files.

        Raises:
            JobNotFinished: it has not ended, or its devices are not given back yet.
        """
        attempts = await self._store.run(store.attempts(who.tenant, job))
        await self._refuse_while_held(who, job)
        await self._store.run(store.delete(who.tenant, job))
        audit.info("job_deleted", job=job, **_by(who))
        try:
            await self._telemetry.forget(who.tenant, job, attempts)
            await self._in_thread(partial(files.remove_job, self._storage, who.tenant, job))
        except (Unavailable, OSError) as error:
            log.warning("job_remains_not_removed", job=job, tenant=who.tenant, error=str(error))

    async def _refuse_while_held(self, who: Principal, job: str) -> None:
        fleet = await self._fleet.read(max_age=0)
        prefix = f"{who.tenant}/{job}/"
        if any(holder.startswith(prefix) for node in fleet.nodes if node.alive for holder in node.held.values()):
            raise JobNotFinished(f"job {job} still holds devices; cancel it if it runs, else try again in a moment")

    async def attempts(self, who: Principal, job: str) -> AttemptList:
        records = await self._store.run(store.attempts(who.tenant, job))
        labels = await self._fleet.labels()
        return AttemptList([views.attempt(record, labels) for record in records])

    # -- what attempts left ------------------------------------------------------------------------

    async def splits(self, who: Principal, job: str, attempt: int | None, device: int | None) -> Report:
        """The split report of an attempt (the newest one), for one device if asked.

        Raises:
            NotFound: there is no such attempt, or no report of it yet.
        """
        chosen = await self._attempt(who, job, attempt)
        if chosen is None:
            raise NotFound(f"job {job} has not started, so there is no split report; its status says what it waits for")
        body = await self._report_body(who, job, chosen)
        if body is None:
            raise NotFound(_no_report(job, chosen))
        try:
            found = report.decode(body)
        except ValueError as error:
            raise NotFound(
                f"the split report of attempt {chosen.number} of job {job} cannot be read; it is damaged, or was "
                f"written by a newer version: {error}"
            ) from error
        return found if device is None else _of_device(found, device)

    async def splits_text(self, who: Principal, job: str, attempt: int | None, device: int | None) -> str:
        """The same for people. Raises as `splits` does."""
        from jobs import report_text

        found = await self.splits(who, job, attempt, device)
        return await self._in_thread(partial(report_text.render, found))

    async def splits_diff(
        self, who: Principal, job: str, attempt: int | None, against: str, against_attempt: int | None
    ) -> ReportDiff:
        """The split reports of two jobs, or of two attempts of one, side by side.

        Raises:
            NotFound: one of the two has no report.
        """
        from jobs import report_diff

        this = await self.splits(who, job, attempt, None)
        other = await self.splits(who, against, against_attempt, None)
        return await self._in_thread(partial(report_diff.diff, this, other))

    async def splits_diff_text(
        self, who: Principal, job: str, attempt: int | None, against: str, against_attempt: int | None
    ) -> str:
        """The same for people. Raises as `splits_diff` does."""
        from jobs import report_diff_text

        found = await self.splits_diff(who, job, attempt, against, against_attempt)
        return await self._in_thread(partial(report_diff_text.render, found))

    async def artifacts(self, who: Principal, job: str, attempt: int | None) -> ArtifactList:
        """Files of an attempt (the newest one).

        Raises:
            NotFound: there is no such attempt.
        """
        chosen = await self._attempt(who, job, attempt)
        if chosen is None:
            return ArtifactList(0, [], truncated=False)
        directory = self._attempt_dir(who, job, chosen.number)
        found = await self._in_thread(partial(artifacts.listing, directory))
        return ArtifactList(chosen.number, found.artifacts, found.truncated)

    async def artifact(self, who: Principal, job: str, attempt: int | None, path: str) -> Artifact:
        """One of these files, open; the caller closes it.

        Raises:
            NotFound: there is no such attempt, or no such file of it.
        """
        chosen = await self._attempt(who, job, attempt)
        if chosen is None:
            raise NotFound(f"job {job} has not started, so it has no artifacts")
        return await self._in_thread(partial(artifacts.open_file, self._attempt_dir(who, job, chosen.number), path))

    async def _report_body(self, who: Principal, job: str, attempt: AttemptRecord) -> bytes | None:
        """The archived one of an attempt that has ended, else from the telemetry Redis."""
        directory = self._attempt_dir(who, job, attempt.number)
        if attempt.state is AttemptState.ENDED:
            archived = await self._in_thread(partial(files.read_report, directory))
            if archived is not None:
                return archived
        away: Unavailable | None = None
        try:
            body = await self._telemetry.report(who.tenant, job, attempt.number)
            if body is not None:
                return body
        except Unavailable as error:
            away = error
        archived = await self._in_thread(partial(files.read_report, directory))
        if archived is None and away is not None:
            raise away
        return archived

    async def logs(self, who: Principal, job: str, attempt: int | None, cursor: str, query: LogQuery) -> LogPage:
        """A page of lines. `attempt` is the cursor's, else the newest.

        Raises:
            MalformedCursor: the cursor is not one of ours, or of another attempt than the one asked for.
            NotFound: there is no such attempt.
        """
        position = cursors.decode_log(cursor) if cursor else None
        if position is not None and attempt not in (None, position.attempt):
            raise InvalidRequest(
                "`after` and `attempt` disagree",
                fields=(FieldError("attempt", f"the cursor is of attempt {position.attempt}; leave one of both out"),),
            )
        number = attempt if position is None else position.attempt
        chosen = await self._attempt(who, job, number)
        if chosen is None:
            view = await self._store.run(store.read_job(who.tenant, job))
            return LogPage(attempt=0, lines=[], dropped=[], next=None, ended=view.record.finished is not None)
        devices = _chosen_devices(chosen, query.device)
        seen = position.seen if position is not None else {}
        directory = self._attempt_dir(who, job, chosen.number)
        found = await self._in_thread(partial(files.read_logs, directory, devices, seen, query))
        over = found.sealed or chosen.state is AttemptState.ENDED
        return LogPage(
            attempt=chosen.number,
            lines=found.lines,
            dropped=found.dropped,
            next=cursors.encode_log(LogCursor(chosen.number, found.seen)),
            ended=found.at_end and over,
        )

    async def metrics(
        self,
        who: Principal,
        job: str,
        attempt: int | None,
        *,
        device: int | None,
        name: str | None,
        after: int,
        points: int | None,
    ) -> MetricList:
        """Series of an attempt (the newest one)."""
        chosen = await self._attempt(who, job, attempt)
        if chosen is None:
            return MetricList(0, [])
        directory = self._attempt_dir(who, job, chosen.number)
        read = partial(files.read_metrics, directory, device, name, after, points)
        return MetricList(chosen.number, await self._in_thread(read))

    async def _attempt(self, who: Principal, job: str, number: int | None) -> AttemptRecord | None:
        """The attempt of that number, or the newest; `None` when the job has not had one.

        Raises:
            NotFound: there is no attempt of that number.
        """
        records = await self._store.run(store.attempts(who.tenant, job))
        if number is None:
            return records[-1] if records else None
        if number > len(records):
            raise NotFound(f"job {job} has had {len(records)} attempts; there is no attempt {number}")
        return records[number - 1]

    def _attempt_dir(self, who: Principal, job: str, attempt: int) -> Path:
        return layout.attempt_dir(self._storage, who.tenant, job, attempt)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(work, limiter=self._file_threads)

    # -- before a job ------------------------------------------------------------------------------

    def recipes(self) -> dict[str, Any]:
        from jobs import catalogue

        return dict(catalogue.listing())

    def plan(self, body: bytes) -> Plan:
        """The splits that a spec would give in one epoch, and what is wrong with them. Pools are not asked: a plan may
        be about more devices than there are. Otherwise it raises as `submit` does."""
        return _planned(checked_spec(body))

    def plan_text(self, body: bytes) -> str:
        """The same for people. Raises as `plan` does."""
        from jobs import plan_text

        wanted = checked_spec(body)
        plan = _planned(wanted)
        return plan_text.render(wanted, plan.rows, plan.patterns, plan.findings, plan.notes)

    # -- the fleet ---------------------------------------------------------------------------------

    async def pools(self) -> PoolList:
        return PoolList(views.pools(await self._fleet.read(max_age=0)))

    async def nodes(self, who: Principal) -> NodeList:
        fleet = await self._fleet.read(max_age=0)
        return NodeList([views.node(node, who.tenant, fleet.queued.get(node.pool, 0)) for node in fleet.nodes])

    async def drain(self, who: Principal, node: str, *, drain: bool) -> NodeView:
        """Give a node no new work, or (`drain` false) some again. What runs there goes on.

        Raises:
            NotFound: there is no such node.
            Forbidden: the caller is not the operator.
        """
        _require_operator(who)
        await self._store.run(store.drain_node(node, drain=drain))
        audit.info("node_drained" if drain else "node_undrained", node=node, **_by(who))
        return next(found for found in (await self.nodes(who)).nodes if found.id == node)

    async def forget_node(self, who: Principal, node: str) -> None:
        """Drop a node that is down for good, with what it held and its quarantine.

        Raises:
            NotFound: there is no such node.
            NodeInUse: it is alive, or a lease on it has not expired.
            Forbidden: the caller is not the operator.
        """
        _require_operator(who)
        await self._store.run(store.forget_node(node))
        audit.info("node_forgotten", node=node, **_by(who))

    async def readiness(self) -> Readiness:
        """Whether a job that is submitted now would be stored and could start."""
        checks = {"scheduler": "ok" if self._scheduler_alive() else "not running"}
        try:
            fleet = await self._fleet.read(max_age=READY_SECONDS)
            checks["control_redis"] = "ok"
            checks["nodes"] = "ok" if any(node.alive for node in fleet.nodes) else "no live node"
        except Unavailable:
            checks["control_redis"] = "does not answer"
            checks["nodes"] = "not known"
        try:
            await self._telemetry.ping()
            checks["telemetry_redis"] = "ok"
        except Unavailable:
            checks["telemetry_redis"] = "does not answer"
        return Readiness(all(state == "ok" for state in checks.values()), checks)

    async def census(self, who: Principal) -> Counts:
        """What Prometheus's gauges show: jobs of the caller's tenant, and every pool."""
        jobs = await self._store.run(counts.by_state(who.tenant))
        pools = (await self.pools()).pools
        return Counts({str(state): number for state, number in jobs.items()}, pools, self._changes.count)

    # -- tokens ------------------------------------------------------------------------------------

    async def create_token(self, who: Principal, body: bytes) -> NewToken:
        """Raises:
        InvalidRequest: a field is wrong.
        Forbidden: the token is for another tenant, and the caller is not the operator.
        """
        wanted = parse_new_token(body)
        tenant = wanted.tenant or who.tenant
        if tenant != who.tenant and who.tenant != DEFAULT_TENANT:
            raise Forbidden("only the operator may make tokens for another tenant")
        now = time.time_ns() // 1000
        expires = None if wanted.expires_in_seconds is None else now + wanted.expires_in_seconds * 1_000_000
        text, record = tokens.issue(tenant, wanted.scopes, wanted.name, created=now, expires=expires)
        await self._store.run(tokens.put(record))
        audit.info("token_created", created=record.id, for_tenant=tenant, scopes=sorted(record.scopes), **_by(who))
        return NewToken(**msgspec.structs.asdict(views.token(record)), token=text)

    async def list_tokens(self, who: Principal) -> TokenList:
        found: list[TokenView] = [views.token(t) for t in await self._store.run(tokens.of_tenant(who.tenant))]
        return TokenList(found)

    async def revoke_token(self, who: Principal, token: str) -> None:
        """Other API processes notice within a few seconds. Raises NotFound."""
        await self._store.run(tokens.revoke(who.tenant, token))
        self._authenticator.forget(token)
        audit.info("token_revoked", revoked=token, **_by(who))


def checked_spec(body: bytes) -> JobSpec:
    """Raises MalformedJson, InvalidSpec, NotSupported."""
    from jobs import catalogue

    if body.count(b",") > MAX_SPEC_VALUES:
        raise InvalidSpec(f"a job spec may have {MAX_SPEC_VALUES} values at most")
    wanted = spec.parse(body)
    wrong = catalogue.check(wanted)
    if wrong:
        raise InvalidSpec("the job spec names things that do not exist", fields=tuple(wrong))
    return wanted


def _planned(wanted: JobSpec) -> Plan:
    from jobs import catalogue
    from jobs.lint import lint
    from jobs.plan import predict

    program = wanted.program
    rows = catalogue.dataset_rows(program.data)
    eval_rows = catalogue.dataset_rows(program.evaluate.data) if program.evaluate else None
    prediction = predict(wanted, rows, eval_rows)
    return Plan(
        rows=rows,
        batch_size=program.data.batch_size,
        global_batch_size=wanted.global_batch_size,
        patterns=prediction.epoch,
        findings=lint(wanted, prediction.epoch, rows),
        notes=prediction.notes,
    )


def _named(chosen: JobFilter) -> dict[str, str]:
    """The parts of a filter that are set, for the record."""
    parts = {
        "state": str(chosen.state or ""),
        "pool": chosen.pool,
        "label": "=".join(chosen.label or ()),
        "name": chosen.name,
    }
    return {f"with_{name}": value for name, value in parts.items() if value}


def _require_operator(who: Principal) -> None:
    """Nodes belong to everybody, so one tenant's administrator must not stop them for the others.

    Raises:
        Forbidden: `who` is of another tenant than the operator's.
    """
    if who.tenant != DEFAULT_TENANT:
        raise Forbidden("only the operator handles nodes")


def _by(who: Principal) -> dict[str, str]:
    return {"token": who.token, "tenant": who.tenant}


def _no_report(job: str, attempt: AttemptRecord) -> str:
    if attempt.state is AttemptState.ENDED:
        why = attempt.message or attempt.reason
        return f"attempt {attempt.number} of job {job} ended without a split report: {why}"
    return f"attempt {attempt.number} of job {job} has made no step yet, so there is no split report; ask again later"


def _of_device(found: Report, device: int) -> Report:
    """The same report with the entries of one device; patterns keep their rows for all devices."""
    if all(entry.device != device for entry in found.devices):
        raise NotFound(f"the attempt had {len(found.devices)} devices, numbered from 0; there is no device {device}")
    return msgspec.structs.replace(
        found,
        devices=tuple(entry for entry in found.devices if entry.device == device),
        per_device=tuple(entry for entry in found.per_device if entry.device == device),
    )


def _chosen_devices(attempt: AttemptRecord, device: int | None) -> list[int]:
    count = len(attempt.leased)
    if device is None:
        return list(range(count))
    if device >= count:
        raise NotFound(f"the attempt had {count} devices, numbered from 0; there is no device {device}")
    return [device]
