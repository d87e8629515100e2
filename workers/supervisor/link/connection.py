"""An authenticated connection between two supervisors, once both have proven who they are."""

import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from workers.supervisor.link.errors import LinkClosed
from workers.supervisor.link.framing import LinkFrameReader, LinkFrameWriter
from workers.supervisor.link.handshake import SessionKeys
from workers.supervisor.link.messages import (
    Beat,
    BeatReply,
    Message,
    decode_from_follower,
    decode_from_leader,
    encode,
)

BEAT_SECONDS = 1.0
#: Read by one call, so that one busy follower does not keep the leader from the others.
READ_BYTES = 256 * 1024
#: What may wait for a peer that does not read. More of it means that the peer hangs.
MAX_PENDING_BYTES = 32 * 1024 * 1024
#: What is read of a peer that is gone. The system's buffer of a connection holds less.
MAX_REST_BYTES = 64 * 1024 * 1024
#: Answers that the offset of the clocks is chosen from: the last minute's, since clocks drift.
OFFSET_SAMPLES = 64

#: After a cut, TCP tries again at last when twice the cut has passed; where the system can be told, within this time.
RETRY_MILLISECONDS = 1000
TCP_RTO_MAX_MS = 44  # of linux/tcp.h

#: Keepalive only tidies up behind a peer that vanished; that a link is silent is seen sooner by its beats.
_KEEPALIVE = {socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 6}

Decode = Callable[[bytes], Message | Beat | BeatReply]


