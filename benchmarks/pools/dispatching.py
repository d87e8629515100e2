"""What one decision of the scheduler takes, and what a fleet that rests costs the control Redis.

Decisions: 1,000 simulated nodes of 8 devices in four pools, all busy, and 1,000, 10,000 and 100,000 queued jobs of 1,
2, 4 and 8 devices and five priorities, all of them made by the product's own calls on a server with the product's
configuration (every write is synced before it is answered). A round ends attempts and gives their devices back, and
measures the calls of `store.dispatch` that follow, from a Python client on the same machine:

    one          an attempt was released; the call that starts what fits there
    of many      many attempts were released; calls that start up to 32 jobs each, divided by the jobs that they started
    nothing      nothing is free; the call that finds that

Tenants: a fleet of its own, in which the same jobs are spread evenly over 50 tenants.

Gangs: fleets of their own, in which every job wants 1, 2, 8 or 64 nodes with 8 devices each. Attempts end, and the
calls that follow are measured, for each job that they start.

Against the least that Redis could do for one job: ZPOPMIN of a plain queue of the same length and HSET of who has it,
as one transaction. It knows no devices, no sizes, no pools and no nodes, keeps no order between retries, and nothing
would find the job again if its worker died.

Heartbeats: the product's own objects on connections of their own, at the product's own intervals: one `JobScheduler`
and one beating node each, two API processes' schedulers, and one `LeaseHolder` for an attempt that runs on every node,
while jobs wait. Against a beat that is HSET and EXPIRE in one pipeline, as often, from as many connections: it has no
fence against two owners, nobody who reaps, re-sends and dispatches, it takes an outage of Redis for the death of
everybody, and it can neither cancel nor drain. The load is made in this process, which is not measured.
"""

import heapq
import json
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import redis
from pydantic import SecretStr

from benchmarks.harness.comparing import Figure, Goal, Say, Scale, at_most
from benchmarks.harness.machine import thread_cpu_seconds
from benchmarks.harness.servers import redis_server
from jobs import store
from jobs.model.records import DeviceRecord, NodeInfo
from jobs.model.settings import Settings
from jobs.model.spec import JobSpec, Resources
from jobs.model.spec_rules import parse_spec
from jobs.model.state import StateReason
from jobs.scheduling.hints import MemoryHintSender
from jobs.scheduling.scheduler import JobScheduler
from jobs.store.client import RedisStore
from workers.supervisor.lease import SUBSCRIBE_AFTER_SECONDS, LeaseHolder

T = TypeVar("T")
TITLE = "decisions of the scheduler, and the heartbeats of a fleet"

TENANT = "default"
POOLS = ("a", "b", "c", "d")
SIZES = (1, 2, 4, 8)
GANGS = (1, 2, 8, 64)
TENANTS = (1, 50)
PRIORITIES = (-50, 0, 0, 10, 50)
DEVICES = 8
PIPELINED = 500
CLAIMANT = "bench"
ONE_BY_ONE = 100
MANY = 96
END_SECONDS = 10.0
#: A load that is later than this is not the one that was meant.
LATE_SECONDS = 1.0
OURS, BARE = "shardyard", "bare Redis"
GANG, FEW_NODES = "nodes of a job", 2


def run(scale: Scale, say: Say) -> list[Figure]:
    rounds = scale.rounds_of(3, 2)
    nodes, few = scale.pick((1_000, (10, 100)), (100, ()))
    queued = scale.pick((1_000, 10_000, 100_000), (300, 1_000, 3_000))
    figures = []
    with _cluster() as cluster:
        cluster.add_nodes(nodes)
        for length in queued:
            times = _decide(cluster, length, rounds)
            figures += _decisions(times, length, "queued jobs")
            if length == queued[1]:
                by_nodes = {nodes: times}
            say(f"{nodes} nodes, {length} queued")
    with _cluster() as cluster:
        for number in few:
            cluster.add_nodes(number)
            by_nodes[number] = _decide(cluster, queued[1], rounds)
            say(f"{number} nodes, {queued[1]} queued")
    for number, times in sorted(by_nodes.items()):
        figures += _decisions(times, number, "nodes")
    for tenants in TENANTS:
        with _cluster(tenants=tenants) as cluster:
            cluster.add_nodes(nodes)
            figures += _decisions(_decide(cluster, queued[-1], rounds), tenants, "tenants")
        say(f"{nodes} nodes, {queued[-1]} queued by {tenants} tenants")
    for gang in scale.pick(GANGS, GANGS[:2]):
        with _cluster(gang) as cluster:
            cluster.add_nodes(nodes)
            figures += _decisions(_decide(cluster, queued[-1], rounds), gang, GANG)
        say(f"{nodes} nodes, {queued[-1]} queued, each on {gang}")
    for number in scale.pick((10, 100, 1_000), (20,)):
        figures.append(_heartbeats(number, scale.rounds_of(3, 2), scale.pick(2.0, 1.0)))
        say(f"heartbeats of {number} nodes")
    return figures


