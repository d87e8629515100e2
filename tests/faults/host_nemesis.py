"""Row 30 over hosts: cables, hosts, supervisors, ranks, workers and Redis fail by chance, while jobs of one to three
nodes are submitted, run and are cancelled. A program, which needs root:

    python -m tests.faults.host_nemesis --seed 7 --seconds 120 --jobs 30

It prints what it does and when, and the checker's verdict; the exit code is 0 if nothing is broken. The seed decides
what is done in which order; when exactly, the machine decides too.
"""

import argparse
import random
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from redis.exceptions import RedisError

from jobs import store
from jobs.model.state import TERMINAL, JobState, StateReason
from shardyard.contract.errors import ShardyardError
from tests.faults.inject import processes
from tests.faults.inject.processes import RANK, SUPERVISOR
from tests.faults.scene.checker import Evidence, essence, violations
from tests.faults.scene.host_service import HostService, service_over_hosts
from tests.integration.workers.service import TENANT, eventually

HOSTS = 3
LEASE = 20.0
#: An outage that a run bears, and one that costs it its lease.
SHORT, LONG = (0.5, 5.0), (LEASE * 1.2, LEASE * 1.5)
#: How long jobs may take to end when the faults have stopped, for each job and besides.
END_SECONDS, END_SECONDS_EACH = 150.0, 5.0
SETTLE_SECONDS = 60.0
HANDS = 2
#: What these faults may cost an attempt that is healthy.
LOSSES = frozenset(
    {
        StateReason.SUPERVISOR_LOST,
        StateReason.LEASE_EXPIRED,
        StateReason.NODE_LOST,
        StateReason.LINK_LOST,
        StateReason.START_FAILED,
    }
)


@dataclass
class HostWar:
    """One run: the service, and what has been done to it and asked of it so far. Each host is in one hand at a time."""

    hosts: HostService
    seed: int
    jobs: dict[str, str] = field(default_factory=dict)  # id -> kind
    done: Counter[str] = field(default_factory=Counter)
    began: float = field(default_factory=time.monotonic)
    over: threading.Event = field(default_factory=threading.Event)
    locks: Mapping[int, threading.Lock] = field(
        default_factory=lambda: {host: threading.Lock() for host in range(HOSTS + 1)}
    )

    def say(self, *words: object) -> None:
        print(f"{time.monotonic() - self.began:7.1f} s ", *words, flush=True)

    @contextmanager
    def alone_with(self, *hosts: int) -> Iterator[None]:
        """Nobody else does anything to these; 0 stands for Redis."""
        with ExitStack() as stack:
            for host in sorted(hosts):
                stack.enter_context(self.locks[host])
            yield


# -- what jobs there are -----------------------------------------------------------------------------


def _gang(nodes: int, strategy: str = "ddp", **options: Any) -> Callable[[HostService], Any]:
    chosen: dict[str, Any] = {"steps": 40, "seconds": 0.05, "rows": 4, "limits": {"max_retries": 5}} | options
    return lambda hosts: hosts.spec(strategy, 1, nodes=nodes, **chosen)


KINDS: dict[str, Callable[[HostService], Any]] = {
    "alone": _gang(1, "single"),
    "two": _gang(2),
    "three": _gang(3),
    "two-fsdp": _gang(2, "fsdp"),
    "two-saving": _gang(2, steps=60, checkpoint={"every_steps": 10}),
    "three-saving": _gang(3, steps=60, checkpoint={"every_steps": 10}),
}


def submit(hosts: HostService, kind: str) -> str:
    chosen = KINDS[kind](hosts).model_copy(update={"name": kind})
    return hosts.run(store.submit(TENANT, uuid.uuid4().hex, chosen)).job


def _essence(hosts: HostService, job: str) -> Any:
    found = hosts.run(store.snapshot(TENANT, job))
    assert found is not None
    return essence(hosts.files(job, hosts.job(job).attempt), found.job)


# -- what is done to them ----------------------------------------------------------------------------


def _processes(war: HostWar, host: int, prefix: str) -> list[psutil.Process]:
    found = []
    for process in war.hosts.hosts.processes(host):
        with suppress(psutil.NoSuchProcess):
            if process.name().startswith(prefix):
                found.append(process)
    return found