class Link:
    """Non-blocking, and used by one thread. Its descriptor stays open until `close`, whatever fails before."""

    def __init__(
        self, connection: socket.socket, peer: str, send_key: bytes, receive_key: bytes, decode: Decode
    ) -> None:
        self.peer = peer
        self.bytes_sent = 0
        self.bytes_received = 0
        self._socket = connection
        self._writer = LinkFrameWriter(send_key)
        self._reader = LinkFrameReader(receive_key)
        self._decode = decode
        self._pending = bytearray()
        self._failure = ""  # why the link is closed
        self._unsendable = ""  # why nothing can be sent any more, while there may be something left to read
        self._heard_at = time.monotonic()
        self._beat_at = float("-inf")
        self._offsets: deque[tuple[float, float]] = deque(maxlen=OFFSET_SAMPLES)  # (round trip, offset)

    @classmethod
    def to_follower(cls, connection: socket.socket, peer: str, keys: SessionKeys) -> "Link":
        """The leader's side of a connection."""
        prepare_socket(connection)
        return cls(connection, peer, keys.to_follower, keys.to_leader, decode_from_follower)

    @classmethod
    def to_leader(cls, connection: socket.socket, peer: str, keys: SessionKeys) -> "Link":
        """A follower's side of a connection."""
        prepare_socket(connection)
        return cls(connection, peer, keys.to_leader, keys.to_follower, decode_from_leader)

    def fileno(self) -> int:
        return self._socket.fileno()

    # -- sending ---------------------------------------------------------------------------------------

    def send(self, message: Message | Beat | BeatReply) -> None:
        """Send what the connection takes now, and keep the rest for `flush`.

        Raises:
            LinkClosed: the peer is gone, or has not read for so long that more than `MAX_PENDING_BYTES` wait.
            ValueError: the message is larger than a frame.
        """
        self._require_sendable()
        self._pending += self._writer.make_frame(encode(message))
        self.flush()
        if len(self._pending) > MAX_PENDING_BYTES:
            raise self._fail(f"{self.peer} does not read: {len(self._pending)} bytes wait for it")

    def flush(self) -> None:
        """Send more of what waits.

        Raises:
            LinkClosed: the peer is gone. `receive_rest` has what it said before.
        """
        self._require_sendable()
        try:
            while self._pending:
                with memoryview(self._pending) as waiting:
                    sent = self._socket.send(waiting)
                del self._pending[:sent]
                self.bytes_sent += sent
        except BlockingIOError:
            return
        except OSError as error:
            self._pending.clear()
            self._unsendable = self._tell(error)
            raise LinkClosed(self._unsendable) from error

    @property
    def pending_bytes(self) -> int:
        return len(self._pending)

    def beat_if_due(self, now: float) -> None:
        """Send a beat every `BEAT_SECONDS`. `now` is the monotonic clock. Raises LinkClosed as `send`."""
        self._require_sendable()
        if now - self._beat_at >= BEAT_SECONDS:
            self._beat_at = now
            self.send(Beat(time.monotonic()))

    # -- receiving -------------------------------------------------------------------------------------

    def receive(self) -> list[Message]:
        """The messages that are complete now, of at most `READ_BYTES` more bytes. Beats are answered here.

        Raises:
            LinkClosed: the peer closed the connection or is gone, or sent what cannot be believed. What came in good
                order before is returned first; the next call raises.
        """
        self._require_open()
        data = self._read()
        found: list[Message] = []
        try:
            for payload in self._reader.feed(data):
                self._heard_at = time.monotonic()
                self._take(self._decode(payload), found)
        except ValueError as error:
            failure = self._fail(f"{self.peer} sent invalid data: {error}")
            if not found:
                raise failure from error
        return found

    def receive_rest(self) -> list[Message]:
        """What a peer that is gone had said before: for whoever learned by sending that it is. Raises nothing."""
        found: list[Message] = []
        with suppress(LinkClosed):
            for _ in range(MAX_REST_BYTES // READ_BYTES):
                before = self.bytes_received
                found += self.receive()
                if self.bytes_received == before:
                    break
        return found

    @property
    def has_hung_up(self) -> bool:
        """Whether the peer is gone and has left nothing to read."""
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    @property
    def seconds_since_heard(self) -> float:
        """Since the last authentic message came: other bytes, which anybody on the network can send, do not count."""
        return time.monotonic() - self._heard_at

    @property
    def clock_offset(self) -> float | None:
        """How many seconds the peer's clock is ahead, by the answer of the last minute that took the shortest time."""
        return min(self._offsets)[1] if self._offsets else None

    def close(self) -> None:
        """Close the connection; what the system has taken to send still goes out. May be called twice."""
        self._failure = self._failure or "it was closed on this side"
        self._pending.clear()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            self._socket.recv(READ_BYTES)  # what is left unread would make the system drop what it has to send
        self._socket.close()

    def _read(self) -> bytes:
        try:
            data = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return b""
        except OSError as error:
            raise self._fail(self._tell(error)) from error
        if not data:
            where = " in the middle of a message" if self._reader.is_inside_frame else ""
            raise self._fail(f"{self.peer} closed the connection{where}")
        self.bytes_received += len(data)
        return data

    def _take(self, message: Message | Beat | BeatReply, found: list[Message]) -> None:
        match message:
            case Beat(sent=sent):
                with suppress(LinkClosed):  # a peer that left has said more, perhaps; whoever sends learns of it
                    self.send(BeatReply(sent, time.time()))
            case BeatReply():
                self._note_offset(message)
            case _:
                found.append(message)

    def _note_offset(self, reply: BeatReply) -> None:
        round_trip = time.monotonic() - reply.sent
        if round_trip >= 0:
            self._offsets.append((round_trip, reply.at - (time.time() - round_trip / 2)))

    def _require_open(self) -> None:
        if self._failure:
            raise LinkClosed(self._failure)

    def _require_sendable(self) -> None:
        if why := self._failure or self._unsendable:
            raise LinkClosed(why)

    def _fail(self, why: str) -> LinkClosed:
        """Close the link for every later call. The descriptor stays, as others may still watch it."""
        self._failure = why
        self._pending.clear()
        return LinkClosed(why)

    def _tell(self, error: OSError) -> str:
        return f"the connection to {self.peer} broke: {error.strerror or error}"


def prepare_socket(connection: socket.socket) -> None:
    """Send small messages at once, and notice one day that a peer vanished."""
    connection.setblocking(False)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    with suppress(OSError):  # Linux knows it from 6.15
        connection.setsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS, RETRY_MILLISECONDS)