# -- decisions -----------------------------------------------------------------------------------------


class Cluster:
    """Simulated nodes, and jobs that nobody runs, in a control store; `gang`: how many nodes each of them wants, of 8
    devices, or None; `tenants`: whose jobs they are, in turn."""

    def __init__(self, url: str, gang: int | None = None, tenants: int = 1) -> None:
        self.control = RedisStore.from_url(url)
        self.nodes = 0
        self.running: dict[store.AttemptId, list[str]] = {}  # the nodes of each
        self._ids = count(1)
        self._dispatch = store.dispatch(Settings().hold_seconds, 60.0)
        self.hints: list[store.Hint] = []
        self._random = random.Random(7)
        program = {"mode": "forward", "model": {"ref": "linear"}, "data": {"ref": "random_vectors"}}
        self.submits = [
            store.submit(tenant, "", _parse(program, size, pool, priority, gang or 1))
            for tenant in (TENANT, *(f"tenant-{number}" for number in range(1, tenants)))
            for size in (SIZES if gang is None else (DEVICES,))
            for pool in POOLS
            for priority in PRIORITIES
        ]

    def add_nodes(self, wanted: int) -> None:
        """Until there are so many, the same in each pool."""
        info = node_info()
        names = [(f"n{number:04d}", POOLS[number % len(POOLS)]) for number in range(self.nodes, wanted)]
        register = partial(store.register_node, address="127.0.0.1", info=info, reach="network")
        self.all([register(name, name, pool, home=name) for name, pool in names])
        self.nodes = wanted

    def fill(self, queued: int) -> None:
        """Until every device is busy and so many jobs wait."""
        while missing := queued - sum(self.control.run(store.read_fleet()).queued.values()):
            chosen = self._random.choices(self.submits, k=missing)
            self.all([with_id(call, next(self._ids)) for call in chosen])
            while self.dispatch():
                self.claim_dispatched()

    def dispatch(self) -> int:
        """How many jobs one call started."""
        dispatched = self.control.run(self._dispatch)
        self.hints += dispatched.hints
        return len(dispatched.created)

    def claim_dispatched(self) -> None:
        """Claim what was dispatched, as supervisors do."""
        hints, self.hints = self.hints, []
        self.all([store.claim(hint.attempt, CLAIMANT, hint.node) for hint in hints])
        for hint in hints:
            self.running.setdefault(hint.attempt, []).append(hint.node)

    def end(self, number: int) -> None:
        """Some attempts succeed, and give their devices back."""
        chosen = self._random.sample(list(self.running), min(number, len(self.running)))
        ended = {attempt: self.running.pop(attempt) for attempt in chosen}
        self.all([store.finish(attempt, CLAIMANT, StateReason.COMPLETED, "done") for attempt in ended])
        self.all([store.release(node, attempt, {}) for attempt, nodes in ended.items() for node in nodes])

    def all(self, calls: Sequence[store.Call[T]]) -> list[T]:
        """Many calls, in pipelines."""
        found: list[T] = []
        for begin in range(0, len(calls), PIPELINED):
            part = calls[begin : begin + PIPELINED]
            with self.control.client.pipeline(transaction=False) as pipe:
                for call in part:
                    pipe.execute_command(*call.command)  # type: ignore[no-untyped-call]
                found += [call.decode(reply) for call, reply in zip(part, pipe.execute(), strict=True)]
        return found


@contextmanager
def _cluster(gang: int | None = None, tenants: int = 1) -> Iterator[Cluster]:
    with redis_server("control") as server:
        cluster = Cluster(server.url, gang, tenants)
        try:
            yield cluster
        finally:
            cluster.control.close()


def _parse(program: dict[str, Any], devices: int, pool: str, priority: int, nodes: int) -> JobSpec:
    fields = {
        "pool": pool,
        "priority": priority,
        "resources": {"devices": devices},
        "parallelism": {"strategy": "dp" if devices > 1 else "single"},
        "program": program,
    }
    chosen = parse_spec(json.dumps(fields))
    return chosen.model_copy(update={"resources": Resources(devices=devices, nodes=nodes)})