def _kill_one(war: HostWar, chance: random.Random, prefix: str) -> str:
    host = chance.randint(1, HOSTS)
    with war.alone_with(host):
        found = _processes(war, host, prefix)
        if not found:
            return ""
        victim = chance.choice(found)
        name = victim.name()
        processes.kill(victim.pid)
        return f"{victim.pid} ({name}) of host {host}"


def _kill_supervisor(war: HostWar, chance: random.Random) -> str:
    return _kill_one(war, chance, SUPERVISOR)


def _kill_rank(war: HostWar, chance: random.Random) -> str:
    return _kill_one(war, chance, RANK)


def _seconds(chance: random.Random) -> float:
    return chance.uniform(*(LONG if chance.random() < 0.25 else SHORT))


def _cut(war: HostWar, chance: random.Random) -> str:
    host, seconds = chance.randint(1, HOSTS), _seconds(chance)
    with war.alone_with(host), war.hosts.hosts.without(host):
        war.over.wait(seconds)
    return f"of host {host} for {seconds:.1f} s"


def _cut_between(war: HostWar, chance: random.Random) -> str:
    one, other = chance.sample(range(1, HOSTS + 1), 2)
    seconds = chance.uniform(1.0, 15.0)
    with war.alone_with(one, other), war.hosts.hosts.cut_between(one, other):
        war.over.wait(seconds)
    return f"hosts {one} and {other} for {seconds:.1f} s"


def _freeze(war: HostWar, chance: random.Random) -> str:
    host, seconds = chance.randint(1, HOSTS), _seconds(chance)
    with war.alone_with(host), war.hosts.frozen(war.hosts.nodes[host - 1]):
        war.over.wait(seconds)
    return f"host {host} for {seconds:.1f} s"


def _kill_worker(war: HostWar, chance: random.Random) -> str:
    host = chance.randint(1, HOSTS)
    with war.alone_with(host):
        worker = war.hosts.workers[war.hosts.nodes[host - 1]]
        worker.kill()
        worker.wait(10)
        war.over.wait(chance.uniform(0, 3))
        war.hosts.start_workers()
    return f"of host {host}, and start another"


def _kill_redis(war: HostWar, chance: random.Random) -> str:
    seconds = chance.uniform(*SHORT)
    with war.alone_with(0):
        war.hosts.server.kill()
        war.over.wait(seconds)
        war.hosts.server.start()
    return f"for {seconds:.1f} s"


def _cancel(war: HostWar, chance: random.Random) -> str:
    going = sorted(job for job in list(war.jobs) if war.hosts.job(job).state not in TERMINAL)
    if not going:
        return ""
    job = chance.choice(going)
    with suppress(ShardyardError, AssertionError):  # it may end by itself meanwhile
        war.hosts.cancel(job)
    return job


def _repeat_hints(war: HostWar, chance: random.Random) -> str:
    if not war.jobs:
        return ""
    job = chance.choice(sorted(war.jobs))
    attempt = war.hosts.attempt(job, max(1, war.hosts.job(job).attempt))
    for node in war.hosts.nodes:
        war.hosts.send(store.Hint(node, attempt))
    return f"of {job} to all nodes"


#: What is done, and how often it is chosen. Each says what it did, "" for nothing.
DEEDS: dict[str, tuple[int, Callable[[HostWar, random.Random], str]]] = {
    "pull the cable": (4, _cut),
    "cut between": (2, _cut_between),
    "freeze": (2, _freeze),
    "kill a supervisor": (3, _kill_supervisor),
    "kill a rank": (2, _kill_rank),
    "kill the worker": (2, _kill_worker),
    "kill Redis": (1, _kill_redis),
    "cancel": (1, _cancel),
    "repeat hints": (1, _repeat_hints),
}


def _hand(war: HostWar, number: int) -> None:
    chance = random.Random(f"{war.seed} {number}")
    while not war.over.is_set():
        (name,) = chance.choices(list(DEEDS), [weight for weight, _ in DEEDS.values()])
        try:
            did = DEEDS[name][1](war, chance)
        except (ShardyardError, psutil.Error, OSError, RedisError) as error:
            did = f"(in vain: {type(error).__name__})"
        if did:
            war.done[name] += 1
            war.say(name, did)
        war.over.wait(chance.uniform(0.5, 3.0))


