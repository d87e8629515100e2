"""Requests as bytes, whole, cut, doubled and wrong: a real process answers each, and its connection is good for the
next request, or closed."""

import json
import re
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.integration.api.conftest import ADMIN
from tests.integration.api.system.test_process import HEAD, Process, add_node, api_process, converse, until
from tests.support.samples.job_records import a_spec_body
from tests.support.servers.redis_server import redis_server

pytestmark = pytest.mark.integration

SECONDS = 60.0
SPEC = json.dumps(a_spec_body()).encode()
WHO = f"Host: localhost\r\nAuthorization: Bearer {ADMIN}\r\n".encode()
LENGTH = b"Content-Length: %d\r\n" % len(SPEC)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
NEXT = b"GET /healthz HTTP/1.1\r\n" + WHO + b"\r\n"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: tuple[bytes, ...]
    body: bytes


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    directory: Path = tmp_path_factory.mktemp("api")
    with redis_server(directory / "redis") as redis, api_process(directory, redis.url) as process:
        add_node(redis)
        process.port()
        yield process
        assert [each for each in process.events() if each["event"] == "request_failed"] == []


def connected(process: Process) -> socket.socket:
    return socket.create_connection(("127.0.0.1", process.port()), timeout=SECONDS)


def read(connection: socket.socket, wanted: int) -> tuple[list[Answer], bool]:
    """So many answers, or those that came before the other side closed; and whether it did."""
    found: list[Answer] = []
    came = b""
    while len(found) < wanted:
        head, end, rest = came.partition(b"\r\n\r\n")
        length = int((re.findall(rb"(?i)content-length: (\d+)", head) or [0])[0])
        if end and len(rest) >= length:
            status, *headers = head.split(b"\r\n")
            found.append(Answer(int(status.split()[1]), tuple(headers), rest[:length]))
            came = rest[length:]
            continue
        data = b""
        with suppress(ConnectionResetError):
            data = connection.recv(65536)
        if not data:
            return found, True
        came += data
    assert came == b"", "more than was asked for"
    return found, False


def request(method: bytes, path: bytes, headers: bytes = b"", body: bytes = b"", version: bytes = b"1.1") -> bytes:
    return method + b" " + path + b" HTTP/" + version + b"\r\n" + WHO + headers + b"\r\n" + body


def statuses_of(process: Process, asked: bytes, answers: int) -> list[int]:
    """How a request and another one behind it on the same connection are answered."""
    with connected(process) as connection:
        connection.sendall(asked + NEXT)
        return [answer.status for answer in read(connection, answers + 1)[0]]


def chunks(body: bytes, size: int, extension: bytes = b"", trailer: bytes = b"") -> bytes:
    parts = (body[at : at + size] for at in range(0, len(body), size))
    return b"".join(b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in parts) + b"0\r\n" + trailer + b"\r\n"


