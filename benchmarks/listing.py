"""A page of 50 jobs out of 1,000, 100,000 and 1,000,000 finished ones, by HTTP, against a bare route and Ray's list.

Ours is `shardyard up` with its defaults; its control Redis is filled with finished jobs, copied from ones that the
product's own calls have made (a copy is compared with its original, key by key). The bare side is a
FastAPI route that returns what one Redis GET has (2 kB), in a process and with a Redis of its own. Ray's side is its
list of 52 jobs, all that its job service has on this machine: one that has run, and copies of its record. It has no
pages, so its answer has all jobs.

Pages: the first, one in the middle by its cursor, ones anywhere (200 cursors in turn, so that none is asked for twice
in a row), and those filtered by a state (one job in ten), by a label (one in four) and by a name (one in 64). A
filter is looked for among the jobs of the list itself, at most 1,000 of them a request.
"""

import hashlib
import json
import random
import time
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import psutil
import redis

from api.http import cursors
from benchmarks.harness import finished, http, peers
from benchmarks.harness.comparing import Figure, Say, Scale, in_turns, times_better
from benchmarks.harness.finished import TENANT, Maker
from benchmarks.harness.http import Load, RequestPlan
from benchmarks.harness.servers import redis_server
from benchmarks.harness.service import Service, service
from jobs.protocol.names import job_ref
from shardyard.service import embedded_redis

TITLE = "Lists of 50 jobs out of up to 1,000,000"
OURS, BARE, RAY = "shardyard", "bare GET", "Ray's list of 52"
TEMPLATES = 64
RAY_JOBS = 52
CONNECTIONS = 4
CHUNK = 1_000
#: Cursors of pages anywhere: more jobs than the API keeps rows of.
ANYWHERE = 200
REWRITE_SECONDS = 120.0


def run(scale: Scale, say: Say) -> list[Figure]:
    sizes, seconds = scale.pick((1_000, 100_000, 1_000_000), (1_000, 20_000)), scale.pick(0.6, 0.2)
    figures: list[Figure] = []
    with ExitStack() as stack:
        ours, bare = stack.enter_context(service("cpu:2")), stack.enter_context(http.bare_api())
        ours.client.drain(ours.client.nodes()[0].id)
        token = ours.client.create_token("bench", scopes=["read"]).token
        sides: dict[str, RequestPlan] = {BARE: _plan(bare.port, bare.pid, ["/blob"], {}, seconds)}
        if not scale.quick:
            sides[RAY] = _ray(stack, seconds)
        seeder = Seeder(_control(stack, ours))
        for size in sizes:
            seeder.fill(size)
            say(f"{size:,} jobs")
            for name, paths in seeder.pages().items():
                whose = {OURS: _plan(ours.port, ours.pid_of("api"), paths, _bearer(token), seconds)}
                whose |= sides if name == "first page" else {}
                _check(ours, paths[0], token)
                loads = in_turns(
                    {side: _loaded(side, plan, say) for side, plan in whose.items()},
                    scale.rounds_of(3, 1) if size == max(sizes) else 1,
                    say=lambda _: None,
                    warm_up=0,
                )
                figures += _figures(name, size, loads)
    return figures


def _figures(name: str, size: int, loads: dict[str, list[Load]]) -> list[Figure]:
    of: dict[str, Any] = {"size": float(size), "size_of": "jobs"}
    goals = [times_better(RAY, 10)] if RAY in loads else []
    return [
        Figure(
            f"list, {name}: requests a second",
            "",
            {side: [each.rate for each in found] for side, found in loads.items()},
            goals,
            lower_is_better=False,
            **of,
        ),
        Figure(f"list, {name}: p50", "s", {side: [each.p50 for each in found] for side, found in loads.items()}, **of),
        Figure(
            f"list, {name}: CPU of the API process a request",
            "s",
            {OURS: [each.cpu_per_answer for each in loads[OURS]]},
            **of,
        ),
    ]