# -- the war -----------------------------------------------------------------------------------------


def wage(hosts: HostService, seed: int, seconds: float, jobs: int) -> list[str]:
    """Submit `jobs` jobs over `seconds` seconds of faults; what is broken when all have ended."""
    war = HostWar(hosts, seed)
    baselines = {}
    for kind in KINDS:
        job = submit(hosts, kind)
        hosts.dispatch_jobs()
        assert hosts.ended(job, 120).state is JobState.SUCCEEDED, hosts.job(job)
        baselines[kind] = _essence(hosts, job)
    war.say(f"undisturbed runs of {', '.join(KINDS)} are over; the war begins")
    war.began = time.monotonic()
    with ThreadPoolExecutor(HANDS) as pool:
        hands = [pool.submit(_hand, war, number) for number in range(HANDS)]
        try:
            _submit(war, seconds, jobs)
        finally:
            war.over.set()
    for hand in hands:
        hand.result()  # a hand that has failed did less than it should have: no verdict then
    war.say("peace:", ", ".join(f"{name} {times}" for name, times in sorted(war.done.items())))
    _await_ends(war)
    war.say("all ended:", dict(Counter(str(hosts.job(job).state) for job in war.jobs)))
    return _verdict(war, baselines)


def _submit(war: HostWar, seconds: float, jobs: int) -> None:
    chance = random.Random(war.seed)
    for number in range(jobs):
        kind = chance.choice(sorted(KINDS))
        while True:
            with suppress(ShardyardError, RedisError):  # Redis may be away; what was not accepted is no job
                war.jobs[submit(war.hosts, kind)] = kind
                break
            war.over.wait(0.2)
        due = war.began + seconds * (number + 1) / jobs
        war.over.wait(max(0.0, due - time.monotonic()))


def _await_ends(war: HostWar) -> None:
    """What a deed has hit may die of it a little later."""
    deadline = time.monotonic() + END_SECONDS + END_SECONDS_EACH * len(war.jobs)
    while left := [job for job in war.jobs if war.hosts.job(job).state not in TERMINAL]:
        war.hosts.start_workers()
        war.hosts.dispatch_jobs()
        assert time.monotonic() < deadline, f"they do not end: {[war.hosts.job(job) for job in left]}"
        time.sleep(1)


def _verdict(war: HostWar, baselines: Mapping[str, Any]) -> list[str]:
    hosts, found = war.hosts, list[str]()
    evidence = Evidence(
        client=hosts.store.client,
        redis_directory=hosts.directory / "redis",
        storage=hosts.settings.storage,
        state_dir=hosts.settings.state_dir,
        acked=tuple(war.jobs),
        losses=LOSSES,
        baselines=baselines,
    )

    def look() -> bool:
        found[:] = violations(evidence)
        return not found

    with suppress(AssertionError):
        eventually(look, "no violation", SETTLE_SECONDS)
    return found + [words for job in war.jobs for words in _unexplained(war, job)]


def _unexplained(war: HostWar, job: str) -> list[str]:
    """What no deed explains of how a job ended."""
    record = war.hosts.job(job)
    killed = record.reason is StateReason.RANK_FAILED and "SIGKILL" in str(record.error)
    explained = record.state in (JobState.SUCCEEDED, JobState.CANCELLED) or killed or record.reason in LOSSES
    why = [f"{one.number}: {one.reason} ({one.message})" for one in war.hosts.attempts(job)]
    return [] if explained else [f"job {job} ({war.jobs[job]}) is {record.state}: {record.reason}; {why}"]


def main() -> int:
    parser = argparse.ArgumentParser(description="Faults of hosts by chance, and the checker's verdict")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--jobs", type=int, default=30)
    chosen = parser.parse_args()
    print(f"seed {chosen.seed}, {chosen.seconds:g} s, {chosen.jobs} jobs", flush=True)
    directory = Path(tempfile.mkdtemp(prefix="host-nemesis-"))
    with service_over_hosts(directory, HOSTS, lease_seconds=LEASE) as hosts:
        broken = wage(hosts, chosen.seed, chosen.seconds, chosen.jobs)
    for words in broken:
        print("BROKEN", words)
    print(f"seed {chosen.seed}: {len(broken)} broken; files are in {directory}" if broken else "all invariants hold")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
