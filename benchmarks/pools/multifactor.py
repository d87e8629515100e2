"""The same pool without Redis, under the orders that Shardyard's is compared with: first come, and Slurm's multifactor
priority.

That is `10000 * fair-share + 1000 * age` here, the weights of the example in Slurm's page on its multifactor plugin.
The fair-share factor is the classic `2 ^ -(use / share)`: the tenant's part of all decayed use, over its part of all
weights. Use halves in 7 days, age counts up to 7 days, and both are computed anew every 5 minutes, which are Slurm's
defaults.

The user's own priority comes first, as with a QOS of a large weight. Everything else is as in `dispatch.lua`, so that
only the order differs: a job goes to the nodes with the fewest free devices that still fit, and a small one may pass
a large one that does not fit, until that has waited for `SHARDYARD_HOLD_SECONDS`: then nodes are kept for it.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from benchmarks.pools.pool import DEVICES_PER_NODE, NODES
from benchmarks.pools.traces import DAY, TraceJob
from jobs.model.settings import Settings

AGE_WEIGHT, SHARE_WEIGHT = 1_000.0, 10_000.0
MAX_AGE_SECONDS, HALF_LIFE_SECONDS = 7 * DAY, 7 * DAY
CALCULATION_SECONDS = 300.0
#: More than all factors together, for one step of the user's own priority.
PRIORITY_WEIGHT = 100_000.0

#: Jobs of which the one that came first goes first in every order: devices, nodes, tenant, priority.
Line = tuple[int, int, str, int]


class ModelPool:
    """First come, first served; another order overrides `rank`."""

    def __init__(self) -> None:
        self._free = [DEVICES_PER_NODE] * NODES
        self._kept: tuple[TraceJob, Sequence[int]] | None = None
        self._hold_seconds = Settings().hold_seconds
        self.placed: dict[str, tuple[TraceJob, Sequence[int]]] = {}
        self.waiting: dict[Line, list[tuple[float, str, TraceJob]]] = defaultdict(list)

    def rank(self, now: float, job: TraceJob) -> float:
        """Of waiting jobs, the least goes first, and of these the one that came first."""
        return -PRIORITY_WEIGHT * job.priority

    def submit(self, now: float, job: TraceJob) -> None:
        line = job.devices, job.nodes, job.tenant, job.priority
        heapq.heappush(self.waiting[line], (job.submitted, job.name, job))

    def dispatch(self, now: float) -> Sequence[TraceJob]:
        started: list[TraceJob] = []
        lines = {line for line, jobs in self.waiting.items() if jobs}
        while lines:
            line = min(lines, key=lambda each: self._turn(now, self.waiting[each][0][2]))
            job = self.waiting[line][0][2]
            nodes = self._find_room(job, self._kept_against(now, job))
            if nodes is None:
                self._keep_nodes(now, job)
                lines = {each for each in lines if each[:2] != line[:2]}
                continue
            heapq.heappop(self.waiting[line])
            self._hold(job, nodes)
            started.append(job)
            if not self.waiting[line]:
                lines.remove(line)
        return started

    def finish(self, now: float, job: TraceJob) -> None:
        _, nodes = self.placed.pop(job.name)
        for node in nodes:
            self._free[node] += job.devices

    def preempted(self, now: float) -> Iterable[TraceJob]:
        return ()

    def leave(self, now: float, job: TraceJob) -> None:
        self.finish(now, job)
        self.submit(now, job)

    def _turn(self, now: float, job: TraceJob) -> tuple[float, float, str]:
        return self.rank(now, job), job.submitted, job.name

    def _hold(self, job: TraceJob, nodes: Sequence[int]) -> None:
        for node in nodes:
            self._free[node] -= job.devices
        self.placed[job.name] = job, nodes
        if self._kept is not None and self._kept[0] == job:
            self._kept = None

    def _find_room(self, job: TraceJob, kept: Sequence[int]) -> Sequence[int] | None:
        fitting = sorted(
            (free, node) for node, free in enumerate(self._free) if free >= job.devices and node not in kept
        )
        return [node for _, node in fitting[: job.nodes]] if len(fitting) >= job.nodes else None

    def _kept_against(self, now: float, job: TraceJob) -> Sequence[int]:
        if self._kept is None or self._turn(now, self._kept[0]) >= self._turn(now, job):
            return ()
        return self._kept[1]

    def _keep_nodes(self, now: float, job: TraceJob) -> None:
        if self._kept is not None and self._turn(now, self._kept[0]) <= self._turn(now, job):
            return
        if now - job.submitted < self._hold_seconds:
            return
        largest = sorted(range(NODES), key=lambda node: (-self._free[node], -node))
        self._kept = job, largest[: job.nodes]


class MultifactorPool(ModelPool):
    """Slurm's multifactor priority."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        super().__init__()
        self._shares = {tenant: weight / sum(weights.values()) for tenant, weight in weights.items()}
        self._used = dict.fromkeys(weights, 0.0)
        self._settled = 0.0
        self._calculated = 0.0
        self._factors = dict.fromkeys(weights, 1.0)

    def rank(self, now: float, job: TraceJob) -> float:
        age = min(1.0, max(0.0, self._calculated - job.submitted) / MAX_AGE_SECONDS)
        factors = SHARE_WEIGHT * self._factors[job.tenant] + AGE_WEIGHT * age
        return super().rank(now, job) - factors

    def submit(self, now: float, job: TraceJob) -> None:
        self._settle(now)
        super().submit(now, job)

    def dispatch(self, now: float) -> Sequence[TraceJob]:
        self._settle(now)
        return super().dispatch(now)

    def finish(self, now: float, job: TraceJob) -> None:
        self._settle(now)
        super().finish(now, job)

    def _settle(self, now: float) -> None:
        """Charge the devices that are held, and compute the factors where it is time to."""
        passed = now - self._settled
        if passed > 0:
            kept = 0.5 ** (passed / HALF_LIFE_SECONDS)
            self._used = {tenant: used * kept for tenant, used in self._used.items()}
            for job, nodes in self.placed.values():
                self._used[job.tenant] += passed * job.devices * len(nodes)
            self._settled = now
        if now - self._calculated >= CALCULATION_SECONDS:
            self._calculated = now
            total = sum(self._used.values()) or 1.0
            self._factors = {tenant: 2 ** -(used / total / self._shares[tenant]) for tenant, used in self._used.items()}
