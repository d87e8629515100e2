"""How a follower finds its leader, and what it does where there is none, over real connections."""

import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from tests.process.workers.supervisor.link.conftest import SkippingClock
from tests.support.link_peers import ATTEMPT, Admitting, a_hello, admitting, never, receive_until, soon
from tests.support.timing import once_below
from workers.supervisor.link import joining
from workers.supervisor.link.admission import LinkListener
from workers.supervisor.link.errors import JoinInterrupted, NotJoined
from workers.supervisor.link.handshake import LENGTH, MAGIC, MAX_HELLO_BYTES, NONCE_BYTES, PROOF_BYTES, Endpoint
from workers.supervisor.link.joining import connect
from workers.supervisor.link.messages import Over, PartHello, this_version

SECRET = b"s" * 32

Impostor = Callable[[Callable[[socket.socket], None]], Endpoint]


def skipping_after(polls: int, clock: SkippingClock) -> Callable[[], bool]:
    """Never interrupts, and lets the deadline pass when it was asked so often."""
    asked = itertools.count(1)

    def look() -> bool:
        if next(asked) == polls:
            clock.skip()
        return False

    return look


def a_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture
def impostor(clock: SkippingClock) -> Iterator[Impostor]:
    """Serves whoever connects with what a test gives, and knows no secret. At the third try the deadline has passed."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def serve(answer: Callable[[socket.socket], None]) -> Endpoint:
        def run() -> None:
            for served in itertools.count():
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                if served == 2:
                    clock.skip()
                with connection:
                    connection.settimeout(60)
                    try:
                        answer(connection)
                    except OSError:
                        continue

        threads.append(threading.Thread(target=run))
        threads[0].start()
        return Endpoint("127.0.0.1", listener.getsockname()[1], SECRET)

    yield serve
    listener.shutdown(socket.SHUT_RDWR)  # wakes up accept
    listener.close()
    for thread in threads:
        thread.join(60)


def test_nobody_listening_is_tried_again_until_the_deadline(clock: SkippingClock) -> None:
    endpoint = Endpoint("127.0.0.1", a_free_port(), SECRET)
    with pytest.raises(NotJoined, match="part 1 on node gpu-1 did not join: the leader at") as caught:
        connect(str(endpoint), a_hello(), soon(), skipping_after(5, clock))
    assert "Connection refused" in caught.value.why
    assert caught.value.missing == {1: "gpu-1"}


def test_an_address_that_does_not_answer_is_tried_again_until_the_deadline(
    clock: SkippingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "CONNECT_SECONDS", 0.1)
    # Its queue is full, so the system answers no further connection.
    with socket.socket() as deaf, socket.socket() as first, socket.socket() as second:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        for one in (first, second):
            one.setblocking(False)
            one.connect_ex(deaf.getsockname())
        with pytest.raises(NotJoined, match="it does not answer"):
            connect(
                str(Endpoint("127.0.0.1", deaf.getsockname()[1], SECRET)), a_hello(), soon(), skipping_after(5, clock)
            )


def test_a_leader_that_starts_to_listen_later_is_found() -> None:
    refused = threading.Event()
    asked: list[None] = []

    def look() -> bool:
        asked.append(None)
        if len(asked) > 3:
            refused.set()
        return False

    with closing(LinkListener("127.0.0.1", ATTEMPT)) as listener:
        endpoint = Endpoint.parse(listener.endpoint)
    found = []  # its port is closed now
    joining_part = threading.Thread(target=lambda: found.append(connect(str(endpoint), a_hello(), soon(), look)))
    joining_part.start()
    assert refused.wait(60)
    listener._socket = socket.create_server((endpoint.address, endpoint.port))
    listener._socket.setblocking(False)
    leader = Admitting(listener, 1)
    try:
        leader.links()[1].send(Over("x"))
        joining_part.join(60)
        (link,) = found
        assert receive_until(link, bool) == [Over("x")]
        link.close()
    finally:
        leader.end()


@pytest.mark.parametrize("endpoint", ["", "gpu-1 29500 00", f"localhost 29500 {SECRET.hex()}"])
def test_an_unusable_endpoint_is_not_tried(endpoint: str) -> None:
    with pytest.raises(NotJoined, match="the leader's endpoint is not of the form"):
        connect(endpoint, a_hello(), soon(), never)


def test_a_hello_over_the_limit_is_a_mistake_of_the_caller() -> None:
    long = PartHello(str(ATTEMPT), "n" * MAX_HELLO_BYTES, "10.0.0.1", 1, 4, this_version())
    with admitting(1) as leader, pytest.raises(ValueError, match="over the limit"):
        connect(leader.listener.endpoint, long, soon(), never)


def test_an_interruption_is_noticed_within_a_moment() -> None:
    def interrupt(endpoint: str) -> float:
        began = time.monotonic()
        with pytest.raises(JoinInterrupted):
            connect(endpoint, a_hello(), soon(), lambda: time.monotonic() > began + 0.2)
        return time.monotonic() - began

    nobody = str(Endpoint("127.0.0.1", a_free_port(), SECRET))
    once_below(2, lambda: interrupt(nobody))
    with closing(LinkListener("127.0.0.1", ATTEMPT)) as busy:  # connects, and is not answered
        once_below(2, lambda: interrupt(busy.endpoint))


# -- somebody else at the leader's address ---------------------------------------------------------


def test_another_service_is_no_leader(impostor: Impostor) -> None:
    endpoint = impostor(lambda connection: connection.sendall(b"SSH-2.0-OpenSSH_9.2p1 Debian-2".ljust(100)))
    with pytest.raises(NotJoined, match="not a leader of this version"):
        connect(str(endpoint), a_hello(), soon(), never)


def test_who_does_not_know_the_secret_cannot_be_the_leader(impostor: Impostor) -> None:
    def pretend(connection: socket.socket) -> None:
        connection.sendall(MAGIC + bytes(NONCE_BYTES))
        connection.recv(MAX_HELLO_BYTES)
        connection.sendall(LENGTH.pack(0) + bytes(PROOF_BYTES))

    with pytest.raises(NotJoined, match="does not know the attempt's secret"):
        connect(str(impostor(pretend)), a_hello(), soon(), never)


def test_a_followers_own_proof_does_not_convince_it(impostor: Impostor) -> None:
    def reflect(connection: socket.socket) -> None:
        connection.sendall(MAGIC + bytes(NONCE_BYTES))
        hello = connection.recv(MAX_HELLO_BYTES)
        connection.sendall(LENGTH.pack(0) + hello[-PROOF_BYTES:])

    with pytest.raises(NotJoined, match="does not know the attempt's secret"):
        connect(str(impostor(reflect)), a_hello(), soon(), never)


def test_an_endless_answer_is_not_read(impostor: Impostor) -> None:
    def flood(connection: socket.socket) -> None:
        connection.sendall(MAGIC + bytes(NONCE_BYTES))
        for _ in range(1024):
            connection.sendall(b"\xff" * 1024 * 1024)

    with pytest.raises(NotJoined, match="over the limit"):
        connect(str(impostor(flood)), a_hello(), soon(), never)


def test_a_refusal_by_a_stranger_is_not_the_leaders(impostor: Impostor) -> None:
    """Or a stranger could keep a part from trying again."""

    def refuse(connection: socket.socket) -> None:
        connection.sendall(MAGIC + bytes(NONCE_BYTES))
        connection.recv(MAX_HELLO_BYTES)
        connection.sendall(LENGTH.pack(7) + b"go away" + bytes(PROOF_BYTES))

    with pytest.raises(NotJoined) as caught:
        connect(str(impostor(refuse)), a_hello(), soon(), never)
    assert "go away" not in str(caught.value)


def test_a_leader_that_closes_every_connection_is_told_of(impostor: Impostor) -> None:
    with pytest.raises(NotJoined, match=r"closed the connection during|reset by peer"):
        connect(str(impostor(lambda connection: None)), a_hello(), soon(), never)


def test_a_leader_that_says_nothing_more_is_given_up(impostor: Impostor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "HANDSHAKE_SECONDS", 0.1)

    def stop(connection: socket.socket) -> None:
        connection.sendall(MAGIC + bytes(NONCE_BYTES))
        while connection.recv(4096):
            pass

    with pytest.raises(NotJoined, match="does not go on"):
        connect(str(impostor(stop)), a_hello(), soon(), never)


def test_the_try_that_the_deadline_cuts_short_does_not_hide_why_those_before_it_failed(
    impostor: Impostor, clock: SkippingClock
) -> None:
    served = itertools.count()

    def be_silent_later(connection: socket.socket) -> None:
        if next(served) == 0:
            connection.sendall(b"SSH-2.0-OpenSSH_9.2p1 Debian-2".ljust(100))
        else:
            clock.skip()
            connection.recv(1)  # until the follower leaves

    with pytest.raises(NotJoined, match="not a leader of this version"):
        connect(str(impostor(be_silent_later)), a_hello(), soon(), never)
