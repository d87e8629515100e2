"""uvicorn's HTTP protocol, with the deadline that it lacks: a request's head must arrive whole, soon, and small."""

import socket
from asyncio import BaseTransport, TimerHandle, Transport
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, cast

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

HEAD_SECONDS = 10.0
MAX_HEAD_BYTES = 64 * 1024
#: A client of a stream that acknowledges nothing for so long, or takes nothing, is gone.
VANISHED_SECONDS = 10
#: How long the end of the process waits for clients that do not read to confirm the end of a TLS connection.
FAREWELL_SECONDS = 1.0
#: When a connection on which nothing is sent is asked whether the other side is there, and how often.
KEEPALIVE = ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 3), (socket.TCP_KEEPCNT, 3))
#: Idle connections that are closed at once for a new one, where there are too many.
CLOSED_AT_ONCE = 32
#: What is copied to go out with its head; more goes out by itself.
MAX_WHOLE_BYTES = 64 * 1024
_CONNECTION, _EXCHANGE = "shardyard.client.connection", "shardyard.exchange"


def watch_client(scope: Mapping[str, Any]) -> None:
    """From now on, and until its answer is complete, notice within `VANISHED_SECONDS` when the client of a request has
    vanished without a word. Without this, a client whose machine died keeps its stream for a quarter of an hour."""
    connection: DeadlineProtocol | None = scope.get("extensions", {}).get(_CONNECTION)
    if connection is not None:
        connection.drop_silent_client(VANISHED_SECONDS)


def is_request_complete(scope: Mapping[str, Any]) -> bool:
    """Whether all of a request is here, its body too."""
    connection: DeadlineProtocol | None = scope.get("extensions", {}).get(_CONNECTION)
    return connection is not None and connection.is_request_complete


def send_whole_answer(scope: Scope, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> bool:
    """Send a whole answer in one write; uvicorn makes two of it, and takes several times as long. False where that is
    not simple, and nothing was sent: uvicorn knows what to do then. `headers` have the body's length, if it has one."""
    exchange: RequestResponseCycle | None = scope.get("extensions", {}).get(_EXCHANGE)
    if exchange is None or exchange.disconnected or exchange.flow.write_paused or len(body) > MAX_WHOLE_BYTES:
        return False
    lines = [name + b": " + value + b"\r\n" for name, value in (*exchange.default_headers, *headers)]
    head = b"".join((STATUS_LINE[status], *lines, b"\r\n"))
    is_sound = head.count(b"\n") == head.count(b"\r") == len(lines) + 2 and b"\0" not in head
    if not (is_sound and exchange.keep_alive and scope["method"] != "HEAD") or b"\r\nconnection: " in head:
        return False
    exchange.response_started = exchange.response_complete = True
    exchange.transport.write(head + body)
    exchange.message_event.set()
    exchange.on_response()
    return True


def enable_keepalive(listener: socket.socket) -> None:
    """Have the system ask silent clients whether they are there; connections inherit it from their listener."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE:
        listener.setsockopt(socket.IPPROTO_TCP, option, value)


class DeadlineProtocol(HttpToolsProtocol):
    """Closes a connection that does not finish a request's head in time (slow loris), or sends a huge one."""

    #: Above it, idle connections are closed for new ones. `api.__main__` sets it, by the descriptors that there are.
    max_connections = 512

    _deadline: TimerHandle | None = None
    _has_user_timeout = False  # it was said when to drop the connection
    _head_bytes = 0
    _in_head = True  # between requests too

    @property
    def is_idle(self) -> bool:
        """Whether it has no request that is being answered."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def is_request_complete(self) -> bool:
        """Whether the newest request is here, its body too."""
        return self._in_head

    def connection_made(self, transport: BaseTransport) -> None:
        if len(self.connections) >= self.max_connections:
            self._make_room()
        super().connection_made(cast(Transport, transport))
        self._start_deadline()

    def _make_room(self) -> None:
        """Close connections on which nothing happens, the oldest first as far as the set of them keeps an order."""
        idle = (one for one in tuple(self.connections) if isinstance(one, DeadlineProtocol) and one.is_idle)
        for one in islice(idle, CLOSED_AT_ONCE):
            one.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {_CONNECTION: self}  # type: ignore[dict-item]  # uvicorn's type is narrower

    def drop_silent_client(self, seconds: float) -> None:
        """Drop the connection when what was sent is not acknowledged, or not read, for so long; 0: when TCP does."""
        self._has_user_timeout = seconds > 0
        connection = self.transport.get_extra_info("socket")  # None: over TLS, of one that is closed
        with suppress(OSError, ValueError, AttributeError):  # it is closed already: uvloop says ValueError
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))

    def shutdown(self) -> None:
        super().shutdown()
        if self.scheme == "https" and self.transport.is_closing():
            self.loop.call_later(FAREWELL_SECONDS, self._abort_unread)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes and self._deadline is None:
            self._start_deadline()  # most heads come in one piece, and need no timer
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The request's head is too large.")

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._cancel_deadline()
        super().on_headers_complete()
        self.scope["extensions"][_EXCHANGE] = self.cycle  # type: ignore[assignment]

    def on_message_complete(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        self._cancel_deadline()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._has_user_timeout and not self.transport.is_closing():
            self.drop_silent_client(0)
        if not self._in_head and not self.transport.is_closing():
            self._start_deadline()  # answered before the body was read: the rest of it must come soon as well

    def _start_deadline(self) -> None:
        self._cancel_deadline()
        self._deadline = self.loop.call_later(HEAD_SECONDS, self._close_overdue)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _abort_unread(self) -> None:
        """End a connection whose client has all that it asked for, but does not say over TLS that it is closing too."""
        if not self.transport.get_write_buffer_size():
            self.transport.abort()

    def _close_overdue(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self.transport.close()