def _plan(port: int, pid: int, paths: list[str], headers: dict[str, str], seconds: float) -> RequestPlan:
    requests = [http.request("GET", path, port, headers) for path in paths]
    return RequestPlan(port, requests, CONNECTIONS, seconds, [pid], 200)


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def _loaded(side: str, plan: RequestPlan, say: Say) -> Callable[[], Load]:
    def once() -> Load:
        found = http.load(plan)
        say(f"{side:<16} {plan.requests[0].split()[1][:48]:<48} {http.words(found)}")
        return found

    return once


def _check(ours: Service, path: str, token: str) -> None:
    """Raises RuntimeError: the page is not full, or the jobs in it are not ended ones with a name."""
    request = urllib.request.Request(f"http://127.0.0.1:{ours.port}{path}", headers=_bearer(token))
    with urllib.request.urlopen(request, timeout=30) as response:
        jobs = json.load(response)["jobs"]
    full = len(jobs) == 50 or ("name=" in path and jobs)
    if not full or any(not job["name"] or not job["finished_at"] for job in jobs):
        raise RuntimeError(f"{path} has {len(jobs)} jobs")


# -- filling the store -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Template:
    """A finished job as the product left it: its keys, by what comes before and after its ref, as `DUMP` has them; its
    state, when it ended, its name."""

    keys: dict[tuple[str, str], bytes]
    state: str
    ended: float
    name: str

    @cached_property
    def digest(self) -> str:
        """As the index by name has it."""
        return hashlib.sha1(self.name.encode(), usedforsecurity=False).hexdigest()[:8]


def _control(stack: ExitStack, ours: Service) -> "redis.Redis":
    server = embedded_redis.prepare_redis("control", ours.data_dir, embedded_redis.find_server())
    client: redis.Redis = stack.enter_context(redis.Redis.from_url(server.url, socket_timeout=60))
    return client


