"""The service that explains why a job is in its state, and when it may start."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from api.accounts.shares_service import pool_share_view
from api.data.fleet_cache import FleetCache
from api.data.job_repository import JobRepository
from api.http.auth import Principal
from api.schemas import views
from jobs.model.records import JobRecord
from jobs.model.state import JobState, StateReason
from jobs.scheduling.start_estimate import StartEstimate, estimate_start
from jobs.store import shares
from jobs.store.client import AsyncRedisStore
from jobs.store.queue_facts import QueueFacts, read_queue
from shardyard.contract.responses import ReasonView
from shardyard.contract.scheduling import (
    JobExplanation,
    JobsAheadView,
    KeptNodesView,
    PoolRoomView,
    PoolShareView,
    StartView,
)
from shardyard.formatting import count_noun, format_duration

#: Estimates that are computed at once: each takes a core for a few hundredths of a second.
ESTIMATES_AT_ONCE = 2
#: When it starts is up to its own tenant's jobs, and no pool's queue tells.
AFTER_OTHERS = frozenset({StateReason.WAITING_FOR_JOBS, StateReason.WAITING_FOR_TURN})
#: An estimate further ahead than this says nothing.
MAX_AHEAD_SECONDS = 365 * 86_400.0


class ExplainService:
    def __init__(self, control: AsyncRedisStore, records: JobRepository, fleet: FleetCache) -> None:
        self._store = control
        self._records = records
        self._fleet = fleet
        self._slots = asyncio.Semaphore(ESTIMATES_AT_ONCE)

    async def explain(self, who: Principal, job: str) -> JobExplanation:
        """Raises NotFound, UnreadableSpec."""
        view = await self._records.read_view(who.tenant, job)
        record, facts = view.record, await self._store.run(read_queue(who.tenant, job))
        reason = views.reason_view(record, view.queue, await self._fleet.read_facts())
        if record.state is not JobState.QUEUED or facts is None or record.reason in AFTER_OTHERS:
            return _explanation(record, reason)
        records = await self._store.run(shares.read_shares())
        async with self._slots:
            estimate = await asyncio.to_thread(estimate_start, facts)
        share = pool_share_view(records, who.tenant, record.pool)
        return _explanation(record, reason, facts, share, records.weight(who.tenant), estimate)


def _explanation(
    record: JobRecord,
    reason: ReasonView,
    facts: QueueFacts | None = None,
    share: PoolShareView | None = None,
    weight: float | None = None,
    estimate: StartEstimate | None = None,
) -> JobExplanation:
    ahead = _jobs_ahead(facts) if facts is not None else None
    room = _pool_room(facts) if facts is not None else None
    kept = _kept_nodes(facts) if facts is not None else None
    start = _start_view(estimate)
    lines = [f"{record.state}: {reason.message}" if reason.message else str(record.state)]
    if record.reason is StateReason.WAITING_FOR_TIME and record.start_after is not None:
        time = datetime.fromtimestamp(record.start_after // 1_000_000, UTC)
        lines.append(f"it does not start before {time:%Y-%m-%d %H:%M:%S} UTC")
    if facts is not None and share is not None and ahead is not None and room is not None:
        lines += _order_lines(record, share, weight or 1.0, ahead)
        lines += _room_lines(room)
        lines += _kept_lines(kept, facts)
        lines += _start_lines(estimate)
    return JobExplanation(
        id=record.id,
        state=str(record.state),
        reason=reason,
        pool=record.pool,
        priority=record.priority,
        weight=weight,
        share=share,
        ahead=ahead,
        room=room,
        kept=kept,
        start=start,
        summary=lines,
    )


def _jobs_ahead(facts: QueueFacts) -> JobsAheadView:
    others = (count for tenant, count in facts.before.items() if tenant != facts.tenant)
    return JobsAheadView(own=facts.before.get(facts.tenant, 0), others=sorted(others, reverse=True))


def _pool_room(facts: QueueFacts) -> PoolRoomView:
    free, usable = sum(node.free for node in facts.nodes), sum(node.usable for node in facts.nodes)
    own = sum(devices for lease in facts.running if lease.tenant == facts.tenant for _, devices in lease.placement)
    return PoolRoomView(
        nodes=facts.node_count,
        usable=usable,
        free=free,
        largest_gap=max((node.free for node in facts.nodes), default=0),
        own=own,
        others=max(0, usable - free - own),
        quarantined=sum(node.quarantined for node in facts.nodes),
    )


def _kept_nodes(facts: QueueFacts) -> KeptNodesView | None:
    if not facts.kept_nodes:
        return None
    tenant, _, job = facts.kept_for.partition("/")
    return KeptNodesView(nodes=list(facts.kept_nodes), job=job if tenant == facts.tenant else None)


def _start_view(estimate: StartEstimate | None) -> StartView | None:
    if estimate is None or estimate.latest > MAX_AHEAD_SECONDS:
        return None
    now = datetime.now(UTC)
    earliest, expected, latest = (
        now + timedelta(seconds=seconds) for seconds in (estimate.earliest, estimate.expected, estimate.latest)
    )
    if not estimate.past_runs:
        return StartView(latest_at=latest)
    return StartView(earliest_at=earliest, expected_at=expected, latest_at=latest, past_runs=estimate.past_runs)


def _order_lines(record: JobRecord, share: PoolShareView, weight: float, ahead: JobsAheadView) -> Iterator[str]:
    yield (
        f"priority {record.priority}; your share: {100 * share.used_part:.0f} % of the recent use of pool "
        f"{record.pool}; {100 * share.due_part:.0f} % is due to your weight of {weight:g}"
    )
    words = f"before it: {count_noun(ahead.own, 'job')} of yours"
    if ahead.others:
        tenants = count_noun(len(ahead.others), "other tenant")
        words += f", and of {tenants} {', '.join(map(str, ahead.others))}: by priority, or since they have used less"
    yield words


def _room_lines(room: PoolRoomView) -> Iterator[str]:
    words = f"{room.free} of {room.usable} devices are free, at most {room.largest_gap} on one node"
    yield f"{words}; {room.own} are in use by you, {room.others} by others, {room.quarantined} in quarantine"


def _kept_lines(kept: KeptNodesView | None, facts: QueueFacts) -> Iterator[str]:
    if kept is not None:
        whose = "this job" if facts.ref == facts.kept_for else kept.job or "another tenant's job"
        yield f"{', '.join(kept.nodes)} is kept for {whose}, which has long waited for that many devices"


def _start_lines(estimate: StartEstimate | None) -> Iterator[str]:
    if estimate is None or estimate.latest > MAX_AHEAD_SECONDS:
        yield "when it starts cannot be estimated"
    elif not estimate.past_runs:
        yield f"it starts within {format_duration(estimate.latest)}, judging by the wall limits of what comes before it"
    else:
        band = f"most likely between {format_duration(estimate.earliest)} and {format_duration(estimate.latest)}"
        basis = f"by {count_noun(estimate.past_runs, 'past run')} there, if others submit as they have lately"
        yield f"it may start in {format_duration(estimate.expected)}, {band}, {basis}"
