"""An estimate of when a queued job starts: the pool's dispatch, played forward many times.

Each time, what runs and what waits gets a length that was seen on the pool's devices before, and no more than its wall
limit. What is submitted later is not known, nor that jobs fail and start again. Order and fit are those of
`dispatch.lua`, without the nodes that it keeps for large jobs; a test compares the two.
"""

import heapq
import random
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from jobs.store.queue_facts import QueueFacts, WaitingJob

RUNS = 25
#: Of the runs, which part starts the job earlier than the first, the second and the third time of an estimate.
EARLY, MIDDLE, LATE = 0.1, 0.5, 0.9
#: With fewer past attempts than these, only the wall limits say something.
MIN_PAST_RUNS = 5
#: As in `shares.lua`: devices that a tenant has count as if it had them for so much longer.
AHEAD_SECONDS = 60.0
#: Seconds between a lease and the first step, at least: no length is shorter.
SHORTEST_SECONDS = 1.0

#: Jobs that are known to wait, but were not looked at.
MAX_ALIKE = 128
Placement = Sequence[tuple[int, int]]  # nodes, with devices


class JobClass(NamedTuple):
    """Jobs that want as many devices of as many nodes."""

    devices: int
    nodes: int


@dataclass(frozen=True, slots=True)
class StartEstimate:
    """Seconds from now. With `past_runs` of 0 they come from wall limits alone: it starts at `latest` or before."""

    earliest: float
    expected: float
    latest: float
    past_runs: int


def estimate_start(facts: QueueFacts, runs: int = RUNS) -> StartEstimate | None:
    """When a queued job starts, if nothing more is submitted; None where nothing bounds it, or where it does not fit on
    the nodes as they are."""
    past = facts.past_seconds if len(facts.past_seconds) >= MIN_PAST_RUNS else ()
    if not past:
        latest = PoolModel(facts, (), random.Random(0)).run_until(facts.ref)  # noqa: S311  (nothing is drawn)
        return None if latest is None else StartEstimate(0.0 if latest else latest, latest, latest, 0)
    starts: list[float] = []
    for number in range(runs):
        start = PoolModel(facts, past, random.Random(number)).run_until(facts.ref)  # noqa: S311  (no secret)
        if start is None:
            return None
        starts.append(start)
    starts.sort()
    early, middle, late = (starts[min(len(starts) - 1, int(part * len(starts)))] for part in (EARLY, MIDDLE, LATE))
    return StartEstimate(early, middle, late, len(past))


class PoolModel:
    """The jobs of a pool, of which each gets a length by chance."""

    def __init__(self, facts: QueueFacts, past: Sequence[float], chance: random.Random) -> None:
        self._past = past
        self._chance = chance
        self._now = 0.0
        self._free = [node.free for node in facts.nodes]
        self._accounts = {name: [found.used, float(found.devices)] for name, found in facts.accounts.items()}
        self._weights = {name: found.weight for name, found in facts.accounts.items()}
        self._queues = _queue_by_class(facts)
        self._ends: list[tuple[float, int, str, Placement]] = []
        self.started: list[str] = []
        for number, lease in enumerate(facts.running):
            seconds = self._remaining(lease.seconds, lease.wall_seconds)
            if seconds is not None:
                self._ends.append((seconds, -number, lease.tenant, lease.placement))
        heapq.heapify(self._ends)

    def run_until(self, ref: str) -> float | None:
        """The seconds until a job starts; None where it never does."""
        while True:
            self.dispatch()
            if ref in self.started:
                return self._now
            if not self._ends:
                return None
            self._end_next()

    def dispatch(self) -> None:
        """Start all that fits, in the order of the service."""
        fitting = set(self._queues)
        while fitting:
            heads = ((of_class, tenant) for of_class in fitting for tenant in self._queues[of_class])
            of_class, tenant = min(heads, key=self._turn)
            placement = self._find_room(of_class)
            if placement is None:
                fitting.remove(of_class)
                continue
            queue = self._queues[of_class]
            self._start(tenant, queue[tenant].popleft(), placement)
            if not queue[tenant]:
                del queue[tenant]
            if not queue:
                del self._queues[of_class]
                fitting.remove(of_class)

    def _turn(self, head: tuple[JobClass, str]) -> tuple[int, float, int]:
        of_class, tenant = head
        job = self._queues[of_class][tenant][0]
        used, devices = self._accounts[tenant]
        return job.level, (used + devices * AHEAD_SECONDS) / self._weights[tenant], job.arrival

    def _find_room(self, of_class: JobClass) -> Placement | None:
        fitting = sorted((free, node) for node, free in enumerate(self._free) if free >= of_class.devices)
        if len(fitting) < of_class.nodes:
            return None
        return [(node, of_class.devices) for _, node in fitting[: of_class.nodes]]

    def _start(self, tenant: str, job: WaitingJob, placement: Placement) -> None:
        self.started.append(job.ref)
        self._hold(tenant, placement, 1)
        seconds = self._remaining(0.0, job.wall_seconds)
        if seconds is not None:
            heapq.heappush(self._ends, (self._now + seconds, len(self.started), tenant, placement))

    def _end_next(self) -> None:
        end, _, tenant, placement = heapq.heappop(self._ends)
        for account in self._accounts.values():
            account[0] += account[1] * (end - self._now)
        self._now = end
        self._hold(tenant, placement, -1)

    def _hold(self, tenant: str, placement: Placement, sign: int) -> None:
        for node, devices in placement:
            self._free[node] -= sign * devices
            self._accounts[tenant][1] += sign * devices

    def _remaining(self, seconds: float, wall: float | None) -> float | None:
        """How much longer something runs that has run for so long. None: nothing says."""
        limit = None if wall is None else max(SHORTEST_SECONDS, wall - seconds)
        longer = self._past[bisect_right(self._past, seconds) :]
        if not self._past:
            return limit
        # What has run longer than all before may run as long again.
        chosen = max(SHORTEST_SECONDS, self._chance.choice(longer) - seconds if longer else seconds)
        return chosen if limit is None else min(chosen, limit)


def _queue_by_class(facts: QueueFacts) -> dict[JobClass, dict[str, deque[WaitingJob]]]:
    """All that waits, for the nodes that were looked at: of a pool with twice as many nodes, every second job."""
    step = max(1.0, facts.node_count / max(1, len(facts.nodes)))
    queues: dict[JobClass, dict[str, deque[WaitingJob]]] = {}
    for queue in facts.queues:
        jobs = list(queue.jobs)
        if jobs and queue.count > len(jobs):  # the others are like the last one
            jobs += [replace(jobs[-1], ref="")] * min(MAX_ALIKE, queue.count - len(jobs))
        if step > 1:
            jobs = [job for n, job in enumerate(jobs) if int(n / step) != int((n - 1) / step) or job.ref == facts.ref]
        if jobs:
            queues.setdefault(JobClass(queue.devices, queue.nodes), {})[queue.tenant] = deque(jobs)
    return queues
