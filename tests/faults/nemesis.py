"""Row 30: all faults mixed by chance, while jobs are submitted, run, fail and are cancelled, and a webhook whose
receiver refuses some requests is told of all their states. A program:

    python -m tests.faults.nemesis --seed 7 --seconds 120 --jobs 200

It prints what it does and when, and the checker's verdict; the exit code is 0 if nothing is broken. The seed decides
what is done in which order; when exactly, the machine decides too.
"""

import argparse
import random
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
from redis.exceptions import RedisError

from jobs import store
from jobs.model.state import TERMINAL, JobState, StateReason
from shardyard.contract.errors import Unavailable
from tests.faults.inject import processes
from tests.faults.inject.proxy import Act, Rule
from tests.faults.scene.checker import violations
from tests.faults.scene.journal import read_past
from tests.faults.scene.site import Site, running_site
from tests.faults.scene.webhook_listener import WebhookListener, follow_jobs, untold, webhook_listener
from tests.integration.workers.service import eventually

LEASE = 30.0
#: The longest that anything but a frozen supervisor is away: far less than three quarters of the lease.
OUTAGE_SECONDS = 5.0
#: How long jobs may take to end when the faults have stopped, for each job and besides.
END_SECONDS, END_SECONDS_EACH = 120.0, 2.0
SETTLE_SECONDS = 40.0
#: Until webhooks have arrived: one that the receiver refused a few times waits a minute, and more after a kill.
TOLD_SECONDS = 240.0
HANDS = 2
#: Where a site may send webhooks: this machine.
RECEIVERS = "127.0.0.0/8"
#: How long a deed waits for an attempt that it could be done to, and then for it to get somewhere.
VICTIM_SECONDS, VICTIM_AGE_SECONDS = 6.0, 0.3
COMMANDS = (
    "submit",
    "dispatch",
    "claim",
    "record_milestone",
    "renew_lease",
    "read_command",
    "finish",
    "release",
    "renew_node",
    "reap",
    "commit_checkpoint",
    "record_resume",
)

LINES = 300
PRINTS_LINES = f"""
import time
for number in range({LINES}):
    print("line", number, flush=True)
    time.sleep(0.005)
"""


@dataclass
class War:
    """One run: the service, and what has been done to it and asked of it so far."""

    site: Site
    seed: int
    losses: set[StateReason] = field(default_factory=set)
    jobs: dict[str, str] = field(default_factory=dict)  # id -> kind
    done: Counter[str] = field(default_factory=Counter)
    began: float = field(default_factory=time.monotonic)
    over: threading.Event = field(default_factory=threading.Event)
    locks: Mapping[str, threading.Lock] = field(
        default_factory=lambda: {part: threading.Lock() for part in sorted({deed.part for deed in DEEDS})}
    )

    def say(self, *words: object) -> None:
        print(f"{time.monotonic() - self.began:7.1f} s ", *words, flush=True)

    def pause(self, seconds: float) -> None:
        threading.Event().wait(seconds)


# -- what jobs there are -----------------------------------------------------------------------------


def _recipe(strategy: str, devices: int, **options: Any) -> Callable[[Site, str], str]:
    def submit(site: Site, key: str) -> str:
        return site.post(strategy, devices, key=key, **options)

    return submit


KINDS: dict[str, Callable[[Site, str], str]] = {
    "single": _recipe("single", 1, steps=60, seconds=0.03, talks=True, name="single"),
    "dp": _recipe("dp", 3, steps=20, seconds=0.05, name="dp"),
    "ddp": _recipe("ddp", 2, steps=40, seconds=0.05, talks=True, name="ddp"),
    "saving": _recipe("single", 1, steps=60, seconds=0.05, every=10, talks=True, name="saving"),
    "saving-ddp": _recipe("ddp", 2, steps=40, seconds=0.05, every=8, name="saving-ddp"),
    "script": lambda site, key: site.post_script(PRINTS_LINES, name="script", key=key),
    "failing": _recipe("single", 1, steps=3, fault="raise_error", limits={"max_retries": 1}, name="failing"),
}
#: What a kind ends as when nothing is done to it.
ENDS = dict.fromkeys(KINDS, JobState.SUCCEEDED) | {"failing": JobState.FAILED}


# -- what is done to them ----------------------------------------------------------------------------


def _supervisors(war: War) -> list[tuple[str, int]]:
    """Attempt and process of every living supervisor, as soon as there is one; none if none comes soon."""
    deadline = time.monotonic() + VICTIM_SECONDS
    while not (found := processes.supervisors(war.site.state_dir)) and time.monotonic() < deadline:
        if war.over.wait(0.02):
            break
    war.pause(VICTIM_AGE_SECONDS)  # so that it has ranks, now and then
    return sorted(processes.supervisors(war.site.state_dir).items()) or sorted(found.items())


