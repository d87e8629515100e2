"""What the HTTP benchmarks share: requests as bytes, a load in a process of its own, a bare FastAPI to compare with."""

import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from benchmarks.harness.comparing import Figure, Goal
from benchmarks.harness.servers import redis_server

#: Stands in a request for a number of 16 digits that never comes again: an Idempotency-Key.
KEY_MARK = "<<<<<<key>>>>>>>"
END_SECONDS = 30.0
LOAD_SECONDS = 60.0


class RequestPlan(msgspec.Struct, frozen=True):
    """What the load generator does: these requests (latin-1) over and over, on so many connections with one request
    each on the way, for so long. `pids` are the processes whose CPU time is taken, `status` what every answer has."""

    port: int
    requests: list[str]
    concurrency: int
    seconds: float
    pids: list[int]
    status: int


class Load(msgspec.Struct, frozen=True):
    """What it measured. Times in seconds; `cpu_seconds` of each process of the plan, `own_cpu_seconds` of the load."""

    answers: int
    seconds: float
    p50: float
    p99: float
    cpu_seconds: list[float]
    own_cpu_seconds: float

    @property
    def rate(self) -> float:
        return self.answers / self.seconds

    @property
    def cpu_per_answer(self) -> float:
        """Of the first process of the plan, which is the server."""
        return self.cpu_seconds[0] / self.answers


def request(method: str, path: str, port: int, headers: Mapping[str, str] | None = None, body: bytes = b"") -> str:
    """One, as `Plan.requests` has it."""
    named = {"Host": f"127.0.0.1:{port}", "Accept": "*/*", "User-Agent": "bench"} | dict(headers or {})
    named |= {"Content-Type": "application/json", "Content-Length": str(len(body))} if body else {}
    head = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n" + body.decode("latin-1")


def body_of_answer(connection: socket.socket) -> bytes:
    """The next answer on a connection, to its end.

    Raises:
        ConnectionError: the server closed it first.
    """
    got = b""
    while True:
        head, end, body = got.partition(b"\r\n\r\n")
        length = next(
            (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
        )
        if end and len(body) >= length:
            return body
        data = connection.recv(65_536)
        if not data:
            raise ConnectionError("the server closed a connection in the middle of an answer")
        got += data


def load(plan: RequestPlan) -> Load:
    """Run a plan.

    Raises:
        RuntimeError: an answer was missing or had another status, or the load itself was what was slow.
    """
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.programs.http_load"],
        input=msgspec.json.encode(plan),
        capture_output=True,
        timeout=LOAD_SECONDS,
    )
    if done.returncode:
        raise RuntimeError(f"the load failed: {done.stderr.decode(errors='replace')[-2000:]}")
    found = msgspec.json.decode(done.stdout, type=Load)
    server = sum(found.cpu_seconds)
    if found.own_cpu_seconds > max(server, 0.5 * found.seconds):
        raise RuntimeError(f"the load took {found.own_cpu_seconds:.2f} s of CPU, the server {server:.2f} s")
    return found


@dataclass(frozen=True, slots=True)
class Bare:
    """`programs/bare_api.py`, and its Redis."""

    port: int
    pid: int
    redis_pid: int


@contextmanager
def bare_api() -> Iterator[Bare]:
    """A default FastAPI application in one process with a Redis of its own, configured as the service's control Redis.

    Raises:
        RuntimeError: it did not start.
    """
    with redis_server("control") as server:
        command = [sys.executable, "-m", "benchmarks.programs.bare_api", server.url]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as api:
            try:
                assert api.stdout is not None
                said = api.stdout.readline()
                if not said.strip().isdigit():
                    raise RuntimeError("the bare FastAPI did not start")
                yield Bare(int(said), api.pid, server.pid)
            finally:
                api.terminate()
                api.wait(END_SECONDS)


def figures(
    what: str,
    loads: Mapping[str, Sequence[Load]],
    concurrency: int,
    cpu_goals: Sequence[Goal] = (),
    rate_goals: Sequence[Goal] = (),
) -> list[Figure]:
    """CPU per request, requests a second and the 99th percentile of one concurrency."""
    size: dict[str, Any] = {"size": float(concurrency), "size_of": "connections"}

    def of(name: str) -> dict[str, list[float]]:
        return {side: [getattr(each, name) for each in runs] for side, runs in loads.items()}

    return [
        Figure(f"{what}: CPU of the API process a request", "s", of("cpu_per_answer"), cpu_goals, **size),
        Figure(f"{what}: requests a second", "", of("rate"), rate_goals, lower_is_better=False, **size),
        Figure(f"{what}: p99", "s", of("p99"), **size),
    ]


def quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def words(found: Load) -> str:
    """One measurement for people who watch."""
    cpus = ", ".join(f"{each / found.answers * 1e6:.0f}" for each in found.cpu_seconds)
    own = found.own_cpu_seconds / found.answers * 1e6
    return f"{found.rate:,.0f}/s, p99 {found.p99 * 1e3:.1f} ms, CPU us a request {cpus} (load {own:.0f})"
