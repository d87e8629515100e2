"""What a queued job waits for: devices, what runs on them, and which other jobs wait."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from jobs.model.device_history import HistoryLine
from jobs.protocol.names import job_ref
from jobs.store.call import Call, call_function

#: What is looked at of a large pool, of each class in it, and of each tenant in that.
MAX_NODES, MAX_TENANTS, MAX_JOBS = 64, 16, 16
#: Scores of jobs: one priority.
_LEVEL = 2**45


@dataclass(frozen=True, slots=True)
class NodeRoom:
    free: int
    usable: int  # in use or free
    quarantined: int


@dataclass(frozen=True, slots=True)
class RunningLease:
    """What an attempt has on the nodes that were looked at: devices by the index of the node."""

    tenant: str
    seconds: float  # since the lease
    wall_seconds: float | None
    placement: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """`level` and `arrival` say when it is its turn within its tenant: less goes first."""

    ref: str
    level: int
    arrival: int
    wall_seconds: float | None


@dataclass(frozen=True, slots=True)
class TenantQueue:
    """The first of `count` jobs of a tenant that want as many `devices` of as many `nodes`."""

    tenant: str
    devices: int
    nodes: int
    count: int
    jobs: tuple[WaitingJob, ...]


@dataclass(frozen=True, slots=True)
class TenantAccount:
    used: float  # device-seconds, as they count now
    devices: int
    weight: float


@dataclass(frozen=True, slots=True)
class PastRun:
    """An attempt that has ended, on so many devices of all its nodes."""

    tenant: str
    devices: int
    seconds: float


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """A queued job, and its pool around it. `before` counts by tenant the jobs that come before it as things stand;
    `kept_nodes` are reserved for the job `kept_for`. Of a pool of more nodes than `nodes` has, the others are alike.
    `accounts` has those that run or wait, and some that have used the pool lately."""

    ref: str
    node_count: int
    queued: int
    nodes: tuple[NodeRoom, ...]
    running: tuple[RunningLease, ...]
    queues: tuple[TenantQueue, ...]
    accounts: dict[str, TenantAccount]
    before: dict[str, int] = field(default_factory=dict)
    kept_for: str = ""
    kept_nodes: tuple[str, ...] = ()
    past_runs: tuple[PastRun, ...] = ()  # those that devices of the pool have had lately

    @property
    def tenant(self) -> str:
        return self.ref.partition("/")[0]


def read_queue(tenant: str, job: str) -> Call[QueueFacts | None]:
    """What a job waits for; None where it is in no queue."""
    ref = job_ref(tenant, job)

    def decode(reply: Sequence[Any]) -> QueueFacts | None:
        if not reply:
            return None
        (_, node_count, queued), hold, nodes, running, accounts, queues, history = reply
        before: Counter[str] = Counter()
        for name, _, count, *_ in queues:
            before[name.decode()] += int(count)
        return QueueFacts(
            ref=ref,
            node_count=int(node_count),
            queued=int(queued),
            nodes=tuple(NodeRoom(*map(int, node)) for node in nodes),
            running=tuple(map(_read_lease, running)),
            queues=tuple(map(_read_tenant_queue, queues)),
            accounts={
                name.decode(): TenantAccount(float(used), int(devices), float(weight))
                for name, used, devices, weight in accounts
            },
            before={name: count for name, count in before.items() if count},
            kept_for=hold[0].decode() if hold else "",
            kept_nodes=tuple(hold[1].decode().split()) if hold else (),
            past_runs=_past_runs(history),
        )

    return call_function("read_queue", decode, ref=ref, max_nodes=MAX_NODES, max_tenants=MAX_TENANTS, max_jobs=MAX_JOBS)


def _read_lease(entry: Sequence[Any]) -> RunningLease:
    tenant, microseconds, wall, *placement = entry
    pairs = zip(placement[::2], placement[1::2], strict=True)
    places = tuple((int(node), int(devices)) for node, devices in pairs)
    return RunningLease(tenant.decode(), int(microseconds) / 1e6, float(wall) if wall else None, places)


def _read_tenant_queue(entry: Sequence[Any]) -> TenantQueue:
    name, of_class, _, count, *jobs = entry
    devices, _, nodes = of_class.decode().partition("x")
    found = zip(jobs[::3], jobs[1::3], jobs[2::3], strict=True)
    waiting = tuple(_read_waiting(ref, score, wall) for ref, score, wall in found)
    return TenantQueue(name.decode(), int(devices), int(nodes or 1), int(count), waiting)


def _read_waiting(ref: bytes, score: bytes, wall: bytes) -> WaitingJob:
    level, arrival = divmod(int(float(score)), _LEVEL)
    return WaitingJob(ref.decode(), level, arrival, float(wall) if wall else None)


def _past_runs(history: Sequence[bytes]) -> tuple[PastRun, ...]:
    """Attempts that were not lost: each once, however many devices it had."""
    lines = (_decoder.decode(line) for line in history)
    return tuple(
        PastRun(line.attempt.partition("/")[0], line.peers + 1, line.seconds)
        for line in {line.attempt: line for line in lines if line.event == "attempt"}.values()
        if line.reason in _TYPICAL and line.seconds > 0
    )


#: How attempts end that say how long others will take.
_TYPICAL = frozenset({"completed", "wall_limit", "rank_failed", "code_error", "out_of_memory", "cancelled_by_user"})
_decoder = msgspec.json.Decoder(HistoryLine, strict=False)