def _kill_supervisor(war: War, chance: random.Random) -> str:
    found = _supervisors(war)
    if not found:
        return ""
    attempt, pid = chance.choice(found)
    war.losses.add(StateReason.SUPERVISOR_LOST)
    processes.kill(pid)
    return f"of {attempt}"


def _kill_rank(war: War, chance: random.Random) -> str:
    found = _supervisors(war)
    ranks = [(attempt, rank, pid) for attempt, its in found for rank, pid in _ranks(its)]
    if not ranks:
        return ""
    attempt, rank, pid = chance.choice(ranks)
    processes.kill(pid)
    return f"{rank} of {attempt}"


def _ranks(supervisor: int) -> list[tuple[int, int]]:
    try:
        return sorted(processes.ranks_of(supervisor).items())
    except psutil.NoSuchProcess:
        return []


def _freeze_supervisor(war: War, chance: random.Random) -> str:
    found = _supervisors(war)
    if not found:
        return ""
    attempt, pid = chance.choice(found)
    beyond = chance.random() < 0.2
    seconds = LEASE * 1.3 if beyond else chance.uniform(1, LEASE / 2)
    if beyond:
        war.losses |= {StateReason.LEASE_EXPIRED, StateReason.NODE_LOST}  # the latter while the worker is away too
    try:
        with processes.frozen(pid):
            war.over.wait(seconds)
    except ProcessLookupError:
        return ""
    return f"of {attempt} for {seconds:.1f} s"


def _kill_worker(war: War, chance: random.Random) -> str:
    war.site.kill_worker()
    return _worker_again(war, chance)


def _stop_worker(war: War, chance: random.Random) -> str:
    war.site.stop_worker(60)
    return _worker_again(war, chance)


def _worker_again(war: War, chance: random.Random) -> str:
    seconds = chance.uniform(0, 3)
    war.pause(seconds)
    war.site.spawn_worker()
    war.pause(8)  # it imports torch
    return f"and start another after {seconds:.1f} s"


def _kill_forkserver(war: War, _: random.Random) -> str:
    assert war.site.worker is not None
    try:
        pid = processes.forkserver(war.site.worker.pid)
    except (ValueError, psutil.NoSuchProcess):
        return ""
    war.losses |= {StateReason.START_FAILED}
    return str(pid) if processes.kill(pid) else ""


def _harm_spare(war: War, chance: random.Random) -> str:
    """Kill the next supervisor, or have it sleep through its hand-over."""
    assert war.site.worker is not None
    seconds = chance.choice((0.0, chance.uniform(1, LEASE)))
    try:
        pid = processes.spare(war.site.worker.pid)
        if not seconds:
            return str(pid) if processes.kill(pid) else ""
        with processes.frozen(pid):
            war.over.wait(seconds)
    except (ValueError, ProcessLookupError, psutil.NoSuchProcess):
        return ""
    return f"{pid}, which sleeps for {seconds:.1f} s"


def _kill_api(war: War, chance: random.Random) -> str:
    return _end_api(war, chance, signal.SIGKILL)


def _stop_api(war: War, chance: random.Random) -> str:
    return _end_api(war, chance, signal.SIGTERM)


def _end_api(war: War, chance: random.Random, number: signal.Signals) -> str:
    war.site.api.end(number)
    seconds = chance.uniform(0, 2)
    war.pause(seconds)
    war.site.api.start()
    return f"and start it after {seconds:.1f} s"


def _kill_redis(war: War, chance: random.Random) -> str:
    seconds = chance.uniform(0.1, OUTAGE_SECONDS)
    war.site.server.kill()
    war.pause(seconds)
    war.site.server.start()
    return f"for {seconds:.1f} s"


def _freeze_redis(war: War, chance: random.Random) -> str:
    seconds = chance.uniform(0.1, OUTAGE_SECONDS)
    with processes.frozen(war.site.server.pid):
        war.pause(seconds)
    return f"for {seconds:.1f} s"


def _fill_redis(war: War, chance: random.Random) -> str:
    seconds = chance.uniform(0.5, OUTAGE_SECONDS)
    with war.site.server.client() as control:
        control.config_set("maxmemory", "1mb")
        war.pause(seconds)
        control.config_set("maxmemory", "0")
    return f"for {seconds:.1f} s"


def _kill_telemetry(war: War, chance: random.Random) -> str:
    seconds = chance.uniform(0.1, OUTAGE_SECONDS)
    war.site.telemetry.kill()
    war.pause(seconds)
    war.site.telemetry.start()
    return f"for {seconds:.1f} s"


