"""A pool in a real Redis, decided by the product's own Lua functions, whose clock is that of the trace.

The functions ask Redis for the time in one place, `now_us`. Here that reads a key instead; everything else is as it is
deployed. Whoever leads settles the accounts of tenants every ten seconds; here that is done before a dispatch, if so
much time has passed.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

from benchmarks.harness.servers import redis_server
from benchmarks.pools.pool import DEVICES_PER_NODE, NODES
from benchmarks.pools.traces import TraceJob
from jobs import store
from jobs.model.pool_policy import PoolPolicy
from jobs.model.records import DeviceRecord, NodeInfo
from jobs.model.settings import Settings
from jobs.model.spec import JobSpec, Resources
from jobs.model.spec_rules import parse_spec
from jobs.model.state import StateReason, SupervisorCommand
from jobs.store import pools, shares
from jobs.store.attempts import MAX_DISPATCHED
from jobs.store.client import RedisStore
from jobs.store.function_library import function_library

T = TypeVar("T")
POOL, CLAIMANT = "default", "bench"
CLOCK_KEY = "bench:now"
#: The begin of all traces, in seconds since the epoch.
BEGIN = 1_700_000_000
SETTLE_SECONDS = 10.0
_ASKS_REDIS = "  local t = redis.call('TIME')\n  return t[1] * 1000000 + t[2]\n"
_ASKS_KEY = f"  return tonumber(redis.call('GET', '{CLOCK_KEY}'))\n"


def library_with_clock() -> str:
    """The source of the functions, with the clock in a key.

    Raises:
        RuntimeError: `now_us` is written in another way than this module knows.
    """
    source = function_library().source
    if source.count(_ASKS_REDIS) != 1 or source.count("'TIME'") != 1:
        raise RuntimeError("the library asks for the time in another way: see now_us in jobs/store/lua/values.lua")
    return source.replace(_ASKS_REDIS, _ASKS_KEY)


class StoredPool:
    """`one_tenant`: all jobs are of one tenant, so that they start by priority and arrival."""

    def __init__(self, control: RedisStore, weights: Mapping[str, float], *, one_tenant: bool, preempt: bool) -> None:
        self.control = control
        self._one_tenant = one_tenant
        self._preempt = preempt
        self._dispatch = store.dispatch(Settings().hold_seconds, 1e6)
        self._settled = -SETTLE_SECONDS
        self._jobs: dict[str, TraceJob] = {}
        self._running: dict[str, tuple[store.AttemptId, list[str]]] = {}  # attempts and their nodes, by job
        self._asked: set[store.AttemptId] = set()
        control.client.flushall()
        control.client.function_load(library_with_clock(), replace=True)
        self.set_clock(0.0)
        for number in range(NODES):
            name = f"n{number}"
            control.run(
                store.register_node(name, name, POOL, "127.0.0.1", _node_info(name), home=name, reach="network")
            )
        for tenant, weight in weights.items():
            control.run(shares.set_share(tenant, weight))
        if preempt:
            control.run(pools.set_policy(POOL, PoolPolicy(preempt=True)))

    def set_clock(self, now: float) -> None:
        self.control.client.set(CLOCK_KEY, int((BEGIN + now) * 1_000_000))

    def tenant_of(self, job: TraceJob) -> str:
        return "everybody" if self._one_tenant else job.tenant

    def submit(self, now: float, job: TraceJob) -> None:
        self.set_clock(now)
        self._jobs[job.name] = job
        self.control.run(store.submit(self.tenant_of(job), job.name, _spec(job)))

    def dispatch(self, now: float) -> Sequence[TraceJob]:
        self.set_clock(now)
        if now - self._settled >= SETTLE_SECONDS:
            self.control.run(shares.settle_shares())
            self._settled = now
        started: list[TraceJob] = []
        while True:
            found = self.control.run(self._dispatch)
            for hint in found.hints:
                if self.control.run(store.claim(hint.attempt, CLAIMANT, hint.node)).granted:
                    self._running.setdefault(hint.attempt.job, (hint.attempt, []))[1].append(hint.node)
            started += [self._jobs[attempt.job] for attempt in found.created]
            if len(found.created) < MAX_DISPATCHED:
                return started

    def finish(self, now: float, job: TraceJob) -> None:
        self._end(now, job, StateReason.COMPLETED)

    def preempted(self, now: float) -> Iterable[TraceJob]:
        if not self._preempt:
            return
        for name, (attempt, _) in list(self._running.items()):
            if attempt in self._asked:
                continue
            if self.control.run(store.read_command(attempt, CLAIMANT)) is SupervisorCommand.STOP:
                self._asked.add(attempt)
                yield self._jobs[name]

    def leave(self, now: float, job: TraceJob) -> None:
        self._end(now, job, StateReason.SERVICE_STOPPED)

    def _end(self, now: float, job: TraceJob, reason: StateReason) -> None:
        self.set_clock(now)
        attempt, nodes = self._running.pop(job.name)
        self.control.run(store.finish(attempt, CLAIMANT, reason, "ended", node=nodes[0]))
        for node in nodes[1:]:
            self.control.run(store.release(node, attempt, {}))


@contextmanager
def stored_pool(
    weights: Mapping[str, float], *, one_tenant: bool = False, preempt: bool = False
) -> Iterator[StoredPool]:
    """A pool on a server of its own."""
    with redis_server("control") as server:
        control = RedisStore.from_url(server.url)
        control.client.config_set("appendonly", "no")  # what is measured is decisions, not times
        try:
            yield StoredPool(control, weights, one_tenant=one_tenant, preempt=preempt)
        finally:
            control.close()


def _node_info(node: str) -> NodeInfo:
    records = (
        DeviceRecord(index=i, kind="cuda", ordinal=i, id=f"{node}-GPU-{i}", name="simulated")
        for i in range(DEVICES_PER_NODE)
    )
    return NodeInfo(host=node, cores=64, version="0", devices=tuple(records))


def _spec(job: TraceJob) -> JobSpec:
    return _parse_spec(job.devices, job.nodes, job.priority, job.wall)


@cache
def _parse_spec(devices: int, nodes: int, priority: int, wall: float) -> JobSpec:
    fields = {
        "pool": POOL,
        "priority": priority,
        "resources": {"devices": devices},
        "parallelism": {"strategy": "dp" if devices > 1 else "single"},
        "program": {"mode": "forward", "model": {"ref": "linear"}, "data": {"ref": "random_vectors"}},
        "limits": {"wall_seconds": wall},
    }
    return parse_spec(json.dumps(fields)).model_copy(update={"resources": Resources(devices=devices, nodes=nodes)})
