"""Pure functions that turn the store's records into answers, with the messages of queued jobs."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from api.schemas.fleet_facts import FleetFacts
from jobs.model.device_history import HistoryLine
from jobs.model.parts import ranks_of_part
from jobs.model.pool_policy import BOX_LEVELS, DEFAULT_POLICY
from jobs.model.provided_pool import ProvidedPool
from jobs.model.records import (
    BOX_RIGHTS,
    AttemptRecord,
    BoxRights,
    DeviceRecord,
    JobRecord,
    JobRow,
    NodeRecord,
    Placement,
    QueueView,
    TokenRecord,
)
from jobs.model.spec import JobSpec, ScriptProgram
from jobs.model.state import OUT_OF_QUEUE, TERMINAL, JobState, StateReason
from jobs.protocol.names import DEFAULT_TENANT
from jobs.store import AttemptId, FleetRecords, HistoryPage, JobView
from jobs.store.accounts.tenant_secrets import SecretRecord
from shardyard.contract.fleet import (
    BlockView,
    BoxRightView,
    BoxView,
    DeviceHistory,
    DeviceHistoryLine,
    DeviceUse,
    DeviceUses,
    DeviceView,
    EngineView,
    LowDiskView,
    NodeView,
    PoolView,
)
from shardyard.contract.report import Resumed
from shardyard.contract.responses import (
    AttemptView,
    CheckpointView,
    JobStatus,
    JobSummary,
    ListedJob,
    PlacementView,
    Progress,
    ReasonView,
    SecretView,
    TokenView,
    at,
    json_object,
    utc,
)
from shardyard.formatting import count_noun

REASON_MESSAGES: dict[StateReason, str] = {
    StateReason.WAITING_FOR_TIME: "its time (`start_after`) has not come; from then on it is in the queue",
    StateReason.WAITING_FOR_TURN: "it waits for its turn in its group, which limits how many of its jobs run at a time",
    StateReason.SUSPENDED: "suspended; `shardyard resume JOB` puts it back to its place in the queue",
    StateReason.STARTING: "devices are leased; the node is starting it",
    StateReason.RUNNING: "running",
    StateReason.COMPLETED: "every rank succeeded",
}


#: In place of the value of an environment variable.
HIDDEN = "[hidden]"
#: Resources of every job that its status links to.
_LINKED = ("attempts", "splits", "logs", "metrics", "artifacts", "resubmit")


def job_summary(job: JobRecord, fleet: FleetFacts) -> JobSummary:
    return JobSummary(**_common_fields(job, reason_view(job, None, fleet), fleet))


def listed_job(job: JobRow, queue: QueueView | None, progress: Progress | None, fleet: FleetFacts) -> ListedJob:
    return ListedJob(
        **_common_fields(job, reason_view(job, queue, fleet), fleet),
        progress=progress,
        queue_position=queue_position(job, queue),
    )


def queue_position(job: JobRow, queue: QueueView | None) -> int | None:
    return None if queue is None or job.reason in OUT_OF_QUEUE else queue.ahead + 1


def job_status(
    view: JobView, progress: Progress | None, fleet: FleetFacts, owner: str | None = None, *, shows_env: bool = True
) -> JobStatus:
    """`owner` is what the token is called that has submitted it. `shows_env`: with the values of environment variables,
    which only those may see who may submit jobs."""
    job, spec = view.record, view.spec
    return JobStatus(
        **_common_fields(job, reason_view(job, view.queue, fleet), fleet),
        version=job.version,
        tenant=job.tenant,
        owner=owner,
        queue_position=queue_position(job, view.queue),
        retries=job.retries,
        max_retries=job.max_retries,
        losses=job.losses,
        retry_at=utc(job.retry_at),
        start_after=utc(job.start_after),
        suspended=job.suspended,
        preemptions=job.preemptions,
        checkpoint=checkpoint_view(job.checkpoint),
        parent_id=job.parent,
        batch_size=spec.batch_size,
        global_batch_size=spec.global_batch_size,
        start=spec.start,
        rehearsal=spec.rehearsal,
        network=job.network,
        progress=progress,
        result=job.result,
        error=job.error,
        spec=json_object(spec.as_json if shows_env else _hide_env(spec)),
    )


def _hide_env(spec: JobSpec) -> bytes:
    if not isinstance(spec.program, ScriptProgram) or not spec.program.env:
        return spec.as_json
    shown = msgspec.json.decode(spec.as_json)
    shown["program"]["env"] = dict.fromkeys(spec.program.env, HIDDEN)
    return msgspec.json.encode(shown)


def checkpoint_view(found: dict[str, Any] | None) -> CheckpointView | None:
    if found is None:
        return None
    return CheckpointView(found["step"], found["epoch"], found["attempt"], at(found["at"]))


def _common_fields(job: JobRow, why: ReasonView, fleet: FleetFacts) -> dict[str, Any]:
    return {
        "id": job.id,
        "name": job.name,
        "state": str(job.state),
        "reason": why,
        "pool": job.pool,
        "devices": job.devices,
        "nodes": job.nodes,
        "strategy": job.strategy,
        "priority": job.priority,
        "labels": job.labels,
        "attempt": job.attempt,
        "cancel_requested": job.cancel_requested,
        "created_at": at(job.created),
        "started_at": utc(job.started),
        "first_step_at": utc(job.first_step),
        "finished_at": utc(job.finished),
        "placement": placement_views(job.placement, fleet, job.strategy),
        "group": job.group,
        "archived": job.archived,
        "links": job_links(job.id, job.state),
    }


def reason_view(job: JobRow, queue: QueueView | None, fleet: FleetFacts) -> ReasonView:
    """Why the job is in its state. `queue` describes the queue that it waits in, if that is known."""
    if queue is None or job.reason in OUT_OF_QUEUE:  # whatever is free there
        return ReasonView(str(job.reason), job.message or REASON_MESSAGES.get(job.reason, ""))
    code, words = _waiting_reason(job, queue, fleet)
    if job.reason is StateReason.WAITING_FOR_DEVICES:
        return ReasonView(str(code), words)
    return ReasonView(str(job.reason), f"{job.message}; {words}" if job.message else words)


def _waiting_reason(job: JobRow, queue: QueueView, fleet: FleetFacts) -> tuple[StateReason, str]:
    if missing_box := fleet.missing_box(job.pool, job.devices):
        words = f"needs {_wanted(job)} in pool {job.pool}, {missing_box}; `shardyard nodes --box` shows why"
        return StateReason.UNBOXED, words
    if job.nodes > 1 and job.pool in fleet.closed:
        words = (
            f"needs {_wanted(job)} in pool {job.pool}, whose jobs never have the network of their nodes; cancel it, or "
            f"have an operator run `shardyard pool set {job.pool} --network none`"
        )
        return StateReason.WAITING_FOR_DEVICES, words
    has_room = queue.largest_gap >= job.devices and queue.free >= job.devices * job.nodes
    if not has_room and (missing_nodes := fleet.missing_nodes(job.pool)):
        ahead = f", {count_noun(queue.ahead, 'job')} ahead" if queue.ahead else ""
        return StateReason.WAITING_FOR_NODES, f"{missing_nodes}{ahead}"
    if queue.live_nodes == 0 and queue.low_nodes:
        words = (
            f"needs {_wanted(job)} in pool {job.pool}, whose nodes take no work while their disks have less free space "
            "than the service keeps for itself; `shardyard nodes` shows which, and deleting jobs frees space"
        )
        return StateReason.STORAGE_LOW, words
    if queue.live_nodes == 0:
        words = (
            f"needs {_wanted(job)} in pool {job.pool}, and none of its nodes takes work now: they are down, stopping "
            "or draining; `shardyard nodes` shows which"
        )
        return StateReason.NO_LIVE_NODE, words
    if missing_reach := fleet.missing_reach(job.pool, job.devices, job.nodes):
        words = (
            f"needs {_wanted(job)} in pool {job.pool}, {missing_reach}; give each node an IP address that the others "
            "reach, with SHARDYARD_NODE_ADDRESS"
        )
        return StateReason.NODE_HAS_NO_ADDRESS, words
    return StateReason.WAITING_FOR_DEVICES, _waiting_message(job, queue)


def _wanted(job: JobRow) -> str:
    return str(job.devices) if job.nodes == 1 else f"{job.devices} on each of {job.nodes} nodes"


def _waiting_message(job: JobRow, queue: QueueView) -> str:
    if queue.total < job.devices * job.nodes:
        return (
            f"needs {_wanted(job)} in pool {job.pool}, whose nodes have {queue.total} now; "
            "start one with more devices, or cancel the job"
        )
    words = f"needs {_wanted(job)} in pool {job.pool}: {queue.free} of {queue.total} free"
    if queue.largest_gap < job.devices <= queue.free:
        words += f" (at most {queue.largest_gap} of them on one node)"
    return f"{words}, {count_noun(queue.ahead, 'job')} ahead"


def placement_views(places: Sequence[Placement], fleet: FleetFacts, strategy: str = "") -> list[PlacementView]:
    """Nodes with their devices, and where the strategy is given, with their ranks."""
    return [
        PlacementView(
            place.node,
            fleet.labels(place.node, place.devices),
            list(ranks_of_part(part, len(place.devices), strategy)) if strategy else [],
        )
        for part, place in enumerate(places)
    ]


def job_links(job: str, state: JobState) -> dict[str, str]:
    base = f"/v1/jobs/{job}"
    found = {"self": base} | {name: f"{base}/{name}" for name in _LINKED}
    return found if state in TERMINAL else found | {"cancel": f"{base}/cancel"}


def attempt_view(record: AttemptRecord, fleet: FleetFacts) -> AttemptView:
    return AttemptView(
        attempt=record.number,
        state=str(record.state),
        placement=placement_views(record.placement, fleet),
        created_at=at(record.created),
        claimed_at=utc(record.claimed),
        started_at=utc(record.started),
        first_step_at=utc(record.first_step),
        ended_at=utc(record.ended),
        reason=None if record.reason is None else ReasonView(str(record.reason), record.message),
        error=record.error,
        resumed_from=None if record.resumed is None else Resumed(record.resumed["step"], record.resumed["attempt"]),
        network=record.network,
    )


# -- the fleet -------------------------------------------------------------------------------------


def pool_views(fleet: FleetRecords) -> list[PoolView]:
    return [pool_view(name, fleet) for name in sorted(pool_names(fleet))]


def pool_names(fleet: FleetRecords) -> set[str]:
    """Pools that have a node, a job that waits, a policy, or a provider."""
    return {node.pool for node in fleet.nodes} | fleet.queued.keys() | fleet.policies.keys() | fleet.provided.keys()


def pool_view(name: str, fleet: FleetRecords) -> PoolView:
    """A pool; it may have a policy, and no node yet."""
    nodes = [node for node in fleet.nodes if node.pool == name]
    policy = fleet.policies.get(name, DEFAULT_POLICY)
    boxes = Counter(node.info.box_level for node in nodes if node.alive)
    provided = fleet.provided.get(name)
    return PoolView(
        name=name,
        devices=sum(len(node.info.devices) for node in nodes),
        free=sum(node.free for node in nodes),
        leased=sum(len(node.held) for node in nodes),
        quarantined=sum(len(node.quarantine.keys() - node.held.keys()) for node in nodes),
        largest_node=max(
            (*(len(node.info.devices) for node in nodes), provided.largest_node if provided else 0), default=0
        ),
        nodes=len(nodes),
        live_nodes=sum(node.alive for node in nodes),
        queued=fleet.queued.get(name, 0),
        box=policy.box,
        network=policy.network,
        preempt=policy.preempt,
        boxes={level: boxes[level] for level in BOX_LEVELS},
        unboxed=sum(node.alive and node.unboxed for node in nodes),
        low_disk=sum(node.alive and node.low is not None for node in nodes),
        engine=None if provided is None else _engine_view(provided),
    )


def _engine_view(provided: ProvidedPool) -> EngineView:
    offer = provided.offer
    return EngineView(
        name=offer.engine,
        provider=offer.provider,
        silent=provided.silent,
        node_devices=offer.devices,
        min_nodes=offer.min_nodes,
        max_nodes=offer.nodes,
        error=offer.error or None,
        blocks=[BlockView(id=one.id, nodes=one.nodes, state=one.state, why=one.why) for one in provided.blocks],
    )


def node_view(record: NodeRecord, tenant: str, queued: int) -> NodeView:
    return NodeView(
        id=record.id,
        pool=record.pool,
        host=record.info.host,
        address=record.address,
        version=record.info.version,
        cores=record.info.cores,
        alive=record.alive,
        draining=record.draining,
        stopping=record.stopping or record.leaving,
        drain_deadline_at=utc(record.drain_until),
        attempts=len(set(record.held.values())),
        registered_at=at(record.registered),
        devices=[_device_view(record, device, tenant) for device in record.info.devices],
        environments=list(record.info.environments),
        queued=queued,
        box=_box_view(record.info.box),
        unboxed=record.unboxed,
        low_disk=None if record.low is None else LowDiskView(**msgspec.structs.asdict(record.low)),
        virtual=record.info.virtual,
        topology=record.topology,
        block=record.block or None,
    )


def _box_view(box: BoxRights | None) -> BoxView:
    if box is None:
        return BoxView()
    return BoxView(level=box.level, rights=[_right_view(box, right) for right in BOX_RIGHTS])


def _right_view(box: BoxRights, right: str) -> BoxRightView:
    if box.has_right(right):
        return BoxRightView(name=right, has=True)
    return BoxRightView(name=right, why=box.lacks.get(right, "the node puts no box around jobs"))


def _device_view(record: NodeRecord, device: DeviceRecord, tenant: str) -> DeviceView:
    holder = record.held.get(device.index)
    held_by = None if holder is None else AttemptId.parse(holder)
    ours = held_by is not None and held_by.tenant == tenant
    return DeviceView(
        device=device.index,
        label=device.label,
        id=device.id,
        name=device.name,
        kind=device.kind,
        memory_total_bytes=device.memory_total_bytes,
        state=_device_state(record, device.index),
        job=None if held_by is None else held_by.job if ours else "another tenant",
        attempt=held_by.number if held_by is not None and ours else None,
        quarantine=_quarantine_reason(record, device.index, tenant),
        quarantined_at=utc(why.since) if (why := record.quarantine.get(device.index)) is not None else None,
        name_in_fleet=device.name_in_fleet(record.id),
        suspected=_suspicion(record, device.index),
    )


def _suspicion(record: NodeRecord, index: int) -> str | None:
    """Why a device should be checked. One in quarantine is out of service already."""
    slow = record.suspects.get(index)
    if slow is None or index in record.quarantine:
        return None
    return (
        f"slow in {slow.slow} of its last {slow.judged} attempts beside different devices: a row took "
        f"{slow.relative:.2f} times as long as on them"
    )


def device_history(
    device: str, where: tuple[NodeRecord, DeviceRecord] | None, page: HistoryPage, tenant: str, following: str | None
) -> DeviceHistory:
    """`where` is the device's place now, `following` the cursor of the next page."""
    lines = [_history_line(line, tenant) for line in page.lines]
    if where is None:
        return DeviceHistory(id=device, lines=lines, next=following, total=page.total)
    seen = _device_view(*where, tenant)
    return DeviceHistory(
        id=device,
        node=where[0].id,
        label=seen.label,
        name=seen.name,
        state=seen.state,
        suspected=seen.suspected,
        lines=lines,
        next=following,
        total=page.total,
    )


