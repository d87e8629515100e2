"""Row 26: clients that are slow, huge or deep."""

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from tests.faults.scene.checker import Footprint
from tests.faults.scene.site import TOKEN, Site
from tests.integration.workers.service import eventually

pytestmark = [pytest.mark.integration, pytest.mark.faults]

#: Slower than this an answer to a hostile body would hold up others.
ANSWER_SECONDS = 10.0
HEAD = f"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n".encode()


def converse(port: int, *parts: bytes) -> bytes:
    """Send bytes as they are; what comes back until the other side closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        with suppress(BrokenPipeError, ConnectionResetError):
            for part in parts:
                connection.sendall(part)
        answer = b""
        with suppress(ConnectionResetError):
            while data := connection.recv(65536):
                answer += data
        return answer


def whole(body: bytes) -> bytes:
    return HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body


@pytest.fixture
def footprint(site: Site) -> Footprint:
    site.caller.call("GET", "/v1/jobs")
    return Footprint.of(site.api.pid, site.server.client())


def came_back(site: Site, before: Footprint) -> None:
    def now() -> list[str]:
        return Footprint.of(site.api.pid, site.server.client()).grown(before)

    try:
        eventually(lambda: not now(), "all came back")
    except AssertionError:
        raise AssertionError("\n".join(now())) from None


def test_row_26_a_gigabyte_is_refused_by_its_length_and_by_its_bytes(site: Site, footprint: Footprint) -> None:
    began = time.monotonic()
    declared = converse(site.api.port, HEAD + b"Content-Length: 1073741824\r\n\r\n", b"x" * 100_000)
    assert declared.startswith(b"HTTP/1.1 413")
    chunk = b"100000\r\n" + b"x" * (1 << 20) + b"\r\n"
    chunked = converse(site.api.port, HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *[chunk] * 1024)
    assert chunked.startswith(b"HTTP/1.1 413")
    assert time.monotonic() - began < ANSWER_SECONDS
    came_back(site, footprint)


@pytest.mark.parametrize(
    "body",
    [
        json.dumps({f"k{number}": 1 for number in range(70_000)}).encode(),  # as many as fit into a body
        b'{"program":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b'{"program":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
        b'{"name": "' + b"\\u0000" * 100_000 + b'"}',
    ],
    ids=["keys", "lists", "objects", "nulls"],
)
def test_row_26_hostile_json_is_refused_soon(site: Site, footprint: Footprint, body: bytes) -> None:
    began = time.monotonic()
    assert converse(site.api.port, whole(body)).startswith((b"HTTP/1.1 400", b"HTTP/1.1 422"))
    assert time.monotonic() - began < ANSWER_SECONDS
    came_back(site, footprint)


def test_row_26_a_million_keys_are_more_than_a_body_may_have(site: Site) -> None:
    body = json.dumps({f"k{number}": 1 for number in range(1_000_000)}).encode()
    assert converse(site.api.port, whole(body)).startswith(b"HTTP/1.1 413")


@pytest.mark.slow
def test_row_26_two_hundred_slow_clients_are_cut_off_while_others_are_served(site: Site, footprint: Footprint) -> None:
    def dawdle(number: int) -> bytes:
        if number % 2:
            return converse(site.api.port, b"GET /healthz HTTP/1.1\r\nHost: loc")
        return converse(site.api.port, HEAD + b"Content-Length: 10\r\n\r\nx")

    began = time.monotonic()
    with ThreadPoolExecutor(200) as threads:
        answers = [threads.submit(dawdle, number) for number in range(200)]
        while not all(answer.done() for answer in answers):
            asked = time.monotonic()
            assert site.caller.call("GET", "/v1/jobs").status_code == 200
            assert time.monotonic() - asked < 5
            time.sleep(0.5)
    assert time.monotonic() - began < 60
    assert {answer.result()[:12] for answer in answers} == {b"", b"HTTP/1.1 408"}
    came_back(site, footprint)
