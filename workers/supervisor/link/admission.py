"""Admission by the leader: listens on its node's address until all parts of the attempt have joined, not later."""

import secrets
import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import structlog

from jobs.store.attempts import AttemptId
from workers.supervisor.link.connection import Link
from workers.supervisor.link.errors import JoinInterrupted, NotJoined
from workers.supervisor.link.handshake import (
    HANDSHAKE_SECONDS,
    MAX_HELLO_BYTES,
    SECRET_BYTES,
    BadHandshake,
    Endpoint,
    Transcript,
    hello_size,
    make_answer,
    make_challenge,
    make_nonce,
    read_hello,
    require_address,
)
from workers.supervisor.link.messages import PartHello, decode_hello, this_version
from workers.supervisor.rendezvous import bind_port

log = structlog.get_logger(__name__)

#: Handshakes at a time.
MAX_HANDSHAKES = 64
#: Refusals that are logged one by one; the rest is counted.
MAX_LOGGED_REFUSALS = 20
#: How often `is_interrupted` is asked.
POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class ExpectedPart:
    node: str
    ranks: int


class LinkListener:
    """Binds a free port of `address`, IPv4 or IPv6, and makes the secret of this attempt. To be made when the ranks are
    forked, whose memory would have the secret otherwise.

    Raises ValueError: `address` is not the address of one host. OSError: it is not one of this host.
    """

    def __init__(self, address: str, attempt: AttemptId) -> None:
        self._attempt = attempt
        self._secret = secrets.token_bytes(SECRET_BYTES)
        self._socket = bind_port(require_address(address))
        self._socket.setblocking(False)
        self.endpoint = str(Endpoint(address, self._socket.getsockname()[1], self._secret))

    def admit(
        self, expected: Mapping[int, ExpectedPart], deadline: float, is_interrupted: Callable[[], bool]
    ) -> dict[int, Link]:
        """Wait until every expected part has joined. `deadline` is by the monotonic clock.

        Raises:
            NotJoined: at the deadline. Links of the other parts are closed.
            JoinInterrupted: `is_interrupted` said so. All links are closed.
            ValueError: two parts are expected from one node.
        """
        nodes = [part.node for part in expected.values()]
        if len(set(nodes)) < len(nodes):
            raise ValueError(f"two parts of {self._attempt} are on one node: {', '.join(nodes)}")
        return _Admission(self._socket, self._secret, str(self._attempt), expected).run(deadline, is_interrupted)

    def close(self) -> None:
        """Stop listening, as soon as all have joined: nobody else has business here."""
        self._socket.close()


@dataclass(eq=False, slots=True)
class _Caller:
    """A connection that has not proven anything yet."""

    connection: socket.socket
    address: str
    overdue_at: float
    nonce: bytes = field(default_factory=make_nonce)
    received: bytes = b""

    def read(self) -> bool:
        """Read more of the hello; whether it is whole. Raises BadHandshake: it cannot become one. OSError."""
        # One byte more than a hello may have, so that a longer one is noticed: no caller makes the leader read more.
        data = self.connection.recv(MAX_HELLO_BYTES + 1 - len(self.received))
        if not data:
            raise BadHandshake("it left during the handshake")
        self.received += data
        return len(self.received) == hello_size(self.received)


