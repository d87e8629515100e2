"""Limits that every request passes first: hosts, headers, and the size and pace of bodies.

Plain ASGI around the whole framework, so that it also covers what that does by itself.
"""

import asyncio
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http import problems
from api.http.conventions.request_ids import HEADER as REQUEST_ID
from api.http.conventions.request_ids import choose_request_id
from api.http.problems import BadHost, BodyTimeout, HeadersTooLarge
from api.http.prometheus import ProcessMetrics
from api.http.protocol import is_request_complete, send_whole_answer
from api.http.request_turns import end_turn
from jobs.model.settings import Settings
from jobs.support.logging_config import current_request
from shardyard.contract.errors import BodyTooLarge, ShardyardError

MAX_HEADERS = 64
MAX_HEADER_BYTES = 32 * 1024
#: The longest silence within a body, and the longest that a whole body may take.
READ_SECONDS = 10.0
BODY_SECONDS = 60.0
#: A large body may take longer, as long as it comes at this pace.
MIN_UPLOAD_BYTES_PER_SECOND = 64 * 1024

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})

#: Where a request has the header fields about the limits on requests, which its answer gets.
RATE_LIMIT_FIELDS = "shardyard.rate_limit"

_WITHOUT_BODY = (204, 304)
#: What an answer says that does not say otherwise.
_PRIVATE_HEADERS = ((b"cache-control", b"private, no-cache"), (b"x-content-type-options", b"nosniff"))


def allowed_hosts(settings: Settings) -> frozenset[str]:
    """Names in the Host header that this service answers to, lower case and without ports."""
    further = (name.strip().lower() for name in settings.allowed_hosts.split(","))
    return LOOPBACK_NAMES | {settings.host.lower().strip("[]")} | {name.strip("[]") for name in further if name}


def host_name(header: str) -> str:
    """The name in a Host header: without the port, and an IPv6 address without its brackets."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower().rstrip(".")


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """How many bytes a body may have, how long it may pause, and how long it may take: `seconds`, and one more for
    each `pace` bytes that have come."""

    max_bytes: int
    silence: float = READ_SECONDS
    seconds: float = BODY_SECONDS
    pace: float = math.inf


@dataclass(frozen=True, slots=True)
class BodyLimitsByPath:
    """The limits of most bodies, and those of the paths, or of all with a prefix, that have their own."""

    default: BodyLimits
    by_path: Mapping[str, BodyLimits] = field(default_factory=dict)
    by_prefix: Mapping[str, BodyLimits] = field(default_factory=dict)

    def limits_for(self, path: str) -> BodyLimits:
        own = self.by_path.get(path)
        if own is not None:
            return own
        return next((own for prefix, own in self.by_prefix.items() if path.startswith(prefix)), self.default)


class RequestLimitsMiddleware:
    """What every request passes first and every answer last. Refuses a request that breaks a limit; the body is counted
    and timed while it is read. Answers are private, and counted under their route."""

    def __init__(
        self, app: ASGIApp, hosts: Iterable[str], bodies: BodyLimitsByPath, monitoring: ProcessMetrics
    ) -> None:
        self._app = app
        self._hosts = frozenset(hosts)
        self._bodies = bodies
        self._monitoring = monitoring

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500
        head: Message | None = None
        request_id = choose_request_id(scope["headers"])

        async def answered(message: Message) -> None:
            nonlocal status, head
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = headers = _with_private_headers(list(message.get("headers", ())))
                headers.extend(scope.get(RATE_LIMIT_FIELDS, ()))
                headers.append((REQUEST_ID, request_id.encode()))
                if status in _WITHOUT_BODY or any(name == b"content-length" for name, _ in headers):
                    head = message  # the rest comes at once: all of it is sent together
                    return
            elif head is not None:
                start, head = head, None
                body = message.get("body", b"")
                if not message.get("more_body", False) and send_whole_answer(scope, status, start["headers"], body):
                    return
                await send(start)
            await send(message)

        served = current_request.set(request_id)
        app, body = self._app, self._bodies.limits_for(scope["path"])
        try:
            self._check_head(scope["headers"], body)
        except ShardyardError as error:
            app = problems.error_response(error, scope["path"])
        try:
            # A body that is here as a whole is not waited for.
            await app(scope, _limit_body(receive, body, timed=not is_request_complete(scope)), answered)
        finally:
            current_request.reset(served)
            end_turn(scope)
            route = getattr(scope.get("route"), "path", "other")
            self._monitoring.observe_request(scope["method"], route, status, time.perf_counter() - started)

    def _check_head(self, headers: list[tuple[bytes, bytes]], body: BodyLimits) -> None:
        if len(headers) > MAX_HEADERS or sum(len(name) + len(value) for name, value in headers) > MAX_HEADER_BYTES:
            raise HeadersTooLarge(f"at most {MAX_HEADERS} headers of {MAX_HEADER_BYTES} bytes together are read")
        hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
        if len(hosts) != 1 or host_name(hosts[0]) not in self._hosts:
            raise BadHost(
                f"this service does not answer to the host {(hosts or ['(none)'])[0][:100]!r}; "
                "its operator can add names with SHARDYARD_ALLOWED_HOSTS"
            )
        for name, value in headers:
            if name == b"content-length" and value.isdigit() and int(value[:20]) > body.max_bytes:
                raise _too_large(body)


def _with_private_headers(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Answers are private unless they say otherwise: no shared cache stores them, browsers ask before they reuse them,
    and no content type is guessed."""
    named = {name for name, _ in headers}
    return headers + [header for header in _PRIVATE_HEADERS if header[0] not in named]


def _limit_body(receive: Receive, limits: BodyLimits, *, timed: bool) -> Receive:
    loop = asyncio.get_running_loop()
    read = 0
    more = True
    start = loop.time()

    async def in_time() -> Message:
        deadline = start + limits.seconds + read / limits.pace
        try:
            async with asyncio.timeout_at(min(deadline, loop.time() + limits.silence)):
                return await receive()
        except TimeoutError:
            raise BodyTimeout(
                f"send the body without pauses of {limits.silence:g} s, in {limits.seconds:g} s at most"
                + (f" and one more for each {limits.pace:g} bytes" if limits.pace < math.inf else "")
            ) from None

    async def limited() -> Message:
        nonlocal read, more
        if not more:  # what follows a body is the wait for the client to leave: no limit on that
            return await receive()
        message = await (in_time() if timed else receive())
        read += len(message.get("body", b""))
        more = message.get("more_body", False)
        if read > limits.max_bytes:
            raise _too_large(limits)
        return message

    return limited


def _too_large(limits: BodyLimits) -> BodyTooLarge:
    return BodyTooLarge(f"a body may have {limits.max_bytes} bytes at most")