def _drain(war: War, chance: random.Random) -> str:
    """Send what runs to other nodes, of which there is none: it goes on here, when the node takes work again."""
    war.losses.add(StateReason.DRAINED)
    path, deadline = f"/v1/nodes/{war.site.settings.node}/drain", chance.uniform(0, 4)
    answer = war.site.caller.insist("POST", path, json={"deadline_seconds": deadline})
    war.pause(chance.uniform(0, 8))
    back = war.site.caller.insist("DELETE", path)
    return f"with a deadline of {deadline:.1f} s: {answer.status_code}, and back: {back.status_code}"


def _cut(war: War, chance: random.Random) -> str:
    reset = chance.random() < 0.5
    war.site.proxy.cut(reset=reset)
    return "by a reset" if reset else "in an orderly way"


def _stall(war: War, chance: random.Random) -> str:
    seconds = chance.uniform(0.5, OUTAGE_SECONDS)
    war.site.proxy.stall()
    war.pause(seconds)
    war.site.proxy.flow()
    return f"for {seconds:.1f} s"


def _meddle(war: War, chance: random.Random) -> str:
    act = chance.choice([Act.DELAY, Act.RESET, Act.CUT, Act.DROP_REPLY])
    rule = Rule(chance.choice(COMMANDS), act, times=chance.randint(1, 3), seconds=chance.uniform(0.1, 2))
    war.site.proxy.add(rule)
    return f"{rule.act.name} the next {rule.times} of {rule.name}"


def _cancel(war: War, chance: random.Random) -> str:
    going = sorted(job for job in list(war.jobs) if war.site.job(job).state not in TERMINAL)
    if not going:
        return ""
    job = chance.choice(going)
    answer = war.site.caller.insist("POST", f"/v1/jobs/{job}/cancel")
    return f"{job}: {answer.status_code}"


def _repeat_hints(war: War, chance: random.Random) -> str:
    if not war.jobs:
        return ""
    job = chance.choice(sorted(war.jobs))
    for _ in range(20):
        war.site.send(store.Hint(war.site.settings.node, war.site.attempt(job, max(1, war.site.job(job).attempt))))
    return f"of {job} 20 times"


@dataclass(frozen=True)
class Deed:
    """Something to do to a part of the service, and how often it is chosen. It says what it did, "" for nothing."""

    name: str
    part: str
    weight: int
    do: Callable[[War, random.Random], str]


DEEDS: tuple[Deed, ...] = (
    Deed("kill a supervisor", "attempts", 3, _kill_supervisor),
    Deed("kill rank", "attempts", 2, _kill_rank),
    Deed("freeze a supervisor", "attempts", 2, _freeze_supervisor),
    Deed("kill the worker", "worker", 2, _kill_worker),
    Deed("stop the worker", "worker", 2, _stop_worker),
    Deed("kill the forkserver", "worker", 1, _kill_forkserver),
    Deed("harm the spare", "worker", 1, _harm_spare),
    Deed("kill the API", "api", 2, _kill_api),
    Deed("stop the API", "api", 2, _stop_api),
    Deed("kill Redis", "redis", 2, _kill_redis),
    Deed("freeze Redis", "redis", 2, _freeze_redis),
    Deed("fill Redis", "redis", 1, _fill_redis),
    Deed("kill the telemetry Redis", "telemetry", 2, _kill_telemetry),
    Deed("drain the node", "drain", 2, _drain),
    Deed("cut all connections", "proxy", 3, _cut),
    Deed("stall all connections", "proxy", 1, _stall),
    Deed("meddle", "proxy", 5, _meddle),
    Deed("cancel", "attempts", 2, _cancel),
    Deed("repeat the hint", "attempts", 1, _repeat_hints),
)


def _hand(war: War, number: int) -> None:
    """Do deeds until it is over. Each part of the service is in one hand at a time."""
    chance = random.Random(f"{war.seed} {number}")
    while not war.over.is_set():
        (deed,) = chance.choices(DEEDS, [deed.weight for deed in DEEDS])
        with war.locks[deed.part]:
            if war.over.is_set():
                return
            try:
                did = deed.do(war, chance)
            except (Unavailable, httpx.HTTPError, psutil.Error, OSError, RedisError) as error:
                did = f"(in vain: {type(error).__name__})"
        if did:
            war.done[deed.name] += 1
            war.say(deed.name, did)
        war.over.wait(chance.uniform(0.3, 2.0))


# -- the war -----------------------------------------------------------------------------------------


def wage(site: Site, seed: int, seconds: float, jobs: int) -> list[str]:
    """Submit `jobs` jobs over `seconds` seconds of faults; what is broken when all have ended."""
    with webhook_listener(seed) as listener:
        follow_jobs(site, listener)
        broken = _wage(War(site, seed), seconds, jobs)
        broken += _untold(site, listener)
        print(f"{listener.requests} requests have reached the webhook", flush=True)
    return broken