POST = b"/v1/jobs"
WHOLE: dict[str, tuple[bytes, list[int]]] = {
    "as usual": (request(b"POST", POST, LENGTH, SPEC), [201]),
    "in chunks of one byte": (request(b"POST", POST, CHUNKED, chunks(SPEC, 1)), [201]),
    "in chunks with extensions and a trailer": (
        request(b"POST", POST, CHUNKED, chunks(SPEC, 7, b";a=b", b"X-More: 1\r\n")),
        [201],
    ),
    "with an empty body": (request(b"POST", POST, b"Content-Length: 0\r\n"), [400]),
    "without a body": (request(b"POST", POST), [400]),
    "in absolute form": (request(b"POST", b"http://localhost" + POST, LENGTH, SPEC), [201]),
    "expecting to be asked": (request(b"POST", POST, LENGTH + b"Expect: 100-continue\r\n", SPEC), [100, 201]),
    "with one key twice": (
        request(b"POST", POST, LENGTH + b"Idempotency-Key: one\r\nIdempotency-Key: two\r\n", SPEC),
        [201],
    ),
    "with a key that is too long": (
        request(b"POST", POST, LENGTH + b"Idempotency-Key: %b\r\n" % (b"k" * 256), SPEC),
        [422],
    ),
    "with two tokens": (request(b"POST", POST, LENGTH + b"Authorization: Bearer none\r\n", SPEC), [201]),
    "two at once": (request(b"POST", POST, LENGTH, SPEC) + request(b"GET", b"/v1/jobs/none"), [201, 404]),
    "a GET with a body": (request(b"GET", b"/v1/jobs/none", LENGTH, SPEC), [404]),
    "a DELETE": (request(b"DELETE", b"/v1/jobs/none"), [404]),
    "a slash at the end": (request(b"GET", b"/v1/jobs/"), [404]),
    "an escaped slash": (request(b"GET", b"/v1/jobs/none%2fnone"), [404]),
    "an escaped letter": (request(b"POST", b"/v1/job%73", LENGTH, SPEC), [201]),
    "a name that is no UTF-8": (request(b"GET", b"/v1/jobs/%ff%00"), [404]),
    "two slashes": (request(b"GET", b"//v1/jobs/none"), [404]),
    "of nobody": (request(b"POST", POST, LENGTH, SPEC).replace(ADMIN.encode(), b"none"), [401]),
    "of another host": (request(b"POST", POST, b"Host: elsewhere\r\n" + LENGTH, SPEC), [400]),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_request_is_answered_and_so_is_the_next(process: Process, name: str) -> None:
    asked, statuses = WHOLE[name]
    assert statuses_of(process, asked, len(statuses)) == [*statuses, 200]


WRONG: dict[str, bytes] = {
    "two lengths": request(b"POST", POST, LENGTH + b"Content-Length: 3\r\n", SPEC),
    "the same length twice": request(b"POST", POST, LENGTH + LENGTH, SPEC),
    "a negative length": request(b"POST", POST, b"Content-Length: -1\r\n", SPEC),
    "a length that is none": request(b"POST", POST, b"Content-Length: 0x10\r\n", SPEC),
    "length and chunks": request(b"POST", POST, LENGTH + CHUNKED, chunks(SPEC, 9)),
    "a chunk whose size is none": request(b"POST", POST, CHUNKED, b"zz\r\nabc\r\n0\r\n\r\n"),
    "a chunk that is longer than it says": request(b"POST", POST, CHUNKED, b"2\r\nabcdef\r\n0\r\n\r\n"),
    "a body that is longer than it says": request(b"POST", POST, b"Content-Length: 10\r\n", SPEC),
    "a body that is too large": request(b"POST", POST, b"Content-Length: 99999999\r\n", SPEC),
    "chunks that are too large": request(b"POST", POST, CHUNKED, chunks(b" " * 2_000_000, 100_000)),
    "too large and expecting to be asked": request(
        b"POST", POST, b"Content-Length: 99999999\r\nExpect: 100-continue\r\n"
    ),
    "a method that is none": request(b"post", POST, LENGTH, SPEC),
    "a header folded": request(b"POST", POST, LENGTH + b"X-A: b\r\n c\r\n", SPEC),
    "a line break within a header": request(b"POST", POST, LENGTH + b"Idempotency-Key: a\nX: b\r\n", SPEC),
    "no version": b"POST /v1/jobs\r\n" + WHO + b"\r\n",
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_request_is_refused_and_makes_no_job(process: Process, name: str) -> None:
    before = jobs(process)
    with connected(process) as connection:
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(WRONG[name])
        with suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
        answers, _ = read(connection, 10)
    assert {answer.status for answer in answers} in ({400}, {413})
    assert jobs(process) == before


def jobs(process: Process) -> int:
    with connected(process) as connection:
        connection.sendall(request(b"GET", b"/v1/jobs", b"Connection: close\r\n"))
        (answer,), _ = read(connection, 1)
    return len(json.loads(answer.body)["jobs"])


@pytest.mark.parametrize("cut", [1, len(SPEC) // 2, len(SPEC) - 1])
@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_a_body_that_is_cut_in_the_middle_makes_no_job_and_leaves_nothing(
    process: Process, cut: int, reset: bool
) -> None:
    before, files = jobs(process), psutil.Process(process.child.pid).num_fds()
    whole = request(b"POST", b"/v1/jobs", LENGTH, SPEC)
    for headers, body in ((LENGTH, SPEC[:cut]), (CHUNKED, chunks(SPEC, 16)[: cut - len(SPEC) - 8])):
        connection = connected(process)
        connection.sendall(request(b"POST", b"/v1/jobs", headers, body))
        if reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.close()
    until(lambda: psutil.Process(process.child.pid).num_fds() <= files)
    assert jobs(process) == before
    with connected(process) as connection:
        connection.sendall(whole)
        assert [answer.status for answer in read(connection, 1)[0]] == [201]


def test_a_body_that_comes_byte_by_byte_is_one_body(process: Process) -> None:
    key = uuid.uuid4().hex.encode()
    whole = request(b"POST", b"/v1/jobs", LENGTH + b"Idempotency-Key: " + key + b"\r\n", SPEC)
    with connected(process) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(len(whole)):
            connection.sendall(whole[at : at + 1])
            if at % 50 == 0:
                time.sleep(0.001)
        (made,), _ = read(connection, 1)
        connection.sendall(whole)
        (again,), _ = read(connection, 1)
    assert (made.status, again.status) == (201, 200)
    assert json.loads(made.body)["id"] == json.loads(again.body)["id"]


def test_a_body_that_is_too_large_is_refused_by_its_length_and_by_its_bytes(process: Process) -> None:
    declared = converse(process.port(), HEAD + b"Content-Length: 1073741824\r\n\r\n", b"x" * 100_000)
    assert declared.startswith(b"HTTP/1.1 413")
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    chunked = converse(process.port(), HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *[chunk] * 20)
    assert chunked.startswith(b"HTTP/1.1 413")


def test_a_request_whose_head_never_ends_is_cut_off(process: Process) -> None:
    answer = converse(process.port(), b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ", *[b"y" * 65536] * 4)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400")


def test_a_foreign_host_is_refused(process: Process) -> None:
    answer = converse(process.port(), b"GET /healthz HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"bad_host" in answer
