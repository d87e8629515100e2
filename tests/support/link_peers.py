"""Both ends of links on this machine, and raw connections to a listener that behave as a test wants."""

import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from jobs.store.attempts import AttemptId
from workers.supervisor.link.admission import ExpectedPart, LinkListener
from workers.supervisor.link.connection import Link
from workers.supervisor.link.framing import LinkFrameWriter
from workers.supervisor.link.handshake import (
    CHALLENGE_BYTES,
    LENGTH,
    Endpoint,
    SessionKeys,
    Transcript,
    answer_size,
    make_hello,
    make_nonce,
    read_answer,
    read_challenge,
)
from workers.supervisor.link.joining import connect
from workers.supervisor.link.messages import Message, PartHello, encode, this_version

ATTEMPT = AttemptId("acme", "job-1", 3)
#: For what takes milliseconds on a quiet machine.
PATIENCE_SECONDS = 60.0


def soon() -> float:
    return time.monotonic() + PATIENCE_SECONDS


def never() -> bool:
    return False


def a_hello(
    part: int = 1, *, node: str = "", ranks: int = 4, attempt: str = str(ATTEMPT), version: str = ""
) -> PartHello:
    node = node or f"gpu-{part}"
    return PartHello(attempt, node, f"10.0.0.{part}", part, ranks, version or this_version())


def expecting(*parts: int, ranks: int = 4) -> dict[int, ExpectedPart]:
    return {part: ExpectedPart(f"gpu-{part}", ranks) for part in parts}


class RawPeer:
    """A follower in single steps, each of which may be done wrongly."""

    def __init__(self, endpoint: Endpoint, source: str = "") -> None:
        self._endpoint = endpoint
        own = (source, 0) if source else None
        self.socket = socket.create_connection((endpoint.address, endpoint.port), PATIENCE_SECONDS, own)

    def read(self, size: int) -> bytes:
        """Fewer bytes only where the connection ends."""
        received = b""
        try:
            while len(received) < size and (data := self.socket.recv(size - len(received))):
                received += data
        except ConnectionError:
            pass
        return received

    def begin(self, hello: PartHello) -> Transcript:
        return Transcript(read_challenge(self.read(CHALLENGE_BYTES)), make_nonce(), encode(hello))

    def make_hello(self, transcript: Transcript) -> bytes:
        return make_hello(transcript, self._endpoint.secret)

    def read_refusal(self, transcript: Transcript) -> str:
        answer = self.read(answer_size(self.read(LENGTH.size)))
        return read_answer(transcript, self._endpoint.secret, answer)

    def join(self, hello: PartHello) -> SessionKeys:
        transcript = self.begin(hello)
        self.socket.sendall(self.make_hello(transcript))
        assert self.read_refusal(transcript) == ""
        return transcript.derive_keys(self._endpoint.secret)

    def is_dropped(self) -> bool:
        """Whether the other side closes the connection; waits for it."""
        try:
            while self.socket.recv(65_536):
                pass
        except ConnectionError:
            pass
        return True

    def close(self) -> None:
        self.socket.close()


class Admitting:
    """A leader that admits parts in a thread of its own, as a follower's connect blocks its own."""

    def __init__(self, listener: LinkListener, *parts: int) -> None:
        self.endpoint = Endpoint.parse(listener.endpoint)
        self.listener = listener
        self._interrupted = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._result = self._pool.submit(listener.admit, expecting(*parts), soon(), self._interrupted.is_set)

    @property
    def is_done(self) -> bool:
        return self._result.done()

    def interrupt(self) -> None:
        self._interrupted.set()

    def links(self) -> dict[int, Link]:
        """Raises what `admit` raised."""
        return self._result.result(PATIENCE_SECONDS)

    def end(self) -> None:
        self._interrupted.set()
        self._pool.shutdown()
        self.listener.close()
        if self._result.exception() is None:
            for link in self._result.result().values():
                link.close()


@contextmanager
def admitting(*parts: int, address: str = "127.0.0.1") -> Iterator[Admitting]:
    leader = Admitting(LinkListener(address, ATTEMPT), *parts)
    try:
        yield leader
    finally:
        leader.end()


@contextmanager
def linked(address: str = "127.0.0.1") -> Iterator[tuple[Link, Link]]:
    """The leader's and the follower's end of one link."""
    with admitting(1, address=address) as leader:
        follower = connect(leader.listener.endpoint, a_hello(), soon(), never)
        try:
            yield leader.links()[1], follower
        finally:
            follower.close()


@contextmanager
def linked_to_raw() -> Iterator[tuple[Link, RawPeer, LinkFrameWriter]]:
    """The leader's end of a link whose follower sends frames, or other bytes, as a test wants."""
    with admitting(1) as leader:
        peer = RawPeer(leader.endpoint)
        try:
            keys = peer.join(a_hello())
            yield leader.links()[1], peer, LinkFrameWriter(keys.to_leader)
        finally:
            peer.close()


def receive_until(link: Link, is_enough: Callable[[list[Message]], bool], *others: Link) -> list[Message]:
    """What comes until it is enough. Other links send what waits and answer beats meanwhile; they get no messages."""
    found: list[Message] = []
    deadline = soon()
    while not is_enough(found):
        assert time.monotonic() < deadline, found
        for other in others:
            other.flush()
            assert other.receive() == []
        select.select([link, *others], [], [], 0.05)
        found += link.receive()
    return found
