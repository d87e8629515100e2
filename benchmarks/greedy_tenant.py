"""What a small tenant notices of one that takes all it can get.

A service with two devices and two tenants. The greedy one submits thousands of short jobs, all at the highest
priority that it may have, and goes on submitting; it holds event streams and long polls open, asks for lists of 200
jobs with a search that finds nothing, for metrics, explanations, and plans of 1,024 devices as text, each with
several clients that begin anew when they are answered or refused. The small one polls a status, lists, plans and
submits, twenty times a second in turn.

    requests     the p99 of the small tenant's answers, beside the greedy one, and in the same service before it
                 began. None may be refused
    first job    from the POST to the lease, and to the first step. Its share is half of the pool, of which it has
                 had nothing: the next device that is free is its own, so it waits for the shorter rest of two jobs

`tests/integration/api/http/test_greedy_tenant.py` holds what must be so on any machine. The load is made on the same
cores.
"""

import http.client
import json
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from urllib.parse import urlsplit

from benchmarks.harness.comparing import Figure, Say, Scale, at_most
from benchmarks.harness.connection import Connection
from benchmarks.harness.service import Service, linear_spec, service
from benchmarks.pools.measures import quantile

TITLE = "a small tenant beside a greedy one"
BESIDE, ALONE = "beside it", "before"
JOBS, QUICK_JOBS = 5_000, 200
#: Clients of each kind of request.
CLIENTS, OPEN_REQUESTS = 4, 64
ASK_SECONDS = 0.05
MEASURE_SECONDS = 20.0
ANSWER_SECONDS = 0.1
FIRST_JOB_SECONDS = 60.0
#: Of a client that was refused, before it asks again.
REFUSED_SECONDS = 0.05

Kind = Callable[[Connection], object]


def run(scale: Scale, say: Say) -> list[Figure]:
    answers: dict[str, list[float]] = {BESIDE: [], ALONE: []}
    leases: dict[str, list[float]] = {BESIDE: [], ALONE: []}
    steps: dict[str, list[float]] = {BESIDE: [], ALONE: []}
    for number in range(scale.rounds_of(3, 1)):
        with service("cpu:2") as running:
            greedy, small = (_token(running, tenant) for tenant in ("greedy", "small"))
            for side in (ALONE, BESIDE):
                with _greed(running, greedy, scale.pick(JOBS, QUICK_JOBS) if side == BESIDE else 0):
                    leased, stepped = _first_job(running, small)
                    answers[side].append(_p99(running, small, scale.pick(MEASURE_SECONDS, 3.0)))
                leases[side].append(leased)
                steps[side].append(stepped)
        say(f"round {number + 1}: p99 {answers[BESIDE][-1] * 1e3:.0f} ms, lease after {leases[BESIDE][-1]:.2f} s")
    return [
        Figure("requests of the small tenant, p99", "s", answers, [at_most(ANSWER_SECONDS)]),
        Figure("POST of its first job to the lease", "s", leases),
        Figure("POST of its first job to the first step", "s", steps),
    ]


def _token(running: Service, tenant: str) -> str:
    return running.client.create_token(tenant, scopes=("read", "submit"), tenant=tenant).token


def _first_job(running: Service, token: str) -> tuple[float, float]:
    """Seconds from the POST to the lease, and to the first step, by the clock of the control Redis."""
    with Connection(running.url, token) as to:
        job = to.post("/v1/jobs", json.dumps(linear_spec("single", 1)).encode())["id"]
        status = to.end(job, FIRST_JOB_SECONDS)
        attempts = to.get(f"/v1/jobs/{job}/attempts")[1]["attempts"]
    if status["state"] != "succeeded":
        raise RuntimeError(f"the small tenant's job is {status['state']}: {status['reason']}")
    begun = _seconds(status["created_at"])
    return _seconds(attempts[0]["created_at"]) - begun, _seconds(status["first_step_at"]) - begun


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _p99(running: Service, token: str, seconds: float) -> float:
    """Of a status, a list, a plan and a submit in turn.

    Raises:
        RuntimeError: one was refused.
    """
    spec = json.dumps(linear_spec("single", 1)).encode()
    taken: list[float] = []
    with Connection(running.url, token) as to:
        job = to.get("/v1/jobs?limit=1")[1]["jobs"][0]["id"]
        kinds: Sequence[Kind] = (
            lambda to: to.get(f"/v1/jobs/{job}"),
            lambda to: to.get("/v1/jobs?limit=50"),
            lambda to: to.post("/v1/plan", spec),
            lambda to: to.post("/v1/jobs", spec),
        )
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            began = time.perf_counter()
            kinds[len(taken) % len(kinds)](to)
            taken.append(time.perf_counter() - began)
            time.sleep(max(0.0, ASK_SECONDS - taken[-1]))
    return quantile(taken, 0.99)


@contextmanager
def _greed(running: Service, token: str, jobs: int) -> Iterator[None]:
    """While the greedy tenant has so many jobs and goes on; with none it does nothing."""
    if not jobs:
        yield
        return
    spec = json.dumps(linear_spec("single", 1)).encode()
    with Connection(running.url, token) as to:
        last = [to.post("/v1/jobs", spec)["id"] for _ in range(jobs)][-1]
    # In a process of its own: what waits for this process's lock would count as the service's.
    process = multiprocessing.get_context("fork").Process(target=_be_greedy, args=(running, token, last), daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def _be_greedy(running: Service, token: str, last: str) -> None:
    """Ask for all there is until this process is killed. `last`: the id of a job."""
    spec = json.dumps(linear_spec("single", 1)).encode()
    plan = json.dumps(linear_spec("dp", 1024)).encode()
    kinds: Sequence[tuple[int, Kind]] = (
        (CLIENTS, lambda to: to.post("/v1/jobs", spec)),
        (CLIENTS, lambda to: to.post("/v1/plan", plan)),
        (CLIENTS, lambda to: to.get("/v1/jobs?limit=200&search=nothing")),
        (CLIENTS, lambda to: to.get(f"/v1/jobs/{last}/explain")),
        (CLIENTS, lambda to: to.get(f"/v1/jobs/{last}/metrics")),
        (OPEN_REQUESTS, lambda to: to.get(f"/v1/jobs/{last}?wait=30")),
    )
    threads = [
        threading.Thread(target=_ask_again, args=(running, token, kind))
        for clients, kind in kinds
        for _ in range(clients)
    ]
    threads += [
        threading.Thread(target=_follow, args=(running, token, f"/v1/jobs/{last}/events")) for _ in range(OPEN_REQUESTS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _ask_again(running: Service, token: str, kind: Kind) -> None:
    while True:
        try:
            with Connection(running.url, token) as to:
                while True:
                    kind(to)
        except (RuntimeError, OSError, http.client.HTTPException):
            time.sleep(REFUSED_SECONDS)  # more than it may have, or the service is gone


def _follow(running: Service, token: str, path: str) -> None:
    place = urlsplit(running.url)
    while True:
        stream = http.client.HTTPConnection(place.hostname or "", place.port, timeout=MEASURE_SECONDS)
        try:
            stream.request("GET", path, headers={"Authorization": f"Bearer {token}"})
            answer = stream.getresponse()
            while answer.read1(4096):
                pass
        except (OSError, http.client.HTTPException):
            pass
        finally:
            stream.close()
        time.sleep(REFUSED_SECONDS)
