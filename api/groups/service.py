"""The service of groups: stores, reads and cancels comparisons and sweeps, and makes their reports."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import uuid_utils

from api.data.job_repository import JobRepository
from api.groups import comparison_report, searches, sweep_report, trials, variants
from api.groups.measures import MeasureReader
from api.http import audit, cursors
from api.http.auth import Principal
from api.jobs.service import JobService
from api.schemas.group_requests import parse_comparison, parse_sweep
from api.schemas.views import HIDDEN, REASON_MESSAGES
from jobs.model.records import JobRow
from jobs.model.spec import JobSpec
from jobs.model.state import TERMINAL, JobState
from jobs.model.trace_context import TraceContext
from jobs.store import groups
from jobs.store.client import AsyncRedisStore
from jobs.store.groups import GroupKind, GroupPage, GroupRecord, GroupView, NewChild, NewGroup
from jobs.support import failpoints
from shardyard.contract.errors import InvalidSpec, NotFound, TooLargeForPool, UnknownPool, UnreadableSpec
from shardyard.contract.groups import (
    Comparison,
    ComparisonReport,
    GroupSummary,
    LeftOut,
    Sweep,
    SweepReport,
    Trial,
    Variant,
)
from shardyard.contract.responses import at

#: The path of each kind.
PATHS: Mapping[GroupKind, str] = {"comparison": "comparisons", "sweep": "sweeps"}


@dataclass(frozen=True, slots=True)
class StoredGroup:
    id: str
    created: bool


@dataclass(frozen=True, slots=True)
class _Job:
    """A job of a group as its answers show it."""

    number: int
    job: str
    state: str
    reason: str
    message: str


class GroupService:
    def __init__(
        self, control: AsyncRedisStore, jobs: JobService, records: JobRepository, measures: MeasureReader
    ) -> None:
        self._store = control
        self._jobs = jobs
        self._records = records
        self._measures = measures

    # -- comparisons -------------------------------------------------------------------------------

    async def compare(self, who: Principal, body: bytes, key: str, caller: TraceContext | None) -> StoredGroup:
        """Store a comparison with its jobs.

        Raises:
            MalformedJson, InvalidRequest, InvalidSpec, NotSupported: it cannot be read, or nothing of it is valid.
            IdempotencyConflict: the key was used for another body.
            what a submit of one of its jobs raises.
        """
        wanted = parse_comparison(body)
        plan = await self._jobs.compute(lambda: variants.plan_comparison(wanted))
        chosen, left_out = await self._leave_out_too_large(plan)
        definition = {
            "spec": wanted.spec,
            "steps": wanted.steps,
            "global_batch_size": plan.global_batch_size,
            "left_out": [{"strategy": one.strategy, "devices": one.devices, "why": one.why} for one in left_out],
            "variants": [
                {"strategy": one.strategy, "devices": one.devices, "batch_size": one.spec.batch_size} for one in chosen
            ],
        }
        name = wanted.name or str(wanted.spec.get("name") or "comparison")
        specs = [one.spec for one in chosen]
        about = NewGroup(new_id(), "comparison", name, {}, definition, max_concurrent=1, token=who.token)
        return await self.store_group(who, about, specs, body, key, caller)

    async def _leave_out_too_large(
        self, plan: variants.ComparisonPlan
    ) -> tuple[Sequence[variants.PlannedVariant], Sequence[LeftOut]]:
        """Those variants that no node has devices for are left out, unless all are: then the submit says so."""
        pool = plan.variants[0].spec.pool
        largest = await self._jobs.largest_node(pool)
        fitting = [one for one in plan.variants if one.devices <= largest]
        if not fitting:
            return plan.variants, plan.left_out
        why = f"the largest node of pool {pool} has {largest} devices"
        more = [
            LeftOut(strategy=one.strategy, devices=one.devices, why=why)
            for one in plan.variants
            if one.devices > largest
        ]
        return fitting, [*plan.left_out, *more]

    async def read_comparison(self, who: Principal, group: str) -> Comparison:
        """Raises NotFound."""
        view = await self._store.run(groups.read_group(who.tenant, group, "comparison"))
        jobs = await self._read_jobs(who, view)
        told = view.record.definition
        return Comparison(
            **summary_fields(view.record, [one.state for one in jobs]),
            steps=told["steps"],
            global_batch_size=told["global_batch_size"],
            variants=[
                Variant(**told["variants"][one.number], **_job_fields(one))
                for one in jobs
                if one.number < len(told["variants"])
            ],
            left_out=[LeftOut(**one) for one in told["left_out"]],
            spec=told["spec"],
        )

    async def report_comparison(self, who: Principal, group: str) -> ComparisonReport:
        """Raises NotFound."""
        view = await self._store.run(groups.read_group(who.tenant, group, "comparison"))
        found = await self.read_comparison(who, group)
        measures = await self._measures.read_all(who, view.children)
        return await self._jobs.compute(lambda: comparison_report.make_report(found, measures))

    # -- sweeps ------------------------------------------------------------------------------------

    async def sweep(self, who: Principal, body: bytes, key: str, caller: TraceContext | None) -> StoredGroup:
        """Store a sweep with its jobs. Raises as `compare` does."""
        wanted = parse_sweep(body)
        trials.check_base(wanted)
        goes_on = wanted.chosen_search == searches.OPTUNA
        choose = searches.choose_first if goes_on else trials.list_values
        values = await self._jobs.compute(lambda: choose(wanted))
        specs = await self._jobs.compute(
            lambda: [trials.make_spec(wanted, number, one) for number, one in enumerate(values)]
        )
        planned = wanted.trials or len(values)
        definition = {
            "spec": wanted.spec,
            "search": wanted.chosen_search,
            "metric": wanted.metric,
            "mode": wanted.chosen_mode,
            "planned": planned,
            "steps": wanted.steps,
            "values": values,
        }
        if goes_on:
            definition |= searches.define_search(who, wanted)
        name = wanted.name or str(wanted.spec.get("name") or "sweep")
        about = NewGroup(new_id(), "sweep", name, {}, definition, wanted.max_concurrent, who.token, planned)
        return await self.store_group(who, about, specs, body, key, caller)

    async def read_sweep(self, who: Principal, group: str) -> Sweep:
        """Raises NotFound."""
        view = await self._store.run(groups.read_group(who.tenant, group, "sweep"))
        jobs = await self._read_jobs(who, view)
        told = view.record.definition
        return Sweep(
            **summary_fields(view.record, [one.state for one in jobs]),
            search=told["search"],
            metric=told["metric"],
            mode=told["mode"],
            planned=told["planned"],
            max_concurrent=view.record.max_concurrent,
            steps=told["steps"],
            note=view.record.note,
            trials=[
                Trial(values=_shown_values(who, values), **_job_fields(one))
                for one in jobs
                if (values := searches.values_of(view.record, one.number)) is not None
            ],
            spec=_shown_spec(who, told["spec"]),
        )

    async def report_sweep(self, who: Principal, group: str) -> SweepReport:
        """Raises NotFound."""
        view = await self._store.run(groups.read_group(who.tenant, group, "sweep"))
        found = await self.read_sweep(who, group)
        measures = await self._measures.read_all(who, view.children)
        return await self._jobs.compute(lambda: sweep_report.make_report(found, measures))

    # -- both --------------------------------------------------------------------------------------

    async def store_group(
        self,
        who: Principal,
        about: NewGroup,
        specs: Sequence[JobSpec],
        body: bytes,
        key: str,
        caller: TraceContext | None,
    ) -> StoredGroup:
        for spec in specs:
            await self._check_spec(who, spec)
        children = []
        for number, spec in enumerate(specs):
            job = new_id()
            children.append(NewChild(number, job, spec, self._jobs.trace_of(who, job, caller)))
        digest = hashlib.sha256(body).hexdigest()
        call = groups.submit_group(who.tenant, about, children, idempotency_key=key, digest=digest)
        failpoints.reach("submit_group.before_store")
        try:
            stored = await self._store.run(call)
        except (InvalidSpec, TooLargeForPool, UnknownPool) as error:
            raise variants.below_spec(error) from None
        failpoints.reach("submit_group.after_store")
        if stored.created:
            audit.log_audit_event(who, f"{about.kind}_submitted", group=stored.group, jobs=len(children))
        return StoredGroup(stored.group, stored.created)

    async def _check_spec(self, who: Principal, spec: JobSpec) -> None:
        try:
            await self._jobs.check_spec(who, spec)
        except InvalidSpec as error:
            raise variants.below_spec(error) from None

    async def list_groups(self, who: Principal, kind: GroupKind, cursor: str, limit: int) -> GroupPage:
        """Raises MalformedCursor."""
        after = cursors.decode_job(cursor) if cursor else ""
        return await self._store.run(groups.list_groups(who.tenant, kind, after=after, limit=limit))

    async def cancel(self, who: Principal, group: str, kind: GroupKind) -> None:
        """Cancel all of its jobs that have not ended. Raises NotFound."""
        await self._store.run(groups.cancel_group(who.tenant, group, kind))
        audit.log_audit_event(who, f"{kind}_cancelled", group=group)

    async def _read_jobs(self, who: Principal, view: GroupView) -> list[_Job]:
        return [
            _job_of(child.number, child.job, child.row or await self._read_archived(who, child.job))
            for child in view.children
        ]

    async def _read_archived(self, who: Principal, job: str) -> JobRow | None:
        try:
            return (await self._records.read_view(who.tenant, job)).record
        except (NotFound, UnreadableSpec):
            return None


def next_cursor(page: GroupPage) -> str | None:
    return None if page.next_id is None else cursors.encode_job(page.next_id)


def new_id() -> str:
    return str(uuid_utils.uuid7())


def _shown_spec(who: Principal, spec: dict[str, Any]) -> dict[str, Any]:
    """Values of environment variables are for those who may submit jobs."""
    program = spec.get("program")
    if who.may_submit or not isinstance(program, dict) or not isinstance(program.get("env"), dict):
        return spec
    return spec | {"program": program | {"env": dict.fromkeys(program["env"], HIDDEN)}}


def _shown_values(who: Principal, values: dict[str, Any]) -> dict[str, Any]:
    """As `_shown_spec`. A path that leads into what is no variable alone may have several."""
    if who.may_submit:
        return values
    return {
        path: HIDDEN if path == "program" or path.startswith("program.env") else value for path, value in values.items()
    }


def _job_of(number: int, job: str, row: JobRow | None) -> _Job:
    if row is None:
        return _Job(number, job, "deleted", "", "")
    message = row.message or REASON_MESSAGES.get(row.reason, "")
    return _Job(number, job, str(row.state), str(row.reason), message)


def _job_fields(job: _Job) -> dict[str, Any]:
    return {
        "number": job.number,
        "job": job.job,
        "state": job.state,
        "reason": job.reason,
        "message": job.message,
    }


def summary(found: groups.CountedGroup) -> GroupSummary:
    states = [str(state) for state, count in found.counts.items() for _ in range(count)]
    return GroupSummary(**summary_fields(found.record, states))


def summary_fields(record: GroupRecord, states: Sequence[str]) -> dict[str, Any]:
    kind: GroupKind = "sweep" if record.kind == "sweep" else "comparison"
    base = f"/v1/{PATHS[kind]}/{record.id}"
    state = _group_state(record, states)
    links = {"self": base, "report": f"{base}/report", "jobs": f"/v1/jobs?group={record.id}"}
    return {
        "id": record.id,
        "name": record.name,
        "state": state,
        "created_at": at(record.created),
        "jobs": len(states),
        "counts": dict(Counter(states)),
        "links": links if JobState(state) in TERMINAL else links | {"cancel": f"{base}/cancel"},
    }


def _group_state(record: GroupRecord, states: Sequence[str]) -> str:
    alive = [state for state in states if state in ("queued", "starting", "running")]
    if alive:
        return "queued" if len(alive) == len(states) and set(alive) == {"queued"} else "running"
    if record.cancelled:
        return "cancelled"
    if record.is_open:
        return "running"
    return "succeeded" if "succeeded" in states else "failed"
