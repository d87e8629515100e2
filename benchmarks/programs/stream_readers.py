"""Many clients of one stream of events in one cheap process: it stamps what arrives, and hardly looks into it.

Reads `Wanted` (JSON) from its standard input, prints "ready" when all streams have begun, and `Found` (JSON) when every
client has all lines. Lines begin with a mark and the nanosecond at which they were printed (`talker.py`).
"""

import json
import select
import socket
import sys
import time
from dataclasses import dataclass, field

import msgspec

#: As it stands in JSON, at the beginning of a line's text.
MARK = b'"text":"@@'
DIGITS = 19
#: What may be part of a mark whose rest has not come yet.
TAIL_BYTES = len(MARK) + DIGITS
READ_BYTES = 256 * 1024
CONNECT_SECONDS = 60.0
#: Clients that keep everything; in the end it is read as events, line by line.
KEPT = 3


class Wanted(msgspec.Struct, frozen=True):
    port: int
    path: str
    token: str
    clients: int
    lines: int
    seconds: float  # at most


class Found(msgspec.Struct, frozen=True):
    """Delays in seconds, from the print of the oldest line of what arrived at once until then; what one client got."""

    p50: float
    p99: float
    longest: float
    received: int
    cpu_seconds: float


@dataclass(slots=True)
class StreamClient:
    socket: socket.socket
    lines: int = 0
    received: int = 0
    rest: bytes = b""
    kept: list[bytes] | None = field(default=None)


def main() -> None:
    wanted = msgspec.json.decode(sys.stdin.buffer.readline(), type=Wanted)
    clients = [StreamClient(_opened(wanted)) for _ in range(wanted.clients)]
    for client in clients:
        _await_head(client.socket)
        client.socket.setblocking(False)
    for client in clients[:KEPT]:
        client.kept = []
    print("ready", flush=True)
    delays = sorted(_read(clients, wanted))
    for client in clients[:KEPT]:
        _check(b"".join(client.kept or []), wanted.lines)
    found = Found(
        delays[len(delays) // 2],
        delays[int(len(delays) * 0.99)],
        delays[-1],
        clients[0].received,
        time.process_time(),
    )
    sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")


def _opened(wanted: Wanted) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", wanted.port), timeout=CONNECT_SECONDS)
    connection.sendall(
        f"GET {wanted.path} HTTP/1.1\r\nHost: 127.0.0.1:{wanted.port}\r\n"
        f"Authorization: Bearer {wanted.token}\r\nAccept: text/event-stream\r\n\r\n".encode()
    )
    return connection


def _await_head(connection: socket.socket) -> None:
    head = b""
    while b"\r\n\r\n" not in head:
        received = connection.recv(4096)
        head += received
        if not received:
            raise RuntimeError(f"the stream ended: {head!r}")
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"no stream: {head[:500]!r}")


def _read(clients: list[StreamClient], wanted: Wanted) -> list[float]:
    """Until every client has all lines; the delays."""
    poll = select.epoll()
    of = {client.socket.fileno(): client for client in clients}
    for number in of:
        poll.register(number, select.EPOLLIN)
    delays: list[float] = []
    missing, deadline = len(clients), time.monotonic() + wanted.seconds
    while missing:
        ready = poll.poll(1.0)
        if time.monotonic() > deadline:
            raise TimeoutError(f"{missing} clients lack lines after {wanted.seconds:g} s")
        for number, _ in ready:
            client = of[number]
            received = client.socket.recv(READ_BYTES)
            now = time.time_ns()
            if not received:
                raise RuntimeError(f"a stream ended after {client.lines} lines")
            client.received += len(received)
            if client.kept is not None:
                client.kept.append(received)
            data = client.rest + received
            end = max(0, len(data) - TAIL_BYTES)
            client.rest = data[end:]
            count = data.count(MARK, 0, end + len(MARK) - 1)
            if count:
                first = data.index(MARK) + len(MARK)
                delays.append((now - int(data[first : first + DIGITS])) / 1e9)
                client.lines += count
                missing -= client.lines == wanted.lines
    return delays


def _check(raw: bytes, lines: int) -> None:
    """Raises AssertionError unless the stream's lines are numbered from 1 without a gap or a repeat."""
    body = b""
    while raw:  # the marks of chunks; the head, and what came with it, held no lines
        size, _, raw = raw.partition(b"\r\n")
        length = int(size, 16)
        body, raw = body + raw[:length], raw[length + 2 :]
    numbers = [
        line["seq"]
        for event in body.split(b"\n\n")
        if event.startswith(b"event: log\n")
        for line in json.loads(event.partition(b"\ndata: ")[2].partition(b"\n")[0])["lines"]
    ]
    assert numbers == list(range(1, lines + 1)), f"{len(numbers)} of {lines} lines"


if __name__ == "__main__":
    main()