class Seeder:
    """Fills a control Redis with copies of finished jobs, thousands in one exchange, every write on disk as always."""

    def __init__(self, control: "redis.Redis") -> None:
        """Raises RuntimeError: a copy is not what the product makes."""
        self._control = control
        self._ids: list[str] = []
        self._chance = random.Random(11)
        self._milliseconds = 1_795_000_000_000
        with redis_server("control") as server, redis.Redis.from_url(server.url, socket_timeout=60) as client:
            jobs = [each.job for each in Maker(client).finish(list(finished.specs(TEMPLATES)), token="0123456789ab")]
            self._templates = [_template(client, job) for job in jobs]
            self._compare(client, jobs[0])

    def fill(self, size: int) -> None:
        """Have so many jobs in all, and wait until the server has done what it does in the background."""
        new = [(self._id(), self._templates[n % TEMPLATES]) for n in range(len(self._ids), size)]
        for start in range(0, len(new), CHUNK):
            _put(self._control, new[start : start + CHUNK])
        self._control.set("sy:named", "")  # no earlier version has used it
        _wait_for_rewrite(self._control)

    def pages(self) -> dict[str, list[str]]:
        """Paths of the pages that are asked for in turn, by what they are."""
        first, name = "/v1/jobs?limit=50", urllib.parse.quote(self._templates[3].name)
        anywhere = [self._ids[self._chance.randrange(100, len(self._ids))] for _ in range(ANYWHERE)]
        return {
            "first page": [first],
            "a page in the middle": [_from(self._ids[len(self._ids) // 2])],
            "pages anywhere": [_from(job) for job in anywhere],
            "by state": [f"{first}&state=failed"],
            "by label": [f"{first}&label=team%3Dvision"],
            "by name": [f"{first}&name={name}"],
        }

    def _id(self) -> str:
        """As the API makes them: a UUID of version 7."""
        self._milliseconds += 20
        bits = self._milliseconds << 80 | 7 << 76 | self._chance.getrandbits(12) << 64 | 2 << 62
        job = str(uuid.UUID(int=bits | self._chance.getrandbits(62)))
        self._ids.append(job)
        return job

    def _compare(self, client: "redis.Redis", job: str) -> None:
        """That what `_put` makes of a job's template is what the product has made of the job."""
        before = list(_dumped(client, job))
        copy = self._id()
        self._ids.clear()
        _put(client, [(copy, self._templates[0])])
        if not before or list(_dumped(client, copy)) != before:
            raise RuntimeError("a copied job is not what the product's own calls make")


def _from(job: str) -> str:
    return f"/v1/jobs?limit=50&cursor={urllib.parse.quote(cursors.encode_job(job))}"


def _template(client: "redis.Redis", job: str) -> Template:
    ref = job_ref(TENANT, job)
    names = (f"sy:job:{ref}", f"sy:spec:{ref}", f"sy:attempt:{ref}/1")
    keys: dict[tuple[str, str], Any] = {
        (name.partition(ref)[0], name.partition(ref)[2]): client.dump(name) for name in names
    }
    name: Any = client.hget(names[0], "name")
    record = client.zscore("sy:finished", ref)
    assert isinstance(record, float)
    states = ("succeeded", "failed")
    state = next(state for state in states if client.zscore(f"sy:jobs:{TENANT}:{state}", job) is not None)
    return Template(keys, state, record, name.decode())


def _put(client: "redis.Redis", jobs: list[tuple[str, Template]]) -> None:
    with client.pipeline(transaction=False) as pipe:
        for job, each in jobs:
            for (before, after), value in each.keys.items():
                pipe.restore(f"{before}{job_ref(TENANT, job)}{after}", 0, value)
        pipe.zadd(f"sy:jobs:{TENANT}", {job: 0 for job, _ in jobs})
        pipe.zadd(f"sy:names:{TENANT}", {each.digest + job: 0 for job, each in jobs})
        pipe.zadd("sy:finished", {job_ref(TENANT, job): each.ended for job, each in jobs})
        for state in {each.state for _, each in jobs}:
            pipe.zadd(f"sy:jobs:{TENANT}:{state}", {job: 0 for job, each in jobs if each.state == state})
        pipe.execute()


def _dumped(client: "redis.Redis", job: str) -> Iterator[tuple[str, object]]:
    """Everything that names a job in its key, and every place in a sorted set, with the id left out."""
    for key in sorted(client.scan_iter(match="sy:*", count=10_000)):
        name = key.decode()
        if job in name:
            yield name.replace(job, "ID"), client.dump(key)
        elif client.type(key) == b"zset":
            for member, score in client.zscan_iter(key, match=f"*{job}", count=10_000):
                yield f"{name} {member.decode().replace(job, 'ID')}", score


def _wait_for_rewrite(client: "redis.Redis") -> None:
    """Raises TimeoutError: the server's file is still being written anew."""
    deadline = time.monotonic() + REWRITE_SECONDS
    while client.info("persistence")["aof_rewrite_in_progress"]:
        if time.monotonic() > deadline:
            raise TimeoutError("the server's append-only file is still being rewritten")
        time.sleep(0.1)


# -- Ray ---------------------------------------------------------------------------------------------


def _ray(stack: ExitStack, seconds: float) -> RequestPlan:
    """A head with so many trivial jobs that have ended.

    Raises:
        RuntimeError: its list has not that many.
    """
    peers.install()
    ray = stack.enter_context(peers.ray_head())
    job = ray.submit("true")
    ray.wait(job)
    ray.copy(job, RAY_JOBS - 1)
    if len(ray.jobs()) != RAY_JOBS:
        raise RuntimeError(f"Ray's list has {len(ray.jobs())} jobs")
    port = int(ray.url.rsplit(":", 1)[1])
    pid = next(pid for pid in ray.pids if "dashboard/dashboard.py" in " ".join(psutil.Process(pid).cmdline()))
    return _plan(port, pid, ["/api/jobs/"], {}, seconds)