def _wage(war: War, seconds: float, jobs: int) -> list[str]:
    site, baselines = war.site, {}
    for kind, submit in KINDS.items():
        job = submit(site, uuid.uuid4().hex)
        site.finished(job, 120)
        baselines[kind] = site.essence(job)
    war.say(f"undisturbed runs of {', '.join(KINDS)} are over; the war begins")
    with ThreadPoolExecutor(HANDS) as pool:
        hands = [pool.submit(_hand, war, number) for number in range(HANDS)]
        try:
            _submit(war, seconds, jobs)
        finally:
            war.over.set()
    for hand in hands:
        hand.result()  # a hand that has failed did less than it should have: no verdict then
    war.say("peace:", ", ".join(f"{name} {times}" for name, times in sorted(war.done.items())))
    _rebuild(war)
    site.allow(losses=frozenset(war.losses), baselines=baselines)
    war.say("all ended:", dict(Counter(str(site.job(job).state) for job in war.jobs)))
    return _verdict(war)


def _submit(war: War, seconds: float, jobs: int) -> None:
    chance = random.Random(war.seed)
    for number in range(jobs):
        kind, key = chance.choice(sorted(KINDS)), uuid.uuid4().hex
        for _ in range(chance.choice((1, 1, 2))):  # a client that is not sure asks again
            war.jobs[KINDS[kind](war.site, key)] = kind
        due = war.began + seconds * (number + 1) / jobs
        war.pause(max(0.0, due - time.monotonic()))
    war.pause(max(0.0, war.began + seconds - time.monotonic()))


def _rebuild(war: War) -> None:
    """Have everything run again until every job has ended. What a deed has hit may die of it a little later."""
    deadline = time.monotonic() + END_SECONDS + END_SECONDS_EACH * len(war.jobs)

    def ended() -> bool:
        war.site.heal()
        return all(war.site.job(job).state in TERMINAL for job in war.jobs)

    while not ended():
        war.site.caller.insist("DELETE", f"/v1/nodes/{war.site.settings.node}/drain")  # of a drain that was cut off
        left = {job: war.site.job(job) for job in war.jobs if war.site.job(job).state not in TERMINAL}
        assert time.monotonic() < deadline, f"they do not end: {left}"
        war.pause(1)


def _verdict(war: War) -> list[str]:
    found: list[str] = []

    def look() -> bool:
        found[:] = violations(war.site.evidence())
        return not found

    with suppress(AssertionError):
        eventually(look, "no violation", SETTLE_SECONDS)
    return found + [words for job in war.jobs for words in _unexplained(war, job)]


def _untold(site: Site, listener: WebhookListener) -> list[str]:
    """What a webhook was not told of any job, once there was time for it."""
    found: list[str] = []

    def look() -> bool:
        found[:] = untold(read_past(site.directory / "redis").jobs, listener.states())
        return not found

    with suppress(AssertionError):
        eventually(look, "webhooks have arrived", TOLD_SECONDS)
    return found


def _unexplained(war: War, job: str) -> list[str]:
    """What no deed explains of how a job ended, or of what it has printed."""
    record, kind = war.site.job(job), war.jobs[job]
    if record.state is JobState.SUCCEEDED and kind == "script":
        lines = war.site.text(job, number=record.attempt).splitlines()
        if lines != [f"line {number}" for number in range(LINES)]:
            return [f"I3: script {job} has printed {LINES} lines, and its log has {len(lines)} others"]
    killed = record.reason is StateReason.RANK_FAILED and "SIGKILL" in str(record.error)
    explained = record.state in (ENDS[kind], JobState.CANCELLED) or killed or record.reason in war.losses
    return [] if explained else [f"job {job} ({kind}) is {record.state}: {record.reason} ({record.message})"]


def main() -> int:
    parser = argparse.ArgumentParser(description="Faults by chance, and the checker's verdict")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--jobs", type=int, default=200)
    chosen = parser.parse_args()
    print(f"seed {chosen.seed}, {chosen.seconds:g} s, {chosen.jobs} jobs", flush=True)
    directory = Path(tempfile.mkdtemp(prefix="nemesis-"))
    with running_site(directory, through="127.0.0.1", lease_seconds=LEASE, webhook_networks=RECEIVERS) as site:
        broken = wage(site, chosen.seed, chosen.seconds, chosen.jobs)
    for words in broken:
        print("BROKEN", words)
    print(f"seed {chosen.seed}: {len(broken)} broken; files are in {directory}" if broken else "all invariants hold")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