class _Admission:
    """One wait for the parts of an attempt."""

    def __init__(
        self, listener: socket.socket, secret: bytes, attempt: str, expected: Mapping[int, ExpectedPart]
    ) -> None:
        self._listener = listener
        self._secret = secret
        self._attempt = attempt
        self._expected = expected
        self._selector = selectors.DefaultSelector()
        self._callers: dict[_Caller, None] = {}  # in the order of their arrival
        self._joined: dict[int, Link] = {}
        self._refusals: dict[int, str] = {}  # the last one of each part that proved who it is
        self._refused = 0

    def run(self, deadline: float, is_interrupted: Callable[[], bool]) -> dict[int, Link]:
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        try:
            while len(self._joined) < len(self._expected):
                self._require_patience(deadline, is_interrupted)
                for key, _ in self._selector.select(POLL_SECONDS):
                    if self._selector.get_map().get(key.fd) == key:  # an earlier handler may have closed it
                        key.data()
                self._drop_overdue(time.monotonic())
        except BaseException:
            for link in self._joined.values():
                link.close()
            raise
        finally:
            self._end()
        return self._joined

    def _require_patience(self, deadline: float, is_interrupted: Callable[[], bool]) -> None:
        if is_interrupted():
            raise JoinInterrupted("the attempt ended while its parts were joining")
        if time.monotonic() >= deadline:
            missing = {part: one.node for part, one in self._expected.items() if part not in self._joined}
            refused = [f"part {part} was refused: {self._refusals[part]}" for part in missing if part in self._refusals]
            raise NotJoined(missing, "; ".join(refused) or "no connection from there in time")

    # -- callers ---------------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            connection, (address, *_) = self._listener.accept()
        except OSError:
            return  # the caller has left again, or this process has no descriptor for it
        if len(self._callers) >= MAX_HANDSHAKES:
            self._make_room()
        connection.setblocking(False)
        caller = _Caller(connection, address, time.monotonic() + HANDSHAKE_SECONDS)
        self._callers[caller] = None
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._hear(caller))
        self._send(caller, make_challenge(caller.nonce))

    def _make_room(self) -> None:
        """Drop the oldest handshake of the address that has the most of them: a stranger takes no place but its own."""
        counts = Counter(caller.address for caller in self._callers)
        ((crowded, _),) = counts.most_common(1)
        oldest = next(caller for caller in self._callers if caller.address == crowded)
        self._refuse(oldest, f"more than {MAX_HANDSHAKES} handshakes at a time")

    def _hear(self, caller: _Caller) -> None:
        try:
            if caller.read():
                self._judge(caller, read_hello(caller.nonce, caller.received, self._secret))
        except BlockingIOError:
            return
        except (BadHandshake, OSError) as error:
            self._refuse(caller, str(error))

    def _judge(self, caller: _Caller, transcript: Transcript) -> None:
        """Answer a caller that knows the secret."""
        try:
            hello = decode_hello(transcript.hello)
        except ValueError as error:
            self._refuse_politely(caller, transcript, str(error))
            return
        refusal = find_refusal(hello, self._attempt, self._expected, self._joined)
        if refusal:
            self._refusals[hello.part] = refusal
            self._refuse_politely(caller, transcript, refusal)
        elif self._send(caller, make_answer(transcript, self._secret, "")):
            self._join(caller, hello, transcript)

    def _join(self, caller: _Caller, hello: PartHello, transcript: Transcript) -> None:
        del self._callers[caller]
        self._selector.unregister(caller.connection)
        peer = f"node {hello.node} ({hello.address})"
        link = Link.to_follower(caller.connection, peer, transcript.derive_keys(self._secret))
        self._joined[hello.part] = link
        self._selector.register(link, selectors.EVENT_READ, lambda: self._watch(hello.part, link))
        log.info("part_joined", attempt=self._attempt, part=hello.part, peer=peer)

    def _watch(self, part: int, link: Link) -> None:
        """A part that has joined and is gone again may join again: it may never have read that it had joined."""
        self._selector.unregister(link)
        if link.has_hung_up:
            log.info("part_left", attempt=self._attempt, part=part, peer=link.peer)
            link.close()
            del self._joined[part]

    def _send(self, caller: _Caller, data: bytes) -> bool:
        """Send a few bytes, for which a new connection has room; otherwise the caller is dropped."""
        try:
            sent = caller.connection.send(data)
        except OSError as error:
            self._refuse(caller, str(error))
            return False
        if sent < len(data):
            self._refuse(caller, "it does not read")
        return sent == len(data)

    # -- refusals --------------------------------------------------------------------------------------

    def _drop_overdue(self, now: float) -> None:
        for caller in [caller for caller in self._callers if now >= caller.overdue_at]:
            self._refuse(caller, f"no hello within {HANDSHAKE_SECONDS:g} s")

    def _refuse_politely(self, caller: _Caller, transcript: Transcript, why: str) -> None:
        """Refuse who knows the secret, and tell it why."""
        if self._send(caller, make_answer(transcript, self._secret, why)):
            self._refuse(caller, why)

    def _refuse(self, caller: _Caller, why: str) -> None:
        self._refused += 1
        if self._refused <= MAX_LOGGED_REFUSALS:
            log.warning("link_refused", attempt=self._attempt, address=caller.address, why=why)
        self._drop(caller)

    def _drop(self, caller: _Caller) -> None:
        del self._callers[caller]
        self._selector.unregister(caller.connection)
        caller.connection.close()

    def _end(self) -> None:
        for caller in list(self._callers):
            self._drop(caller)
        self._selector.close()
        if self._refused > MAX_LOGGED_REFUSALS:
            log.warning("links_refused", attempt=self._attempt, in_all=self._refused)


def find_refusal(
    hello: PartHello, attempt: str, expected: Mapping[int, ExpectedPart], joined: Mapping[int, object]
) -> str:
    """Why a follower that knows the secret may not join; empty if it may."""
    mine = this_version()
    if hello.version != mine:
        return f"the leader runs version {mine}, and node {hello.node} {hello.version}: install the same on both"
    if hello.attempt != attempt:
        return f"this is the leader of {attempt}, and not of {hello.attempt}"
    part = expected.get(hello.part)
    if part is None:
        return f"no part {hello.part} is expected"
    if hello.node != part.node:
        return f"part {hello.part} is expected from node {part.node}, and not from {hello.node}"
    if hello.ranks != part.ranks:
        return f"part {hello.part} is expected to have {part.ranks} ranks, and not {hello.ranks}"
    if hello.part in joined:
        return f"part {hello.part} has joined already"
    try:
        require_address(hello.address)
    except ValueError as error:
        return f"the address of node {hello.node} is unusable: {error}"
    return ""
