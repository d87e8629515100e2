"""How a follower reaches its leader."""

import os
import selectors
import socket
import time
from collections.abc import Callable

from workers.supervisor.link.connection import Link
from workers.supervisor.link.errors import JoinInterrupted, NotJoined
from workers.supervisor.link.handshake import (
    CHALLENGE_BYTES,
    HANDSHAKE_SECONDS,
    LENGTH,
    BadHandshake,
    Endpoint,
    Transcript,
    answer_size,
    make_hello,
    make_nonce,
    read_answer,
    read_challenge,
)
from workers.supervisor.link.messages import PartHello, encode

#: Until a connection is tried anew, which is sooner than the system sends its packet again.
CONNECT_SECONDS = 3.0
#: Between two tries.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.05, 1.0
#: How often `is_interrupted` is asked.
POLL_SECONDS = 0.1


class _Refused(Exception):
    """The leader itself says that this part may not join: trying again is of no use."""


def connect(endpoint: str, hello: PartHello, deadline: float, is_interrupted: Callable[[], bool]) -> Link:
    """Join the leader at `endpoint`, trying again until the deadline (monotonic clock) where nobody answers.

    Raises:
        NotJoined: at the deadline, or at once where the leader refuses. Its text says what the leader said.
        JoinInterrupted: `is_interrupted` said so.
        ValueError: the PartHello is longer than a leader reads.
    """
    missing = {hello.part: hello.node}
    try:
        leader = Endpoint.parse(endpoint)
    except ValueError as error:
        raise NotJoined(missing, str(error)) from error
    patience = _Patience(deadline, is_interrupted)
    pause, why = FIRST_PAUSE_SECONDS, ""
    while True:
        try:
            return _join(leader, hello, patience)
        except _Refused as error:
            raise NotJoined(missing, f"{_name(leader)} refused: {error}") from error
        except (OSError, BadHandshake) as error:
            if not why or not isinstance(error, TimeoutError):  # the last try ends with the deadline, which says less
                why = str(error)
            if patience.is_over:
                raise NotJoined(missing, f"{_name(leader)}: {why}") from error
        patience.pause(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


def _name(leader: Endpoint) -> str:
    return f"the leader at {leader.address} port {leader.port}"


class _Patience:
    """Waits of one join, none of which outlasts its deadline or an interruption."""

    def __init__(self, deadline: float, is_interrupted: Callable[[], bool]) -> None:
        self._deadline = deadline
        self._is_interrupted = is_interrupted

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._deadline

    def pause(self, seconds: float) -> None:
        until = min(time.monotonic() + seconds, self._deadline)
        while (left := until - time.monotonic()) > 0:
            self._require()
            time.sleep(min(left, POLL_SECONDS))

    def await_ready(self, connection: socket.socket, event: int, seconds: float, what: str) -> None:
        """Raises TimeoutError: it was not ready in time."""
        until = min(time.monotonic() + seconds, self._deadline)
        with selectors.DefaultSelector() as selector:
            selector.register(connection, event)
            while not selector.select(max(0.0, min(until - time.monotonic(), POLL_SECONDS))):
                self._require()
                if time.monotonic() >= until:
                    raise TimeoutError(what)

    def _require(self) -> None:
        if self._is_interrupted():
            raise JoinInterrupted("the attempt ended while this part was joining")


def _join(leader: Endpoint, hello: PartHello, patience: _Patience) -> Link:
    """One try. Raises OSError, BadHandshake, _Refused, JoinInterrupted."""
    connection = socket.socket(socket.AF_INET6 if ":" in leader.address else socket.AF_INET)
    try:
        connection.setblocking(False)
        _open(connection, leader, patience)
        transcript = _shake_hands(connection, leader, hello, patience)
        return Link.to_leader(connection, f"the leader ({leader.address})", transcript.derive_keys(leader.secret))
    except BaseException:
        connection.close()
        raise


def _open(connection: socket.socket, leader: Endpoint, patience: _Patience) -> None:
    connection.connect_ex((leader.address, leader.port))
    patience.await_ready(connection, selectors.EVENT_WRITE, CONNECT_SECONDS, "it does not answer")
    if error := connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        raise OSError(error, os.strerror(error))
    if connection.getsockname() == connection.getpeername():
        # A port of this host on which nobody listens may be chosen as the connection's own.
        raise ConnectionRefusedError("nobody listens there")


def _shake_hands(connection: socket.socket, leader: Endpoint, hello: PartHello, patience: _Patience) -> Transcript:
    # A leader that prepares its own part answers late. Whoever waits in its queue need not come again.
    challenge = _read_exactly(connection, CHALLENGE_BYTES, patience, float("inf"))
    transcript = Transcript(read_challenge(challenge), make_nonce(), encode(hello))
    connection.sendall(make_hello(transcript, leader.secret))  # a new connection has room for it
    size = answer_size(_read_exactly(connection, LENGTH.size, patience, HANDSHAKE_SECONDS))
    refusal = read_answer(transcript, leader.secret, _read_exactly(connection, size, patience, HANDSHAKE_SECONDS))
    if refusal:
        raise _Refused(refusal)
    return transcript


def _read_exactly(connection: socket.socket, size: int, patience: _Patience, seconds: float) -> bytes:
    """So many bytes and none beyond: what follows belongs to the link. `seconds`: for the next bytes."""
    received = b""
    while len(received) < size:
        patience.await_ready(connection, selectors.EVENT_READ, seconds, "it does not go on with the handshake")
        try:
            data = connection.recv(size - len(received))
        except BlockingIOError:
            continue
        if not data:
            raise ConnectionError("it closed the connection during the handshake")
        received += data
    return received
