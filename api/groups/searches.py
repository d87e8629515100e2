"""Continues sweeps whose next trials depend on those that have ended."""

import asyncio
import math
from collections.abc import Mapping
from typing import Any, Final

import structlog
import uuid_utils
from pydantic import ValidationError

from api.groups import optuna_search, trials
from api.groups.measures import MeasureReader
from api.groups.optuna_search import PastTrial, SearchPlan, Values
from api.http.auth import Principal
from api.jobs.service import JobService
from api.schemas.group_requests import SweepRequest
from jobs.model.state import TERMINAL, JobState
from jobs.store import groups
from jobs.store.accounts.tokens import Scope
from jobs.store.client import AsyncRedisStore
from jobs.store.groups import Child, GroupRecord, GroupView, NewChild
from jobs.support import failpoints
from shardyard.contract.errors import (
    FieldError,
    InvalidRequest,
    NotFound,
    OverQuota,
    QuotaExceeded,
    ShardyardError,
    StorageLow,
    Unavailable,
)

log = structlog.get_logger(__name__)

OPTUNA: Final = "optuna"
#: Between two looks at the sweeps that are open, and after one whose next trial had to wait.
LOOK_SECONDS, WAIT_SECONDS = 0.5, 5.0
#: What passes: the trial comes when there is room again.
_PASSING = (Unavailable, StorageLow, OverQuota, QuotaExceeded)


def define_search(who: Principal, wanted: SweepRequest) -> dict[str, Any]:
    """What the record of a sweep that goes on has to say."""
    asked = wanted.model_dump(exclude={"spec"}, exclude_none=True)
    return {"request": asked, "scopes": sorted(who.scopes)}


def plan_search(wanted: SweepRequest, past: list[PastTrial] | None = None) -> SearchPlan:
    return SearchPlan(
        wanted.random or {}, wanted.trials or 1, wanted.chosen_mode == "max", wanted.seed, tuple(past or ())
    )


def values_of(record: GroupRecord, number: int) -> Values | None:
    """Those of a trial: stored with the sweep, or with the trial."""
    first: list[Values] = record.definition["values"]
    return first[number] if number < len(first) else record.values.get(number)


def choose_first(wanted: SweepRequest) -> list[Values]:
    """Of the trials that a sweep begins with. Raises InvalidRequest: Optuna is missing, or nothing drawn is valid."""
    if not optuna_search.is_installed():
        message = "this service has no Optuna: its operator can install shardyard[optuna]; or leave it out"
        raise InvalidRequest(trials.PROBLEM, fields=(FieldError("search", message),))
    plan = plan_search(wanted)
    count = min(wanted.max_concurrent, plan.trials)
    return optuna_search.choose_values(plan, count, lambda number, values: trials.make_spec(wanted, number, values))


class SweepSearches:
    """Several processes may do this side by side: a trial whose number is there is not made again."""

    def __init__(self, control: AsyncRedisStore, jobs: JobService, measures: MeasureReader) -> None:
        self._store = control
        self._jobs = jobs
        self._measures = measures
        self._not_before: dict[str, float] = {}

    async def run(self) -> None:
        """Go on for as long as the process lives."""
        while True:
            try:
                await self.extend_all()
            except Unavailable as error:
                log.warning("searches_wait", error=str(error))
                await asyncio.sleep(WAIT_SECONDS)
            except Exception:
                log.exception("searches_failed")
                await asyncio.sleep(WAIT_SECONDS)
            await asyncio.sleep(LOOK_SECONDS)

    async def extend_all(self) -> None:
        """Start the trials that are due. Raises Unavailable."""
        now = asyncio.get_running_loop().time()
        open_ones = await self._store.run(groups.list_searches())
        self._not_before = {group: at for group, at in self._not_before.items() if at > now}
        for tenant, group in open_ones:
            if group in self._not_before:
                continue
            try:
                await self._extend(tenant, group)
            except NotFound:
                continue  # it was forgotten meanwhile
            except _PASSING as error:
                self._not_before[group] = now + WAIT_SECONDS
                log.warning("search_waits", group=group, error=str(error))
            except (ShardyardError, ValidationError) as error:
                log.warning("search_ended", group=group, error=str(error))
                note = f"no more trials after this: {_words(error)}"
                await self._store.run(groups.close_group(tenant, group, note))

    async def _extend(self, tenant: str, group: str) -> None:
        view = await self._store.run(groups.read_group(tenant, group, "sweep"))
        record, ended = view.record, [child for child in view.children if _has_ended(child)]
        wanted = _read_request(record)
        first = len(view.children)
        count = min(record.max_concurrent - (first - len(ended)), (wanted.trials or 0) - first)
        if not record.is_open or count <= 0:
            return
        who = Principal(record.token, tenant, frozenset(record.definition["scopes"]))
        plan = plan_search(wanted, await self._read_past(who, view))
        chosen = await self._jobs.compute(
            lambda: optuna_search.choose_values(
                plan, count, lambda number, values: trials.make_spec(wanted, number, values)
            )
        )
        children = []
        for number, values in enumerate(chosen, first):
            spec = trials.make_spec(wanted, number, values)
            await self._jobs.check_spec(who, spec)
            job = str(uuid_utils.uuid7())
            children.append(NewChild(number, job, spec, self._jobs.trace_of(who, job, None)))
        failpoints.reach("extend_group.before_store")
        await self._store.run(groups.extend_group(tenant, group, children, dict(enumerate(chosen, first))))
        failpoints.reach("extend_group.after_store")

    async def read_study(self, who: Principal, group: str) -> bytes:
        """The study of a sweep so far, as a journal of Optuna's.

        Raises:
            Forbidden: the values of a sweep are for those who may submit jobs.
            NotFound: there is no such sweep, or it has no study.
        """
        who.require_scope(Scope.SUBMIT)
        view = await self._store.run(groups.read_group(who.tenant, group, "sweep"))
        if view.record.definition["search"] != OPTUNA:
            raise NotFound(f"sweep {group} has no study: only one with `search: optuna` has")
        if not optuna_search.is_installed():
            raise NotFound("this service has no Optuna any more: its operator can install shardyard[optuna]")
        plan = plan_search(_read_request(view.record), await self._read_past(who, view))
        return await self._jobs.compute(lambda: optuna_search.write_study(plan, group))

    async def _read_past(self, who: Principal, view: GroupView) -> list[PastTrial]:
        """The trials that there are, in the order of their numbers."""
        ended = [child for child in view.children if _has_ended(child)]
        measures = dict(zip((child.number for child in ended), await self._measures.read_all(who, ended), strict=True))
        metric: str = view.record.definition["metric"]
        past = []
        for child in view.children:
            values, value = values_of(view.record, child.number) or {}, None
            if child.number in measures:
                found = measures[child.number]
                if found.record is not None and found.record.state is JobState.SUCCEEDED:
                    value = found.read_metric(metric)
            past.append(PastTrial(values, _finite(value), child.number not in measures))
        return past


def _has_ended(child: Child) -> bool:
    return child.row is None or child.row.state in TERMINAL


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _read_request(record: GroupRecord) -> SweepRequest:
    asked: Mapping[str, Any] = record.definition["request"]
    return SweepRequest.model_validate({**asked, "spec": record.definition["spec"]})


def _words(error: Exception) -> str:
    fields = error.fields if isinstance(error, ShardyardError) else ()
    return "; ".join([str(error), *(f"{one.field}: {one.message}" for one in fields)])[:500]
