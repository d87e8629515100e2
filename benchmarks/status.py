"""What it costs to look at a job: polls, polls that find nothing new, and requests that are held until it changes.

Polls go over a hundred jobs that wait, in turn, as a hundred clients would: a bearer token, the job from Redis, its
place in the queue, the whole status as JSON with an ETag. The other side is a FastAPI route that returns the bytes of
one Redis GET, of the same size, without anything else (`programs/bare_api.py`); both are one process under uvicorn.
Ray's job service answers `GET /api/jobs/{id}` of a job that has ended.

Two hundred requests with `?wait=` are open at once for the long-polls. What they cost while nothing happens is the CPU
time of the API process; how late they are is from just before a job is cancelled until its waiting request is answered,
so the cancel itself is in it. The other side of that is what a client sees that polls every half second, worked out.
"""

import json
import select
import socket
import time
from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import Any

from benchmarks.harness import http, peers
from benchmarks.harness.comparing import Figure, Say, Scale, at_most, in_turns, share_of, times_better
from benchmarks.harness.http import Bare, Load, RequestPlan
from benchmarks.harness.machine import thread_cpu_seconds
from benchmarks.harness.service import Service, service
from benchmarks.submit import SPEC

TITLE = "Status: polls, 304s and long-polls of one API process"
OURS, BARE, RAY = "shardyard", "FastAPI, one Redis GET", "Ray Jobs"
CONNECTIONS = (1, 16, 64)
JOBS = 100
LONG_POLLS = 200
#: Half of what a client waits for that polls every half second, on average.
POLLING_SECONDS = 0.25
ANSWER_SECONDS = 30.0


def run(scale: Scale, say: Say) -> list[Figure]:
    with service("cpu:2") as ours, http.bare_api() as bare:
        ours.client.drain(ours.client.nodes()[0].id)
        token = ours.client.create_token("bench", scopes=["read"]).token
        named = {"Authorization": f"Bearer {token}"}
        jobs = [ours.client.submit(SPEC).id for _ in range(max(JOBS, LONG_POLLS))]
        figures = _polls(scale, say, ours, bare, named, jobs[:JOBS])
        figures += _long_polls(scale, say, ours, named, jobs)
        return figures if scale.quick else [*figures, _against_ray(scale, say, ours, named, jobs[-1])]


def _polls(
    scale: Scale, say: Say, ours: Service, bare: Bare, named: dict[str, str], jobs: Sequence[str]
) -> list[Figure]:
    seconds, api = scale.pick(0.6, 0.3), [ours.pid_of("api"), ours.pid_of("control")]
    fresh = [http.request("GET", f"/v1/jobs/{job}", ours.port, named) for job in jobs]
    tags = [_tag(ours.port, named, job) for job in jobs]
    known = [
        http.request("GET", f"/v1/jobs/{job}", ours.port, named | {"If-None-Match": tag})
        for job, tag in zip(jobs, tags, strict=True)
    ]
    plans = {}
    for number in CONNECTIONS:
        plans[OURS, number] = RequestPlan(ours.port, fresh, number, seconds, api, 200)
        plans["304", number] = RequestPlan(ours.port, known, number, seconds, api, 304)
        blob = [http.request("GET", "/blob", bare.port)]
        plans[BARE, number] = RequestPlan(bare.port, blob, number, seconds, [bare.pid, bare.redis_pid], 200)

    def once(which: tuple[str, int]) -> Load:
        found = http.load(plans[which])
        say(f"{which[0]:<22} {which[1]:>2} connections: {http.words(found)}")
        return found

    sides = {f"{side} {number}": partial(once, (side, number)) for side, number in plans}
    loads: dict[str, list[Load]] = in_turns(sides, scale.rounds_of(3, 1), say=say, warm_up=0)
    figures: list[Figure] = []
    for number in CONNECTIONS:
        for what, side in (("status", OURS), ("status that is known (304)", "304")):
            pair = {OURS: loads[f"{side} {number}"], BARE: loads[f"{BARE} {number}"]}
            figures += http.figures(what, pair, number, rate_goals=[share_of(BARE, 0.9)])
    return figures


