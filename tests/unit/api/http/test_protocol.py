import asyncio
import logging
import socket
from typing import Any, cast

import pytest
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvloop import loop

from api.http import protocol

LENGTH = (b"content-length", b"4")
DATE = (b"date", b"today")


class Wire:
    """What is written at once is one entry."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.writes.append(data)


def request(method: str = "GET", keep_alive: bool = True) -> tuple[dict[str, Any], RequestResponseCycle, Wire]:
    """A request that waits for its answer, as uvicorn has it."""
    wire, log = Wire(), logging.getLogger("test")
    transport = cast(asyncio.Transport, wire)
    scope: dict[str, Any] = {"type": "http", "method": method, "extensions": {}}
    exchange = RequestResponseCycle(
        cast(Any, scope),
        transport,
        FlowControl(transport),
        log,
        log,
        access_log=False,
        default_headers=[DATE],
        message_event=asyncio.Event(),
        expect_100_continue=False,
        keep_alive=keep_alive,
        on_response=lambda: wire.writes.append(b"(complete)"),
    )
    scope["extensions"]["shardyard.exchange"] = exchange
    return scope, exchange, wire


def test_an_answer_goes_out_in_one_write_and_is_complete() -> None:
    scope, exchange, wire = request()
    assert protocol.send_whole_answer(scope, 200, [LENGTH], b"body")
    assert wire.writes == [b"HTTP/1.1 200 OK\r\ndate: today\r\ncontent-length: 4\r\n\r\nbody", b"(complete)"]
    assert exchange.response_complete
    assert exchange.message_event.is_set()


@pytest.mark.parametrize(
    ("asked", "headers", "body"),
    [
        ({"method": "HEAD"}, [LENGTH], b"body"),
        ({"keep_alive": False}, [LENGTH], b"body"),
        ({}, [LENGTH, (b"connection", b"close")], b"body"),
        ({}, [LENGTH, (b"location", b"/\r\nset-cookie: a=b")], b"body"),
        ({}, [LENGTH, (b"location", b"/\nset-cookie: a=b")], b"body"),
        ({}, [LENGTH, (b"location", b"/\rset-cookie: a=b")], b"body"),
        ({}, [LENGTH, (b"location", b"/\0")], b"body"),
        ({}, [(b"content-length", b"70000")], b"x" * 70_000),
    ],
)
def test_an_answer_that_is_not_simple_is_left_to_uvicorn(
    asked: dict[str, Any], headers: list[tuple[bytes, bytes]], body: bytes
) -> None:
    scope, exchange, wire = request(**asked)
    assert not protocol.send_whole_answer(scope, 200, headers, body)
    assert wire.writes == []
    assert not exchange.response_started


def test_an_answer_is_left_to_uvicorn_while_the_client_does_not_read_and_after_it_has_left() -> None:
    scope, exchange, wire = request()
    exchange.flow.write_paused = True
    assert not protocol.send_whole_answer(scope, 200, [LENGTH], b"body")
    scope, exchange, wire = request()
    exchange.disconnected = True
    assert not protocol.send_whole_answer(scope, 200, [LENGTH], b"body")
    assert wire.writes == []


class Idle:
    """A connection of a server that has as many as it may have."""

    def __init__(self, answering: bool) -> None:
        self.answering = answering
        self.closed = False
        self.transport = self

    def close(self) -> None:
        self.closed = True


def test_idle_connections_are_closed_for_new_ones_and_those_with_a_request_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(protocol, "CLOSED_AT_ONCE", 3)
    connections = []
    for answering in (True, False, False, False, False):
        one = protocol.DeadlineProtocol.__new__(protocol.DeadlineProtocol)
        one.transport = cast(asyncio.Transport, Idle(answering))
        exchange = request()[1]
        one.cycle = exchange if answering else cast(Any, None)
        connections.append(one)
    connections[0].connections = cast(Any, set(connections))
    connections[0]._make_room()
    closed = [cast(Idle, one.transport).closed for one in connections]
    assert (closed[0], sum(closed)) == (False, 3)


class Gone:
    """The transport of a connection that uvloop has closed."""

    def get_extra_info(self, name: str) -> Any:
        return {"socket": loop.PseudoSocket(socket.AF_INET, socket.SOCK_STREAM, 6, -1)}[name]  # type: ignore[attr-defined]  # compiled, and in no stub


def test_a_client_that_is_gone_before_its_stream_begins_is_no_fault_of_the_service() -> None:
    one = protocol.DeadlineProtocol.__new__(protocol.DeadlineProtocol)
    one.transport = cast(asyncio.Transport, Gone())
    protocol.watch_client({"extensions": {protocol._CONNECTION: one}})