def with_id(call: store.Call[store.SubmitReply], number: int) -> store.Call[store.SubmitReply]:
    """The submit of another job: a spec is parsed and packed once for all that have it."""
    *function, tenant, _ = call.command[:5]
    return replace(call, command=(*function, tenant, f"{number:032x}", *call.command[5:]))


def node_info() -> NodeInfo:
    records = (
        DeviceRecord(index=i, kind="cuda", ordinal=i, id=f"GPU-{i:032x}", name="simulated") for i in range(DEVICES)
    )
    return NodeInfo(host="host", cores=64, version="0", devices=tuple(records))


Times = dict[str, list[list[float]]]  # what was measured -> seconds of each decision, for each round


def _decide(cluster: Cluster, queued: int, rounds: int) -> Times:
    cluster.fill(queued)
    _fill_plain(cluster.control.client, queued)
    times: Times = {"one": [], "of many": [], "nothing": [], BARE: []}
    for number in range(rounds + 1):
        found = {
            "one": _one_by_one(cluster),
            BARE: _plain(cluster.control.client),
            "of many": _of_many(cluster),
            "nothing": [_timed(cluster.dispatch)[1] for _ in range(ONE_BY_ONE)],
        }
        cluster.fill(queued)
        if number:  # the first one warms up
            for name, seconds in found.items():
                times[name].append(seconds)
    return times


def _one_by_one(cluster: Cluster) -> list[float]:
    seconds: list[float] = []
    while len(seconds) < ONE_BY_ONE:
        cluster.end(1)
        started, passed = _timed(cluster.dispatch)
        if started:
            seconds.append(passed / started)
            cluster.claim_dispatched()
    return seconds


def _of_many(cluster: Cluster) -> list[float]:
    seconds: list[float] = []
    cluster.end(MANY)
    while True:
        started, passed = _timed(cluster.dispatch)
        if not started:
            return seconds
        seconds.append(passed / started)
        cluster.claim_dispatched()


def _timed(what: Callable[[], T]) -> tuple[T, float]:
    began = time.perf_counter()
    found = what()
    return found, time.perf_counter() - began


def _fill_plain(client: "redis.Redis", queued: int) -> None:
    client.delete("plain")
    for begin in range(0, queued, 10_000):
        client.zadd("plain", {f"{number:032x}": number for number in range(begin, min(begin + 10_000, queued))})


def _plain(client: "redis.Redis") -> list[float]:
    def pop() -> None:
        with client.pipeline(transaction=True) as pipe:
            pipe.zpopmin("plain")
            pipe.hset("plain:taken", "by", CLAIMANT)
            ((job, score),), _ = pipe.execute()
        taken.append((job, score))

    taken: list[tuple[bytes, float]] = []
    seconds = [_timed(pop)[1] for _ in range(ONE_BY_ONE)]
    client.zadd("plain", dict(taken))
    return seconds


def _decisions(times: Times, size: int, size_of: str) -> list[Figure]:
    figures = []
    for name, goals in (("one", [at_most(2e-3)]), ("of many", [at_most(2e-3)]), ("nothing", [at_most(2e-3)])):
        for which, at, wanted in (("p50", 0.5, []), ("p99", 0.99, goals)):
            found = [_quantile(seconds, at) for seconds in times[name]]
            if size_of == GANG and size > FEW_NODES:
                wanted = []  # it grows with what is leased
            samples = {OURS: found, BARE: [_quantile(seconds, at) for seconds in times[BARE]]}
            figures.append(_figure(f"a decision by {size_of}: {name}, {which}", samples, wanted, size, size_of))
    return figures


def _figure(name: str, samples: dict[str, list[float]], goals: Sequence[Goal], size: int, size_of: str) -> Figure:
    return Figure(name, "s", samples, goals, size=size, size_of=size_of)


def _quantile(values: Sequence[float], at: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(at * len(ordered)))]


# -- heartbeats ----------------------------------------------------------------------------------------


def _heartbeats(nodes: int, rounds: int, seconds: float) -> Figure:
    """Both sides beat at the same time, each on a server of its own, which is charged with its own time only."""
    samples: dict[str, list[float]] = {OURS: [], BARE: []}
    with ExitStack() as stack:
        ours, bare = (stack.enter_context(redis_server("control")) for _ in range(2))
        beats = [stack.enter_context(_fleet(ours.url, nodes)), stack.enter_context(_plain_beats(bare.url, nodes))]
        time.sleep(SUBSCRIBE_AFTER_SECONDS + 2.0)  # attempts that just began ask more often
        for _ in range(rounds):
            for beat in beats:
                beat.latest = 0.0
            before = thread_cpu_seconds(ours.pid), thread_cpu_seconds(bare.pid)
            began = time.monotonic()
            time.sleep(seconds)
            passed = time.monotonic() - began
            for beat in beats:
                beat.check()
            samples[OURS].append((thread_cpu_seconds(ours.pid) - before[0]) / passed)
            samples[BARE].append((thread_cpu_seconds(bare.pid) - before[1]) / passed)
    goals = [at_most(0.1)] if nodes == 1_000 else []
    return Figure("heartbeats: share of one core that Redis takes", "", samples, goals, size=nodes, size_of="nodes")


