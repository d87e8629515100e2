"""One job, many clients of its events: the service's streams, against an application with one XREAD for each client.

Side A is a service of its own and a job under it (`programs/talker.py`) that prints 50 lines twenty times a second and
logs a point of a metric with them; clients follow `GET /v1/jobs/{id}/events?logs=all`. Side B is FastAPI with one XREAD
a client (`programs/xread_api.py`), on a Redis of the same configuration, to which this process adds the same lines and
points, each batch as one entry that is ready to be sent. On both sides a line begins with the moment at which it was
printed. The clients are one process with raw sockets (`programs/stream_readers.py`), which takes its part of the same
cores; CPU time is that of the server and of its Redis, from before the first line until every client has the last.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import redis

from benchmarks.harness.comparing import Figure, Say, Scale, at_most, in_turns, times_better
from benchmarks.harness.machine import thread_cpu_seconds
from benchmarks.harness.servers import Server, redis_server
from benchmarks.harness.service import Service, service
from benchmarks.programs import stream_readers, talker, xread_api
from benchmarks.programs.stream_readers import Found, Wanted
from shardyard.contract import responses, stream_events

TITLE = "Many clients follow one job"

OURS, XREAD = "shardyard", "one XREAD a client"
CLIENTS = (50, 200, 500)
STATE_SECONDS = 60.0
#: How long the slowest client may take for all lines.
READ_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Sample:
    cores: float  # CPU time of server and Redis for each second of events
    found: Found
    connections: int  # to Redis, because of the clients


def run(scale: Scale, say: Say) -> list[Figure]:
    seconds, sizes = scale.pick(3.0, 1.0), scale.pick(CLIENTS, (20, 100))
    samples: dict[int, dict[str, list[Sample]]] = {}
    with service("cpu:1") as ours, redis_server("telemetry") as server:
        unread = _unread(ours)
        for clients in sizes:
            say(f"{clients} clients")
            sides: dict[str, Callable[[], Sample]] = {
                OURS: partial(followed, ours, clients, seconds, unread),
                XREAD: partial(read, server, clients, seconds),
            }
            rounds = scale.rounds_of(2 if clients == max(sizes) else 1, 1)
            samples[clients] = in_turns(sides, rounds, say=say, warm_up=0)  # `_unread` has had a job talk
    most = samples[max(sizes)]
    return [
        *(
            Figure(
                "cores of server and Redis for 1,000 lines a second",
                "",
                {side: [each.cores for each in found] for side, found in sides_of.items()},
                [times_better(XREAD, 5)] if clients == max(CLIENTS) else [],
                size=clients,
                size_of="clients",
            )
            for clients, sides_of in samples.items()
        ),
        *(
            Figure(
                "delay from print to receipt, p99",
                "s",
                {side: [each.found.p99 for each in found] for side, found in sides_of.items()},
                [at_most(0.25)],
                size=clients,
                size_of="clients",
            )
            for clients, sides_of in samples.items()
        ),
        Figure(
            f"connections to Redis for {max(sizes)} clients",
            "",
            {side: [each.connections for each in found] for side, found in most.items()},
            [at_most(2)],
            note="how many more there are than while nobody reads",
        ),
        Figure(
            "bytes that one client gets, for a line",
            "bytes",
            {
                side: [each.found.received / (seconds * talker.BATCHES_A_SECOND * talker.BATCH_LINES) for each in found]
                for side, found in most.items()
            },
        ),
    ]


# -- ours ------------------------------------------------------------------------------------------


def followed(ours: Service, clients: int, seconds: float, unread: int) -> Sample:
    """A job of its own, from its first line to its last. `unread`: how many connections there are without clients."""
    with talking(ours, seconds) as (job, go):
        pids = [ours.pid_of(name) for name in ("api", "control", "telemetry")]
        path = f"/v1/jobs/{job}/events?logs=all"
        wanted = Wanted(ours.port, path, ours.token, clients, _lines(seconds), READ_SECONDS)
        return _measured(wanted, pids, partial(_connections, ours), unread, go, seconds)


def _unread(ours: Service) -> int:
    with talking(ours, 0.1) as (_, go):
        go()
        return _connections(ours)


def _connections(ours: Service) -> int:
    return sum(_clients(_embedded(ours, name)) for name in ("control", "telemetry"))


def _clients(server: Any) -> int:
    """Connections that give commands: those that listen to channels are there with or without readers."""
    return len(server.client_list(_type="normal"))


@contextmanager
def talking(ours: Service, seconds: float) -> Iterator[tuple[str, Callable[[], None]]]:
    """The id of a job that is up, and what makes it talk; in the end it has succeeded.

    Raises:
        TimeoutError: it did not get up, or to its end.
    """
    with tempfile.TemporaryDirectory(prefix="bench-events-") as directory:
        go = Path(directory) / "go"
        job = ours.client.submit_script(talker.__file__, [str(go), str(seconds)])
        deadline = time.monotonic() + STATE_SECONDS
        while job.refresh().state != "running":
            if time.monotonic() > deadline:
                raise TimeoutError(f"job {job.id} is {job.status.state}")
            time.sleep(0.05)
        yield job.id, go.touch
        job.wait(timeout=STATE_SECONDS, check=False)


def _embedded(ours: Service, name: str) -> "redis.Redis":
    from shardyard.service import embedded_redis

    return redis.Redis.from_url(embedded_redis.prepare_redis(name, ours.data_dir, embedded_redis.find_server()).url)


# -- theirs ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Peer:
    port: int
    pid: int


@contextmanager
def xread_service(server: Server) -> Iterator[Peer]:
    command = [sys.executable, xread_api.__file__, server.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Peer(int(process.stdout.readline()), process.pid)
        finally:
            process.kill()


def read(server: Server, clients: int, seconds: float) -> Sample:
    """An application of its own, and the same lines."""
    client: redis.Redis = redis.Redis.from_url(server.url)
    client.delete(xread_api.STREAM)
    with xread_service(server) as theirs:
        count = partial(_clients, client)
        wanted = Wanted(theirs.port, "/events", "", clients, _lines(seconds), READ_SECONDS)
        begin = partial(_write, client, seconds)
        return _measured(wanted, [theirs.pid, server.pid], count, count(), begin, seconds)


def _write(client: "redis.Redis", seconds: float) -> None:
    """What the job of the other side prints and logs, as the events that the service makes of it."""
    number = 0
    for count, lines in enumerate(talker.paced(seconds)):
        at = responses.at(1_795_298_400_000_000)
        told = [stream_events.EventLine(seq=seq, at=at, text=line) for seq, line in enumerate(lines, number + 1)]
        number += len(lines)
        pipe = client.pipeline(transaction=False)
        pipe.xadd(
            xread_api.STREAM,
            {
                "event": "log",
                "data": stream_events.data(stream_events.LogLines(attempt=1, device=0, lines=tuple(told))),
            },
        )
        point = stream_events.Metrics(
            attempt=1, name="loss", first=count, points=(stream_events.MetricPoint(count, 1 / (count + 1), at),)
        )
        pipe.xadd(xread_api.STREAM, {"event": "metric", "data": stream_events.data(point)})
        pipe.execute()


# -- both ------------------------------------------------------------------------------------------


def _lines(seconds: float) -> int:
    return int(seconds * talker.BATCHES_A_SECOND) * talker.BATCH_LINES


def _measured(
    wanted: Wanted,
    pids: list[int],
    connections: Callable[[], int],
    unread: int,
    begin: Callable[[], None],
    seconds: float,
) -> Sample:
    """Let the clients read while `begin` has lines written.

    Raises:
        RuntimeError: a client lacks lines, or has them in another order.
    """
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", stream_readers.__name__]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as readers:
        try:
            assert readers.stdin is not None
            assert readers.stdout is not None
            readers.stdin.write(msgspec.json.encode(wanted) + b"\n")
            readers.stdin.flush()
            if readers.stdout.readline() != b"ready\n":
                raise RuntimeError(f"the clients have no streams: {readers.communicate()[1].decode()[-2000:]}")
            used = sum(map(thread_cpu_seconds, pids))
            begin()
            reading = connections() - unread
            found, errors = readers.communicate(timeout=READ_SECONDS + 30)
            used = sum(map(thread_cpu_seconds, pids)) - used
        finally:
            readers.kill()
    if readers.returncode:
        raise RuntimeError(f"the clients failed: {errors.decode()[-2000:]}")
    return Sample(used / seconds, msgspec.json.decode(found, type=Found), reading)
