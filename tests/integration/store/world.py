"""A control store with a few nodes and jobs in it, in the words that the tests use."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeVar

import redis

from jobs import store
from jobs.model.records import AttemptRecord, BoxRights, DeviceRecord, JobRecord, NodeInfo
from jobs.model.spec import JobSpec, Resources
from jobs.model.spec_rules import parse_spec
from jobs.model.state import JobState, StateReason
from jobs.model.trace_context import JobTrace
from jobs.store import AttemptId, BundleUpload, groups
from jobs.store.client import RedisStore
from shardyard.contract.errors import NotFound

T = TypeVar("T")
TENANT = "default"
NEVER = 3600.0  # hold_seconds that no test lives to see


def a_spec(devices: int = 1, **fields: Any) -> JobSpec:
    program = {"mode": "forward", "model": {"ref": "linear"}, "data": {"ref": "random_vectors"}}
    how = {"strategy": "dp" if devices > 1 else "single"}
    return parse_spec(
        json.dumps({"program": program, "parallelism": how, "resources": {"devices": devices}} | dict(fields))
    )


def bundle_id(number: int) -> str:
    return f"sha256:{number:064x}"


def script(number: int) -> dict[str, Any]:
    """A program from the bundle of that number."""
    return {"kind": "script", "bundle": bundle_id(number), "entrypoint": "train.py"}


def node_info(devices: int, box: BoxRights | None = None) -> NodeInfo:
    records = (DeviceRecord(index=i, kind="cpu", ordinal=i, id=f"cpu:{i}", name="virtual") for i in range(devices))
    return NodeInfo(host="host", cores=4, version="0", devices=tuple(records), box=box)


class World:
    def __init__(self, url: str) -> None:
        self.store = RedisStore.from_url(url)
        self._ids: Iterator[int] = iter(range(1, 10**9))
        self._tenants: dict[str, str] = {}  # of jobs that are not TENANT's

    @property
    def redis(self) -> "redis.Redis":
        return self.store.client

    def run(self, call: store.Call[T]) -> T:
        return self.store.run(call)

    def node(
        self,
        name: str = "n1",
        devices: int = 4,
        *,
        pool: str = "default",
        instance: str = "i1",
        box: BoxRights | None = None,
        reach: str = "network",
        topology: str = "",
    ) -> str:
        info = node_info(devices, box)
        register = store.register_node(
            name, instance, pool, "127.0.0.1", info, home="state-dir", reach=reach, topology=topology
        )
        self.run(register)
        return name

    def submit(
        self,
        devices: int = 1,
        *,
        nodes: int = 1,
        priority: int = 0,
        retries: int = 0,
        tenant: str = TENANT,
        token: str = "",
        **fields: Any,
    ) -> str:
        limits = {"max_retries": retries} | fields.pop("limits", {})
        chosen = a_spec(devices, priority=priority, limits=limits, **fields)
        if nodes > 1:
            chosen = chosen.model_copy(update={"resources": Resources(devices=devices, nodes=nodes)})
        job = self.run(store.submit(tenant, f"{next(self._ids):09d}", chosen, token=token)).job
        self._tenants[job] = tenant
        return job

    def new_group(
        self, devices: Sequence[int], *, concurrent: int = 1, tenant: str = TENANT, token: str = ""
    ) -> tuple[str, store.Call[groups.SubmittedGroup]]:
        """A group, and the call that stores it with a job of so many devices each."""
        group = f"{next(self._ids):09d}"
        self._tenants[group] = tenant
        about = groups.NewGroup(group, "sweep", "a group", {}, {}, concurrent, token)
        return group, groups.submit_group(tenant, about, self._new_children(devices, 0, tenant))

    def more_children(self, group: str, devices: Sequence[int], *, first: int) -> store.Call[bool]:
        tenant = self.tenant(group)
        return groups.extend_group(tenant, group, self._new_children(devices, first, tenant))

    def _new_children(self, devices: Sequence[int], first: int, tenant: str) -> list[groups.NewChild]:
        made = [
            groups.NewChild(number, f"{next(self._ids):09d}", a_spec(count), JobTrace())
            for number, count in enumerate(devices, start=first)
        ]
        self._tenants |= {child.job: tenant for child in made}
        return made

    def children(self, group: str) -> dict[int, str]:
        """The jobs of a group by their numbers; none where it is forgotten."""
        try:
            found = self.run(groups.read_group(self.tenant(group), group, "sweep"))
        except NotFound:
            return {}
        return {child.number: child.job for child in found.children}

    def tenant(self, job: str) -> str:
        return self._tenants.get(job, TENANT)

    def put_bundle(self, number: int, *, nonce: str = "nonce", size: int = 100, **fields: Any) -> BundleUpload:
        fields = {"files": 1, "unpacked": 200, "quota": 1000} | fields
        return self.run(store.put_bundle(TENANT, bundle_id(number), nonce, size=size, **fields))

    def jobs_that_need(self, number: int) -> int | None:
        """None when there is no such bundle."""
        bundle = self.run(store.read_bundle(TENANT, bundle_id(number)))
        return None if bundle is None else bundle.jobs

    def dispatch(self, hold: float = NEVER) -> list[str]:
        """Ids of the jobs that were started."""
        return [attempt.job for attempt in self.run(store.dispatch(hold)).created]

    def job(self, job: str) -> JobRecord:
        return self.run(store.read_job(self.tenant(job), job)).record

    def state(self, job: str) -> JobState:
        return self.job(job).state

    def attempt(self, job: str) -> AttemptId:
        """The newest attempt of a job."""
        return AttemptId(self.tenant(job), job, self.job(job).attempt)

    def history(self, job: str) -> tuple[AttemptRecord, ...]:
        return self.run(store.list_attempts(self.tenant(job), job))

    def claimed(self, devices: int = 1, *, retries: int = 0, claimant: str = "c") -> AttemptId:
        """An attempt whose supervisor has claimed it."""
        job = self.submit(devices, retries=retries)
        assert job in self.dispatch()
        return self.claim(job, claimant)

    def claim(self, job: str, claimant: str = "c") -> AttemptId:
        attempt, node = self.attempt(job), self.job(job).node
        assert node is not None
        assert self.run(store.claim(attempt, claimant, node)).granted
        return attempt

    def running(self, devices: int = 1, *, retries: int = 0) -> AttemptId:
        attempt = self.claimed(devices, retries=retries)
        assert self.mark(attempt)
        return attempt

    def mark(self, attempt: AttemptId, what: Literal["running", "first_step"] = "running", *, by: str = "c") -> bool:
        return self.run(store.record_milestone(attempt, by, what))

    def finish(self, attempt: AttemptId, reason: StateReason = StateReason.COMPLETED, *, by: str = "c") -> bool:
        return self.run(store.finish(attempt, by, reason, reason.value))

    def reap(
        self,
        attempt: AttemptId,
        *,
        heartbeat: int | None,
        reason: StateReason = StateReason.LEASE_EXPIRED,
        node: str = "",
    ) -> bool:
        lost = store.reap(attempt, reason, "gone", heartbeat=heartbeat, backoff_seconds=0, node=node)
        return self.run(lost) is not None

    def release(self, attempt: AttemptId, quarantine: dict[int, str] | None = None, *, node: str = "n1") -> int:
        return self.run(store.release(node, attempt, quarantine or {}))

    def finish_and_release(self, attempt: AttemptId) -> None:
        node = self.job(attempt.job).node
        assert node is not None
        assert self.finish(attempt)
        assert self.release(attempt, node=node) > 0

    def again(self, attempt: AttemptId, reason: StateReason) -> AttemptId:
        """Ends a claimed attempt, gives its devices back, starts and claims the next one."""
        assert self.finish(attempt, reason)
        assert self.release(attempt) > 0
        assert attempt.job in self.dispatch()
        return self.claim(attempt.job)
