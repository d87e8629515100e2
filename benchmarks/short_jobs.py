"""Trivial jobs: how many a minute, and how soon the first line of one can be read. The service against Ray Jobs.

Ours are a script of one line, `print("hello")`, and a recipe that calls its model on one batch; Ray's is `echo hello`,
a shell command without Python. A burst is posted one by one, and is over when the last of it has ended: jobs a minute
are counted from the first POST to the last job's `finished_at` (Ray: to when a poll says so). The first line is waited
for by asking for the log every 20 ms, on both sides.

The bursts that grow are taken before Ray is started, since its idle processes take some of the CPU time; those that are
compared with it take turns with it.
"""

import json
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import peers
from benchmarks.harness.comparing import Figure, Say, Scale, in_turns, times_better
from benchmarks.harness.connection import Connection
from benchmarks.harness.peers import Ray
from benchmarks.harness.service import Service, linear_spec, service

TITLE = "Trivial jobs: how many a minute, and POST to first log line"
OURS, ONE_DEVICE, RECIPE, RAY = "shardyard", "shardyard, one device", "shardyard, a recipe", "Ray Jobs"
RATE, LINE = "trivial jobs a minute", "POST to first log line"
BURST = 20
POLL_SECONDS = peers.POLL_SECONDS
DEADLINE_SECONDS = 120.0
#: Ray goes on for a while with the processes of a job that has ended, which would be counted as ours.
SETTLE_SECONDS = 2.0


def run(scale: Scale, say: Say) -> list[Figure]:
    sizes = scale.pick((10, 20, 40), (5, 10, 20))
    with service("cpu:2") as two, Connection(two.url, two.token) as to_two:
        script, recipe = hello(two), forward(two)
        with ExitStack() as stack:
            sides: dict[str, Callable[[int], float]] = {
                OURS: partial(rate, to_two, script),
                RECIPE: partial(rate, to_two, recipe),
            }
            if not scale.quick:
                one = stack.enter_context(service("cpu:1"))
                sides[ONE_DEVICE] = partial(rate, stack.enter_context(Connection(one.url, one.token)), hello(one))
            figures = _growing(sides, sizes, scale, say)
        if scale.quick:
            lines = in_turns({OURS: lambda: first_line(to_two, script)}, scale.rounds_of(4, 4), say=say)
            return [*figures, Figure(LINE, "s", lines)]
        peers.install()
        with peers.ray_head() as ray:
            lines = in_turns(
                {OURS: lambda: first_line(to_two, script), RAY: lambda: first_line_of_ray(ray)},
                scale.rounds_of(4, 1),
                say=say,
            )
            bursts = in_turns(
                {OURS: lambda: rate(to_two, script, BURST), RAY: lambda: rate_of_ray(ray, BURST)},
                scale.rounds or 2,
                say=say,
                warm_up=0,
            )
    against = Figure(
        f"{RATE}, a burst of {BURST}", "jobs a minute", bursts, [times_better(RAY, 12)], lower_is_better=False
    )
    return [against, Figure(LINE, "s", lines, [times_better(RAY, 12)]), *figures]


def _growing(sides: dict[str, Callable[[int], float]], sizes: tuple[int, ...], scale: Scale, say: Say) -> list[Figure]:
    figures = []
    for size in sizes:
        measured = {name: lambda burst=burst, size=size: burst(size) for name, burst in sides.items()}
        samples = in_turns(measured, scale.rounds_of(2, 1), say=lambda _: None, warm_up=0)
        say(f"{size} jobs at once: " + ", ".join(f"{name} {max(each):.0f} a minute" for name, each in samples.items()))
        figures.append(Figure(RATE, "jobs a minute", samples, lower_is_better=False, size=size, size_of="jobs at once"))
    return figures


def hello(running: Service) -> bytes:
    """The spec of a script that prints a line, whose code the service has: one such job has run."""
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory) / "hello.py"
        program.write_text('print("hello")\n')
        job = running.client.submit_script(program, strategy="single", devices=1)
    return json.dumps(job.wait(timeout=DEADLINE_SECONDS).status.spec).encode()


def forward(running: Service) -> bytes:
    """The spec of a recipe that calls a small model on one batch; one such job has run."""
    spec = linear_spec("single", 1, mode="forward", max_steps=1)
    for field in ("loss", "optimizer"):
        del spec["program"][field]
    running.client.submit(spec).wait(timeout=DEADLINE_SECONDS)
    return json.dumps(spec).encode()


def rate(to: Connection, spec: bytes, count: int) -> float:
    """Jobs a minute of a burst.

    Raises:
        RuntimeError: one of them did not succeed.
    """
    began = time.time()
    ends = [to.end(job) for job in [to.post("/v1/jobs", spec)["id"] for _ in range(count)]]
    failed = [end for end in ends if end["state"] != "succeeded"]
    if failed:
        raise RuntimeError(f"{len(failed)} of {count} jobs did not succeed, one of them: {failed[0]['reason']}")
    return 60 * count / (max(map(finished, ends)) - began)


def finished(status: dict[str, Any]) -> float:
    """When a job that has ended did so, in seconds since the epoch."""
    return datetime.fromisoformat(status["finished_at"]).timestamp()


def first_line(to: Connection, spec: bytes) -> float:
    """Seconds from just before the POST until the log has a line. The job is over when this returns."""
    began = time.monotonic()
    job = to.post("/v1/jobs", spec)["id"]
    while not to.get(f"/v1/jobs/{job}/logs")[1]["lines"]:
        if time.monotonic() - began > DEADLINE_SECONDS:
            raise RuntimeError(f"job {job} printed nothing")
        time.sleep(POLL_SECONDS)
    seconds = time.monotonic() - began
    to.end(job)
    return seconds


def rate_of_ray(ray: Ray, count: int) -> float:
    began = time.time()
    jobs = [ray.submit("echo hello") for _ in range(count)]
    for job in jobs:
        ray.wait(job)
    seconds = time.time() - began
    time.sleep(SETTLE_SECONDS)
    return 60 * count / seconds


def first_line_of_ray(ray: Ray) -> float:
    began = time.monotonic()
    job = ray.submit("echo hello")
    while "hello" not in ray.logs(job):
        if time.monotonic() - began > DEADLINE_SECONDS:
            raise RuntimeError(f"Ray's job {job} printed nothing")
        time.sleep(POLL_SECONDS)
    seconds = time.monotonic() - began
    ray.wait(job)
    time.sleep(SETTLE_SECONDS)
    return seconds
