"""An estimate of when a queued job starts: the pool's dispatch, played forward many times.

Each time, what runs and what waits gets a length that was seen on the pool's devices before, and no more than its wall
limit; and other tenants submit as much as they have used lately, in jobs as they had. That jobs fail and start again is
not known. Order and fit are those of `dispatch.lua`; a test compares the two. How good it is, says
`benchmarks/pools/start_estimates.py`.
"""

import heapq
import math
import random
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from jobs.scheduling.run_lengths import LengthCurve
from jobs.store.queue_facts import PastRun, QueueFacts, WaitingJob

RUNS = 25
#: Of the runs, which part starts the job earlier than the first, the second and the third time of an estimate. The
#: band is all of them: what is not known (who submits next, retries) makes it too narrow all the same.
EARLY, MIDDLE, LATE = 0.0, 0.5, 1.0
#: As in `shares.lua`: devices that a tenant has count as if it had them for so much longer; and how use decays.
AHEAD_SECONDS, HALF_LIFE_SECONDS = 60.0, 86_400.0
#: With fewer past attempts than these, only the wall limits say something.
MIN_PAST_RUNS = 5
#: Seconds between a lease and the first step, at least: no length is shorter.
SHORTEST_SECONDS = 1.0
#: Jobs that are known to wait, but were not looked at.
MAX_ALIKE = 128
#: Jobs that one playing expects to be submitted.
MAX_ARRIVALS = 256

Placement = Sequence[tuple[int, int]]  # nodes, with devices
Turn = tuple[int, float, int]  # priority, use for the weight, arrival: less goes first


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
    """When a queued job starts; None where nothing bounds it, or where it does not fit on the nodes as they are."""
    known = len(facts.past_runs)
    if known < MIN_PAST_RUNS:
        latest = PoolModel(facts, None, random.Random(0)).run_until(facts.ref)  # noqa: S311  (nothing is drawn)
        return None if latest is None else StartEstimate(0.0 if latest else latest, latest, latest, 0)
    lengths = LengthCurve((past.seconds for past in facts.past_runs), (lease.seconds for lease in facts.running))
    starts: list[float] = []
    for number in range(runs):
        chance = random.Random(number)  # noqa: S311  (no secret)
        model = PoolModel(facts, lengths, chance)
        model.expect(draw_arrivals(facts, chance))
        start = model.run_until(facts.ref)
        if start is None:
            return None
        starts.append(start)
    starts.sort()
    early, middle, late = (starts[min(len(starts) - 1, int(part * len(starts)))] for part in (EARLY, MIDDLE, LATE))
    return StartEstimate(early, middle, late, known)


class Arrival(NamedTuple):
    """A job that may be submitted in so many seconds."""

    seconds: float
    tenant: str
    of_class: JobClass


def draw_arrivals(facts: QueueFacts, chance: random.Random) -> list[Arrival]:
    """What other tenants may submit: as many device-seconds a second as they have used lately, in jobs as they had, or
    as all had."""
    largest = max((node.usable for node in facts.nodes), default=0)
    by_tenant: dict[str, list[PastRun]] = defaultdict(list)
    for past in facts.past_runs:
        by_tenant[past.tenant].append(past)
    streams = []
    for tenant, account in facts.accounts.items():
        runs = by_tenant[tenant] if len(by_tenant[tenant]) >= MIN_PAST_RUNS else facts.past_runs
        # Steady use of one device is an account of this many seconds.
        rate = account.used / (HALF_LIFE_SECONDS / math.log(2)) * len(facts.nodes) / max(1, facts.node_count)
        if tenant != facts.tenant and rate > 0 and largest:
            streams.append(_draw_stream(tenant, runs, rate, largest, chance))
    arrivals = heapq.merge(*streams)
    return [arrival for arrival, _ in zip(arrivals, range(MAX_ARRIVALS), strict=False)]


