"""Requests over raw keep-alive connections, as fast as they are answered: the load of the HTTP benchmarks.

Reads a plan (`benchmarks.harness.http.RequestPlan`, JSON) from its standard input and prints what it measured. A
process of its own, so that its time is not that of what is measured; requests are made before the first is sent, and of
an answer only the status and the length are looked at.
"""

import select
import socket
import sys
import time
from collections.abc import Iterator
from itertools import count, cycle

import msgspec

from benchmarks.harness.http import KEY_MARK, Load, RequestPlan, quantile
from benchmarks.harness.machine import thread_cpu_seconds

ANSWER_SECONDS = 30.0
WARM_UP_SECONDS = 0.2


class Connection:
    """One that has at most one request on the way."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sent_at = 0.0
        self._got = b""

    def send(self, request: bytes) -> None:
        self.sent_at = time.perf_counter()
        self.socket.sendall(request)

    def receive(self) -> int | None:
        """The status, when the whole answer is there.

        Raises:
            ConnectionError: the server has closed the connection.
        """
        data = self.socket.recv(262_144)
        if not data:
            raise ConnectionError("the server closed a connection in the middle of an answer")
        self._got = self._got + data if self._got else data
        end = self._got.find(b"\r\n\r\n")
        if end < 0 or len(self._got) < end + 4 + _length(self._got[:end].lower()):
            return None
        status, self._got = int(self._got[9:12]), b""
        return status


def _length(head: bytes) -> int:
    at = head.find(b"content-length:")
    return 0 if at < 0 else int(head[at + 15 :].partition(b"\r\n")[0])


def main() -> None:
    plan = msgspec.json.decode(sys.stdin.buffer.read(), type=RequestPlan)
    requests = _requests(plan.requests)
    connections = {}
    poll = select.epoll()
    for _ in range(plan.concurrency):
        connection = Connection(plan.port)
        connections[connection.socket.fileno()] = connection
        poll.register(connection.socket, select.EPOLLIN)
        connection.send(next(requests))
    _drive(poll, connections, requests, WARM_UP_SECONDS, plan.status)
    server, own = [thread_cpu_seconds(pid) for pid in plan.pids], time.process_time()
    began = time.perf_counter()
    waits = sorted(_drive(poll, connections, requests, plan.seconds, plan.status))
    seconds = time.perf_counter() - began
    used = [thread_cpu_seconds(pid) - before for pid, before in zip(plan.pids, server, strict=True)]
    load = Load(len(waits), seconds, quantile(waits, 0.5), quantile(waits, 0.99), used, time.process_time() - own)
    sys.stdout.buffer.write(msgspec.json.encode(load))


def _requests(texts: list[str]) -> Iterator[bytes]:
    """Those of the plan over and over, each mark in them replaced by a number that never comes again."""
    parts = [text.encode("latin-1").split(KEY_MARK.encode()) for text in texts]
    for number, request in zip(count(time.time_ns()), cycle(parts), strict=False):
        yield (b"%016x" % number).join(request)


def _drive(
    poll: select.epoll, connections: dict[int, Connection], requests: Iterator[bytes], seconds: float, status: int
) -> list[float]:
    """Seconds from each request to the end of its answer. Every connection has a request on the way, at the end too.

    Raises:
        RuntimeError: an answer had another status, or none came in time.
    """
    waits: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        ready = poll.poll(ANSWER_SECONDS)
        if not ready:
            raise RuntimeError(f"no answer within {ANSWER_SECONDS:g} s")
        for descriptor, _ in ready:
            connection = connections[descriptor]
            answered = connection.receive()
            if answered is None:
                continue
            if answered != status:
                raise RuntimeError(f"answered with status {answered}, not {status}")
            waits.append(time.perf_counter() - connection.sent_at)
            connection.send(next(requests))
    return waits


if __name__ == "__main__":
    main()
