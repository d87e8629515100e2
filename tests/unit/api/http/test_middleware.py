import asyncio
import json
import math
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from api.http.middleware import (
    BodyLimits,
    BodyLimitsByPath,
    RequestLimitsMiddleware,
    allowed_hosts,
    host_name,
)
from api.http.prometheus import ProcessMetrics
from jobs.model.settings import Settings
from shardyard.contract.errors import ShardyardError

HOST = (b"host", b"localhost:8000")


async def read_body(_scope: Scope, receive: Receive, send: Send) -> None:
    """An application that reads a whole body and answers 200, or the code of the error that stopped it."""
    answer = b"ok"
    try:
        while (await receive()).get("more_body"):
            pass
    except ShardyardError as error:
        answer = error.code.encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": answer})


def call(
    receive: Callable[[], Awaitable[Message]],
    headers: list[tuple[bytes, bytes]] | None = None,
    seconds: float = 5,
    total: float = 5,
    pace: float = math.inf,
    path: str = "/v1/jobs",
) -> tuple[int, bytes]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "path": path, "method": "POST", "headers": [HOST] if headers is None else headers}
    bodies = BodyLimitsByPath(BodyLimits(1000, seconds, total, pace), {"/v1/bundles": BodyLimits(5000, seconds, total)})
    asyncio.run(
        RequestLimitsMiddleware(read_body, {"localhost", "::1"}, bodies, ProcessMetrics())(scope, receive, send)
    )
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


def chunks(*bodies: bytes) -> Callable[[], Awaitable[Message]]:
    left = list(bodies)

    async def receive() -> Message:
        body = left.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(left)}

    return receive


async def never() -> Message:
    await asyncio.Event().wait()
    raise AssertionError


def code(answer: tuple[int, bytes]) -> tuple[int, Any]:
    return answer[0], json.loads(answer[1])["code"]


def test_a_body_within_the_limit_passes() -> None:
    assert call(chunks(b"x" * 600, b"x" * 400)) == (200, b"ok")


def test_a_body_without_a_length_is_counted_while_it_is_read() -> None:
    assert call(chunks(b"x" * 600, b"x" * 401)) == (200, b"body_too_large")


def test_a_declared_length_over_the_limit_is_refused_before_anything_is_read() -> None:
    assert code(call(never, [HOST, (b"content-length", b"1001")])) == (413, "body_too_large")
    assert code(call(never, [HOST, (b"content-length", b"9" * 5000)])) == (413, "body_too_large")


def test_a_body_that_pauses_too_long_is_given_up() -> None:
    assert call(never, seconds=0.01) == (200, b"body_timeout")


def test_a_body_that_drips_is_given_up_when_its_whole_time_is_over() -> None:
    async def drip() -> Message:
        await asyncio.sleep(0.002)
        return {"type": "http.request", "body": b"x", "more_body": True}

    assert call(drip, seconds=5, total=0.02) == (200, b"body_timeout")


def test_a_body_that_keeps_its_pace_may_take_longer() -> None:
    left = [b"x"] * 9

    async def steady() -> Message:
        if len(left) < 9:
            await asyncio.sleep(0.01)
        return {"type": "http.request", "body": left.pop(), "more_body": bool(left)}

    assert call(steady, total=0.02, pace=0.01) == (200, b"ok")
    left = [b"x"] * 9
    assert call(steady, total=0.02) == (200, b"body_timeout")


def test_a_path_may_have_limits_of_its_own() -> None:
    assert call(chunks(b"x" * 1001)) == (200, b"body_too_large")
    assert call(chunks(b"x" * 5000), path="/v1/bundles") == (200, b"ok")
    assert call(chunks(b"x" * 5001), path="/v1/bundles") == (200, b"body_too_large")
    assert code(call(never, [HOST, (b"content-length", b"5001")], path="/v1/bundles")) == (413, "body_too_large")


@pytest.mark.parametrize("host", [b"evil.example", b"localhost.evil.example:8000", b"", b"[::2]:80", b"127.0.0.1"])
def test_a_host_that_is_not_ours_is_refused(host: bytes) -> None:
    assert code(call(never, [(b"host", host)])) == (400, "bad_host")


def test_a_request_needs_exactly_one_host() -> None:
    assert code(call(never, [])) == (400, "bad_host")
    assert code(call(never, [HOST, HOST])) == (400, "bad_host")


@pytest.mark.parametrize("host", [b"localhost", b"LOCALHOST:99", b"localhost.", b"[::1]", b"[::1]:8000"])
def test_a_host_that_is_ours_passes_with_any_port(host: bytes) -> None:
    assert call(chunks(b""), [(b"host", host)]) == (200, b"ok")


def test_too_many_or_too_long_headers_are_refused() -> None:
    assert code(call(never, [HOST, *[(b"x", b"y")] * 64])) == (431, "headers_too_large")
    assert code(call(never, [HOST, (b"x", b"y" * 40_000)])) == (431, "headers_too_large")


def test_the_allowed_hosts_are_loopback_the_listening_address_and_those_named_by_the_operator() -> None:
    settings = Settings(host="10.0.0.5", allowed_hosts="Train.Example, other ,")
    assert allowed_hosts(settings) == {"localhost", "127.0.0.1", "::1", "10.0.0.5", "train.example", "other"}


def test_a_host_header_is_read_without_its_port() -> None:
    assert [host_name(h) for h in ("a:1", "A", "[::1]:80", "[::1]", "")] == ["a", "a", "::1", "::1", ""]