def device_uses(node: NodeRecord, device: DeviceRecord, lines: Iterable[HistoryLine], tenant: str) -> DeviceUses:
    attempts = [line for line in lines if line.event == "attempt"]
    return DeviceUses(
        id=device.name_in_fleet(node.id),
        node=node.id,
        label=device.label,
        uses=[_device_use(line, tenant) for line in attempts],
    )


def _device_use(line: HistoryLine, tenant: str) -> DeviceUse:
    seen = _history_line(line, tenant)
    begun = at(line.at - int(line.seconds * 1e6))
    return DeviceUse(begun_at=begun, ended_at=at(line.at), job=seen.job, attempt=seen.attempt, reason=seen.reason)


def _history_line(line: HistoryLine, tenant: str) -> DeviceHistoryLine:
    attempt = AttemptId.parse(line.attempt) if line.attempt else None
    ours = attempt is not None and attempt.tenant == tenant
    return DeviceHistoryLine(
        at=at(line.at),
        event=line.event,
        job=None if attempt is None else attempt.job if ours else "another tenant",
        attempt=attempt.number if attempt is not None and ours else None,
        reason=line.reason or None,
        hours=round(line.seconds / 3600, 6),
        peers=line.peers,
        ms_per_row=line.ms_per_row,
        relative_ms_per_row=line.relative,
        slow=line.slow,
        error=line.error or None,
        quarantine=_shown_reason(line.quarantine, tenant) if line.quarantine else None,
        by=line.by or None,
    )


def _shown_reason(reason: str, tenant: str) -> str:
    """Why a device is not used. The words name a process and whose job it was, which is for the operator only."""
    return reason if tenant == DEFAULT_TENANT else "it is in quarantine; ask the operator"


def _quarantine_reason(record: NodeRecord, index: int, tenant: str) -> str | None:
    why = record.quarantine.get(index)
    return None if why is None else _shown_reason(why.reason, tenant)


def _device_state(record: NodeRecord, index: int) -> str:
    if index in record.held:
        return "leased"  # perhaps the last time
    if index in record.quarantine:
        return "quarantined"
    return "free" if record.alive else "offline"


def token_view(record: TokenRecord) -> TokenView:
    return TokenView(
        id=record.id,
        name=record.name,
        tenant=record.tenant,
        scopes=sorted(record.scopes),
        node=record.node,
        created_at=at(record.created),
        expires_at=utc(record.expires),
    )


def secret_view(record: SecretRecord) -> SecretView:
    return SecretView(name=record.name, created_at=at(record.created), updated_at=at(record.updated))