def _draw_stream(
    tenant: str, runs: Sequence[PastRun], rate: float, largest: int, chance: random.Random
) -> Iterator[Arrival]:
    every = sum(past.devices * past.seconds for past in runs) / len(runs) / rate
    now = 0.0
    while True:
        now += chance.expovariate(1 / every)
        devices = chance.choice(runs).devices
        nodes = -(-devices // largest)
        yield Arrival(now, tenant, JobClass(devices // nodes, nodes))


class PoolModel:
    """The jobs of a pool, of which each gets a length by chance. Without `lengths` each runs to its wall limit."""

    def __init__(self, facts: QueueFacts, lengths: LengthCurve | None, chance: random.Random) -> None:
        self._lengths = lengths
        self._chance = chance
        self._now = 0.0
        self._level = next((job.level for queue in facts.queues for job in queue.jobs if job.ref == facts.ref), 0)
        self._free = [node.free for node in facts.nodes]
        self._accounts = {name: [found.used, float(found.devices)] for name, found in facts.accounts.items()}
        self._weights = {name: found.weight for name, found in facts.accounts.items()}
        self._queues = _queue_by_class(facts)
        self._ends: list[tuple[float, int, str, Placement]] = []
        self._arrivals: list[Arrival] = []  # the next one last
        self._kept_for: tuple[JobClass, str] | None = None
        self._kept_nodes: frozenset[int] = frozenset()
        self.started: list[str] = []
        for number, lease in enumerate(facts.running):
            seconds = self._remaining(lease.seconds, lease.wall_seconds)
            if seconds is not None:
                self._ends.append((seconds, -number, lease.tenant, lease.placement))
        heapq.heapify(self._ends)

    def expect(self, arrivals: Sequence[Arrival]) -> None:
        """Jobs that will be submitted, in their order."""
        self._arrivals = list(reversed(arrivals))

    def run_until(self, ref: str) -> float | None:
        """The seconds until a job starts; None where it never does."""
        while True:
            self.dispatch()
            if ref in self.started:
                return self._now
            if not self._ends:
                return None
            if self._arrivals and self._arrivals[-1].seconds < self._ends[0][0]:
                self._add(self._arrivals.pop())
            else:
                self._end_next()

    def dispatch(self) -> None:
        """Start all that fits, in the order of the service."""
        room = max(self._free, default=0)
        fitting = set(self._queues)
        if not any(of_class.devices <= room for of_class in fitting):
            return  # as the service does, which looks at nothing then
        heads = [
            (self._turn((of_class, tenant)), of_class, tenant)
            for of_class in fitting
            for tenant in self._queues[of_class]
        ]
        heapq.heapify(heads)
        while heads and fitting:
            turn, of_class, tenant = heapq.heappop(heads)
            if of_class not in fitting:
                continue
            now = self._turn((of_class, tenant))
            if now != turn:  # its tenant got devices meanwhile
                heapq.heappush(heads, (now, of_class, tenant))
                continue
            placement = self._find_room(of_class, turn)
            if placement is None:
                self._keep_nodes(of_class, tenant)
                fitting.remove(of_class)
                continue
            self._start_first(of_class, tenant, placement)
            if tenant in self._queues.get(of_class, ()):
                heapq.heappush(heads, (self._turn((of_class, tenant)), of_class, tenant))

    def _start_first(self, of_class: JobClass, tenant: str, placement: Placement) -> None:
        if (of_class, tenant) == self._kept_for:
            self._kept_for = None
        queue = self._queues[of_class]
        self._start(tenant, heapq.heappop(queue[tenant])[-1], placement)
        if not queue[tenant]:
            del queue[tenant]
        if not queue:
            del self._queues[of_class]

    def _turn(self, head: tuple[JobClass, str]) -> Turn:
        of_class, tenant = head
        level, arrival, *_ = self._queues[of_class][tenant][0]
        used, devices = self._accounts[tenant]
        return level, (used + devices * AHEAD_SECONDS) / self._weights[tenant], arrival

    def _find_room(self, of_class: JobClass, turn: Turn) -> Placement | None:
        kept = self._kept_nodes if self._kept_for is not None and self._turn(self._kept_for) < turn else ()
        free = ((free, node) for node, free in enumerate(self._free) if free >= of_class.devices and node not in kept)
        fitting = sorted(free)
        if len(fitting) < of_class.nodes:
            return None
        return [(node, of_class.devices) for _, node in fitting[: of_class.nodes]]

    def _keep_nodes(self, of_class: JobClass, tenant: str) -> None:
        """Those with the most free devices, for a job that does not fit: what waits here has waited for long soon."""
        head = of_class, tenant
        if self._now > 0 and (self._kept_for is None or self._turn(head) < self._turn(self._kept_for)):
            largest = sorted(range(len(self._free)), key=lambda node: -self._free[node])
            self._kept_for, self._kept_nodes = head, frozenset(largest[: of_class.nodes])

    def _start(self, tenant: str, job: WaitingJob, placement: Placement) -> None:
        self.started.append(job.ref)
        self._hold(tenant, placement, 1)
        seconds = self._remaining(0.0, job.wall_seconds)
        if seconds is not None:
            heapq.heappush(self._ends, (self._now + seconds, len(self.started), tenant, placement))

    def _add(self, arrival: Arrival) -> None:
        """Of the priority of the job that is asked about."""
        self._pass_to(arrival.seconds)
        job = WaitingJob("", self._level, sys.maxsize - len(self._arrivals), None)
        queue = self._queues.setdefault(arrival.of_class, {}).setdefault(arrival.tenant, [])
        heapq.heappush(queue, (job.level, job.arrival, 0, job))

    def _end_next(self) -> None:
        end, _, tenant, placement = heapq.heappop(self._ends)
        self._pass_to(end)
        self._hold(tenant, placement, -1)

    def _pass_to(self, now: float) -> None:
        """What was used counts less with time; as that is the same part for all, only what is new is counted here."""
        for account in self._accounts.values():
            if account[1]:
                account[0] += account[1] * (now - self._now)
        self._now = now

    def _hold(self, tenant: str, placement: Placement, sign: int) -> None:
        for node, devices in placement:
            self._free[node] -= sign * devices
            self._accounts[tenant][1] += sign * devices

    def _remaining(self, seconds: float, wall: float | None) -> float | None:
        """How much longer something runs that has run for so long. None: nothing says."""
        limit = None if wall is None else max(SHORTEST_SECONDS, wall - seconds)
        if self._lengths is None:
            return limit
        chosen = max(SHORTEST_SECONDS, self._lengths.draw_after(seconds, self._chance) - seconds)
        return chosen if limit is None else min(chosen, limit)


#: Those that wait, by their turn within a tenant and class: a heap of (level, arrival, number, job).
WaitingHeap = list[tuple[int, int, int, WaitingJob]]


def _queue_by_class(facts: QueueFacts) -> dict[JobClass, dict[str, WaitingHeap]]:
    """All that waits, for the nodes that were looked at: of a pool with twice as many nodes, every second job."""
    step = max(1.0, facts.node_count / max(1, len(facts.nodes)))
    queues: dict[JobClass, dict[str, WaitingHeap]] = {}
    for queue in facts.queues:
        jobs = list(queue.jobs)
        if jobs and queue.count > len(jobs):  # the others are like the last one
            jobs += [replace(jobs[-1], ref="")] * min(MAX_ALIKE, queue.count - len(jobs))
        if step > 1:
            jobs = [job for n, job in enumerate(jobs) if int(n / step) != int((n - 1) / step) or job.ref == facts.ref]
        if jobs:
            heap = [(job.level, job.arrival, number, job) for number, job in enumerate(jobs)]
            queues.setdefault(JobClass(queue.devices, queue.nodes), {})[queue.tenant] = heap
    return queues
