"""uvicorn's HTTP protocol, with the deadline that it lacks: a request's head must arrive whole, soon, and small."""

import socket
from asyncio import BaseTransport, TimerHandle, Transport
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_SECONDS = 10.0
MAX_HEAD_BYTES = 64 * 1024
#: A client of a stream that acknowledges nothing for so long, or takes nothing, is gone.
VANISHED_SECONDS = 10
#: When a connection on which nothing is sent is asked whether the other side is there, and how often.
KEEPALIVE = ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 3), (socket.TCP_KEEPCNT, 3))
_CONNECTION = "shardyard.connection"
#: What comes before the head of an answer, and what is in one whose body comes at once.
_CONTINUE, _LENGTH = b"HTTP/1.1 100 ", b"\r\ncontent-length: "


def watch_client(scope: Mapping[str, Any]) -> None:
    """From now on, and until its answer is complete, notice within `VANISHED_SECONDS` when the client of a request has
    vanished without a word. Without this, a client whose machine died keeps its stream for a quarter of an hour."""
    connection: DeadlineProtocol | None = scope.get("extensions", {}).get(_CONNECTION)
    if connection is not None:
        connection.give_up_after(VANISHED_SECONDS)


def has_come(scope: Mapping[str, Any]) -> bool:
    """Whether all of a request is here, its body too."""
    connection: DeadlineProtocol | None = scope.get("extensions", {}).get(_CONNECTION)
    return connection is not None and connection.has_come


def ask_if_alive(listener: socket.socket) -> None:
    """Have the system ask silent clients whether they are there; connections inherit it from their listener."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE:
        listener.setsockopt(socket.IPPROTO_TCP, option, value)


class OneWrite:
    """A transport that keeps the head of an answer until its body comes, so that both go out in one write. That of a
    stream, whose body has no length, goes out at once."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._head = b""
        self.awaits_head = True

    def write(self, data: bytes) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.writelines((head, data))
        elif self.awaits_head and not data.startswith(_CONTINUE):
            self.awaits_head = False
            if _LENGTH in data:
                self._head = data
            else:
                self._transport.write(data)
        else:
            self._transport.write(data)

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def flush(self) -> None:
        if self._head:
            self.write(b"")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class DeadlineProtocol(HttpToolsProtocol):
    """Closes a connection that does not finish a request's head in time (slow loris), or sends a huge one."""

    _deadline: TimerHandle | None = None
    _gives_up = False  # it was said when to drop the connection
    _head_bytes = 0
    _in_head = True  # between requests too

    @property
    def has_come(self) -> bool:
        """Whether the newest request is here, its body too."""
        return self._in_head

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(cast(Transport, OneWrite(cast(Transport, transport))))
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {_CONNECTION: self}  # type: ignore[dict-item]  # uvicorn's type is narrower

    def give_up_after(self, seconds: float) -> None:
        """Drop the connection when what was sent is not acknowledged, or not read, for so long; 0: when TCP does."""
        self._gives_up = seconds > 0
        connection = self.transport.get_extra_info("socket")
        with suppress(OSError):  # it is closed already
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes and self._deadline is None:
            self._arm()  # most heads come in one piece, and need no timer
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The request's head is too large.")

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._disarm()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        self._disarm()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        written = cast(OneWrite, self.transport)
        written.flush()  # of an answer without a body
        written.awaits_head = True
        super().on_response_complete()
        if self._gives_up and not self.transport.is_closing():
            self.give_up_after(0)
        if not self._in_head and not self.transport.is_closing():
            self._arm()  # answered before the body was read: the rest of it must come soon as well

    def _arm(self) -> None:
        self._disarm()
        self._deadline = self.loop.call_later(HEAD_SECONDS, self._expire)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expire(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self.transport.close()