class Beats:
    """Calls functions, each every so many seconds, evenly spread, from one thread. One that returns seconds is called
    again after so many. `latest` is how many seconds late one has been since that was last set."""

    def __init__(self, every: Sequence[tuple[float, Sequence[Callable[[], object]]]]) -> None:
        self.latest = 0.0
        now = time.monotonic()
        order = count()
        self._due = [
            (now + seconds * number / len(functions), next(order), seconds, function)
            for seconds, functions in every
            for number, function in enumerate(functions)
        ]
        heapq.heapify(self._due)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            due, order, seconds, function = heapq.heappop(self._due)
            if self._stop.wait(max(0.0, due - time.monotonic())):
                return
            self.latest = max(self.latest, time.monotonic() - due)
            again = function()
            heapq.heappush(
                self._due, (due + (again if isinstance(again, float) else seconds), order, seconds, function)
            )

    def check(self) -> None:
        """Raises:
        RuntimeError: the machine is too slow for the load.
        """
        if self.latest > LATE_SECONDS:
            raise RuntimeError(f"the load fell behind: a beat was {self.latest:.1f} s late")

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(END_SECONDS)


@contextmanager
def _fleet(url: str, nodes: int) -> Iterator[Beats]:
    """Nodes that all run one attempt on all of their devices, while as many jobs wait; two API processes."""
    settings = Settings(redis_url=SecretStr(url))
    cluster = Cluster(url)
    cluster.add_nodes(nodes)
    whole = [call for call in cluster.submits if call.command[6] == DEVICES]
    cluster.all([with_id(whole[number % len(whole)], number) for number in range(2 * nodes)])
    while cluster.dispatch():
        pass
    stores = [RedisStore.from_url(url) for _ in range(2 * nodes + 2)]
    lifelines = [
        LeaseHolder(control, hint.attempt, hint.node, settings.beat_seconds)
        for control, hint in zip(stores, cluster.hints, strict=False)
    ]
    for lifeline in lifelines:
        lifeline.claim()
        time.sleep(settings.beat_seconds / len(lifelines) / 4)  # spread, as jobs that began at different times are
    schedulers = [
        JobScheduler(control, MemoryHintSender(), settings, listen=False) for control in stores[nodes : 2 * nodes]
    ]
    listening = [JobScheduler(control, MemoryHintSender(), settings, listen=True) for control in stores[2 * nodes :]]
    names = [f"n{number:04d}" for number in range(nodes)]
    node_beats = [
        partial(control.run, store.renew_node(name, name))
        for control, name in zip(stores[nodes : 2 * nodes], names, strict=True)
    ]
    for scheduler in listening:
        scheduler.start()
    beats = Beats(
        [
            (settings.beat_seconds, node_beats),
            (settings.reconcile_seconds, [scheduler.tick for scheduler in schedulers]),
        ]
    )
    try:
        yield beats
    finally:
        beats.stop()
        with ThreadPoolExecutor() as pool:
            list(pool.map(JobScheduler.stop, listening))  # each waits for what it listens to
        with tempfile.TemporaryDirectory() as directory:
            for lifeline in lifelines:
                lifeline.finish(StateReason.COMPLETED, "done", None, None, 0.0, pending_file=Path(directory, "end"))
        for control in (cluster.control, *stores):
            control.close()


@contextmanager
def _plain_beats(url: str, nodes: int) -> Iterator[Beats]:
    """As many clients as there are nodes and attempts, each with a key that expires."""
    seconds = Settings().beat_seconds
    clients = [redis.Redis.from_url(url) for _ in range(2 * nodes)]

    def beat(client: "redis.Redis", key: str) -> None:
        with client.pipeline(transaction=False) as pipe:
            pipe.hset(key, "beat", int(time.time()))
            pipe.expire(key, int(6 * seconds))
            pipe.execute()

    beats = Beats([(seconds, [partial(beat, client, f"beat:{number}") for number, client in enumerate(clients)])])
    try:
        yield beats
    finally:
        beats.stop()
        for client in clients:
            client.close()