def _tag(port: int, named: dict[str, str], job: str) -> str:
    """The ETag of a job's status."""
    with socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS) as connection:
        connection.sendall(http.request("GET", f"/v1/jobs/{job}", port, named).encode("latin-1"))
        head = connection.recv(65_536).partition(b"\r\n\r\n")[0]
    return next(line[6:].decode() for line in head.split(b"\r\n") if line.lower().startswith(b"etag: "))


def _long_polls(scale: Scale, say: Say, ours: Service, named: dict[str, str], jobs: Sequence[str]) -> list[Figure]:
    shares: list[float] = []
    delays: list[float] = []
    api = ours.pid_of("api")
    waiting = {job: _ask(ours.port, named, job) for job in jobs[:LONG_POLLS]}
    try:
        time.sleep(0.5)
        for _ in range(scale.rounds_of(3, 1)):
            before, began = thread_cpu_seconds(api), time.perf_counter()
            time.sleep(scale.pick(1.5, 0.5))
            shares.append((thread_cpu_seconds(api) - before) / (time.perf_counter() - began))
        for job in jobs[: scale.pick(60, 20)]:
            delays.append(_wake(ours, job, waiting.pop(job)))
            time.sleep(0.02)
    finally:
        for connection in waiting.values():
            connection.close()
    say(f"{LONG_POLLS} long-polls: {max(shares):.2%} of a core, woken after {median(delays) * 1e3:.1f} ms")
    polled = [POLLING_SECONDS] * len(delays)
    return [
        Figure(
            f"{LONG_POLLS} open long-polls, nothing happens: CPU of the API process",
            "of a core",
            {OURS: shares},
            [at_most(0.02)],
        ),
        Figure(
            "change until the long-poll is answered", "s", {OURS: delays, "polls every 0.5 s": polled}, [at_most(0.02)]
        ),
    ]


def _ask(port: int, named: dict[str, str], job: str) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS)
    connection.sendall(http.request("GET", f"/v1/jobs/{job}?wait=60", port, named).encode("latin-1"))
    return connection


def _wake(ours: Service, job: str, waiting: socket.socket) -> float:
    """Seconds from just before a job is cancelled until the request that waits for it is answered."""
    with waiting, socket.create_connection(("127.0.0.1", ours.port), ANSWER_SECONDS) as other:
        named = {"Authorization": f"Bearer {ours.token}"}
        cancel = http.request("POST", f"/v1/jobs/{job}/cancel", ours.port, named).encode("latin-1")
        began = time.perf_counter()
        other.sendall(cancel)
        if not select.select([waiting], [], [], ANSWER_SECONDS)[0]:
            raise RuntimeError(f"the long-poll was not answered within {ANSWER_SECONDS:g} s")
        seconds = time.perf_counter() - began
        status: dict[str, Any] = json.loads(http.body_of_answer(waiting))
        if status["state"] != "cancelled":
            raise RuntimeError(f"the long-poll was answered with {status['state']}")
        return seconds


def _against_ray(scale: Scale, say: Say, ours: Service, named: dict[str, str], job: str) -> Figure:
    """`job`: one of ours that waits."""
    peers.install()
    with peers.ray_head() as ray:
        theirs = ray.submit("true")
        ray.wait(theirs)
        port = int(ray.url.rpartition(":")[2])
        requests = [http.request("GET", f"/v1/jobs/{job}", ours.port, named)]
        plans = {
            OURS: RequestPlan(ours.port, requests, 4, 1.0, [ours.pid_of("api")], 200),
            RAY: RequestPlan(port, [http.request("GET", f"/api/jobs/{theirs}", port)], 4, 1.0, list(ray.pids), 200),
        }
        sides = {side: lambda plan=plan: http.load(plan).rate for side, plan in plans.items()}
        rates = in_turns(sides, scale.rounds_of(3, 1), say=say)
    return Figure(
        "GET of one job, 4 connections: requests a second",
        "",
        rates,
        [times_better(RAY, 6)],
        lower_is_better=False,
        note="Ray's head is idle beside both",
    )
