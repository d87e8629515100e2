"""The leader's door, with those who belong there and those who do not, over real connections."""

import itertools
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.process.workers.supervisor.link.conftest import SkippingClock
from tests.support.link_peers import (
    ATTEMPT,
    Admitting,
    RawPeer,
    a_hello,
    admitting,
    never,
    receive_until,
    soon,
)
from workers.supervisor.link import admission
from workers.supervisor.link.admission import (
    MAX_HANDSHAKES,
    MAX_LOGGED_REFUSALS,
    ExpectedPart,
    LinkListener,
)
from workers.supervisor.link.connection import Link
from workers.supervisor.link.errors import JoinInterrupted, LinkClosed, NotJoined
from workers.supervisor.link.handshake import CHALLENGE_BYTES, LENGTH, MAX_HELLO_BYTES, Endpoint
from workers.supervisor.link.joining import connect
from workers.supervisor.link.messages import Over, PartHello, RankBytes


@pytest.fixture
def leader() -> Iterator[Admitting]:
    """Waits for part 1."""
    with admitting(1) as waiting:
        yield waiting


def is_refused_at_once(peer: RawPeer) -> bool:
    """Whether the leader closes the connection, and sends nothing but its challenge."""
    return len(peer.read(CHALLENGE_BYTES + 1)) <= CHALLENGE_BYTES


def reasons(logs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why the leader refused callers, by its log."""
    return [line["why"] for line in logs if line["event"] == "link_refused"]


def part_one_joins(leader: Admitting) -> None:
    with closing(connect(leader.listener.endpoint, a_hello(), soon(), never)) as follower:
        leader.links()[1].send(Over("x"))
        assert receive_until(follower, bool) == [Over("x")]


# -- those who belong there ------------------------------------------------------------------------


def test_all_parts_join_in_any_order() -> None:
    with admitting(1, 2, 3) as leader, ExitStack() as stack:
        for part in (3, 1, 2):
            assert not leader.is_done
            stack.enter_context(closing(connect(leader.listener.endpoint, a_hello(part), soon(), never)))
        links = leader.links()
        assert {part: link.peer for part, link in links.items()} == {
            part: f"node gpu-{part} (10.0.0.{part})" for part in (1, 2, 3)
        }


def test_parts_that_come_before_the_leader_is_ready_wait_in_its_queue() -> None:
    listener = LinkListener("127.0.0.1", ATTEMPT)
    waits = threading.Event()
    asked = itertools.count(1)

    def look() -> bool:
        if next(asked) == 4:
            waits.set()
        return False

    found = []
    follower = threading.Thread(target=lambda: found.append(connect(listener.endpoint, a_hello(), soon(), look)))
    follower.start()
    assert waits.wait(60)
    with capture_logs() as logs:
        leader = Admitting(listener, 1)
        try:
            assert set(leader.links()) == {1}
        finally:
            leader.end()
            follower.join(60)
    assert reasons(logs) == []  # it came once
    (link,) = found
    link.close()


def test_nobody_is_waited_for_where_nobody_is_expected() -> None:
    with closing(LinkListener("127.0.0.1", ATTEMPT)) as listener:
        assert listener.admit({}, 0.0, never) == {}


def test_two_parts_of_one_node_are_never_expected() -> None:
    same = {1: ExpectedPart("gpu-1", 4), 2: ExpectedPart("gpu-1", 4)}
    with closing(LinkListener("127.0.0.1", ATTEMPT)) as listener, pytest.raises(ValueError, match="on one node"):
        listener.admit(same, soon(), never)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.3", "::1"])
def test_only_the_given_address_is_listened_on(address: str) -> None:
    with closing(LinkListener(address, ATTEMPT)) as listener:
        endpoint = Endpoint.parse(listener.endpoint)
        assert endpoint.address == address
        socket.create_connection((address, endpoint.port), 60).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.9", endpoint.port), 60)


@pytest.mark.parametrize("address", ["localhost", "0.0.0.0", "::"])
def test_a_name_or_every_address_is_not_listened_on(address: str) -> None:
    with pytest.raises(ValueError):
        LinkListener(address, ATTEMPT)


def test_every_listener_has_a_secret_of_its_own() -> None:
    with closing(LinkListener("127.0.0.1", ATTEMPT)) as one, closing(LinkListener("127.0.0.1", ATTEMPT)) as other:
        assert Endpoint.parse(one.endpoint).secret != Endpoint.parse(other.endpoint).secret


def test_nobody_can_connect_once_the_listener_is_closed(leader: Admitting) -> None:
    part_one_joins(leader)
    leader.listener.close()
    with pytest.raises(ConnectionRefusedError):
        RawPeer(leader.endpoint)


def test_a_part_that_lost_its_connection_while_others_joined_may_join_again() -> None:
    with admitting(1, 2) as leader, ExitStack() as stack:
        connect(leader.listener.endpoint, a_hello(1), soon(), never).close()
        again = connect_again(leader, a_hello(1))
        stack.callback(again.close)
        stack.enter_context(closing(connect(leader.listener.endpoint, a_hello(2), soon(), never)))
        links = leader.links()
        links[1].send(Over("x"))
        assert receive_until(again, bool) == [Over("x")]


def connect_again(leader: Admitting, hello: PartHello) -> Link:
    """Join as soon as the leader has seen that the first connection is gone."""
    deadline = soon()
    while True:
        try:
            return connect(leader.listener.endpoint, hello, deadline, never)
        except NotJoined as error:
            if "has joined already" not in error.why:
                raise


def test_what_a_part_says_while_others_join_is_kept() -> None:
    with admitting(1, 2) as leader, ExitStack() as stack:
        early = stack.enter_context(closing(connect(leader.listener.endpoint, a_hello(1), soon(), never)))
        early.send(RankBytes(4, b"early"))
        stack.enter_context(closing(connect(leader.listener.endpoint, a_hello(2), soon(), never)))
        assert receive_until(leader.links()[1], bool) == [RankBytes(4, b"early")]


# -- those who know the secret, and may not join ---------------------------------------------------


@pytest.mark.parametrize(
    ("hello", "why"),
    [
        (a_hello(attempt="acme/job-1/2"), "this is the leader of acme/job-1/3, and not of acme/job-1/2"),
        (a_hello(node="gpu-7"), "part 1 is expected from node gpu-1, and not from gpu-7"),
        (a_hello(ranks=8), "part 1 is expected to have 4 ranks, and not 8"),
        (a_hello(2), "no part 2 is expected"),
        (a_hello(0), "no part 0 is expected"),
        (a_hello(version="0.0.9"), "and node gpu-1 0.0.9: install the same on both"),
        (
            PartHello(str(ATTEMPT), "gpu-1", "gpu-1.example", 1, 4, a_hello().version),
            "the address of node gpu-1 is unusable",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_follower_learns_why_it_is_refused(leader: Admitting, hello: PartHello, why: str) -> None:
    with pytest.raises(NotJoined) as caught:
        connect(leader.listener.endpoint, hello, soon(), never)
    assert why in str(caught.value)
    assert caught.value.missing == {hello.part: hello.node}
    part_one_joins(leader)


def test_a_part_that_has_joined_cannot_join_again() -> None:
    with admitting(1, 2) as leader, ExitStack() as stack:
        first = stack.enter_context(closing(connect(leader.listener.endpoint, a_hello(1), soon(), never)))
        with pytest.raises(NotJoined, match="part 1 has joined already"):
            connect(leader.listener.endpoint, a_hello(1), soon(), never)
        stack.enter_context(closing(connect(leader.listener.endpoint, a_hello(2), soon(), never)))
        leader.links()[1].send(Over("x"))
        assert receive_until(first, bool) == [Over("x")]


# -- the end of patience ---------------------------------------------------------------------------


def test_the_parts_that_did_not_join_are_named_and_the_others_let_go(clock: SkippingClock) -> None:
    with admitting(1, 2, 3) as leader:
        follower = connect(leader.listener.endpoint, a_hello(1), soon(), never)
        clock.skip()
        with pytest.raises(
            NotJoined, match="part 2 on node gpu-2, part 3 on node gpu-3 did not join: no conn"
        ) as caught:
            leader.links()
        assert caught.value.missing == {2: "gpu-2", 3: "gpu-3"}
        with pytest.raises(LinkClosed, match="closed the connection"):
            receive_until(follower, bool)
        follower.close()


def test_the_leader_says_whom_it_had_refused(clock: SkippingClock) -> None:
    with admitting(1) as leader:
        with pytest.raises(NotJoined):
            connect(leader.listener.endpoint, a_hello(ranks=3), soon(), never)
        clock.skip()
        with pytest.raises(NotJoined, match="part 1 was refused: part 1 is expected to have 4 ranks, and not 3"):
            leader.links()


def test_an_attempt_that_ends_while_its_parts_join_is_interrupted() -> None:
    with admitting(1, 2) as leader:
        follower = connect(leader.listener.endpoint, a_hello(1), soon(), never)
        leader.interrupt()
        with pytest.raises(JoinInterrupted):
            leader.links()
        with pytest.raises(LinkClosed):
            receive_until(follower, bool)
        follower.close()


# -- strangers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\xff" * 100, bytes(4096), b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03"],
    ids=["http", "ones", "zeros", "tls"],
)
def test_garbage_is_refused_and_logged(leader: Admitting, garbage: bytes) -> None:
    with capture_logs() as logs, closing(RawPeer(leader.endpoint)) as peer:
        peer.socket.sendall(garbage)
        assert is_refused_at_once(peer)
    assert len(reasons(logs)) == 1
    assert logs[0]["address"] == "127.0.0.1"
    part_one_joins(leader)


def test_a_recorded_hello_cannot_be_replayed() -> None:
    with admitting(1, 2) as leader, closing(RawPeer(leader.endpoint)) as follower:
        transcript = follower.begin(a_hello(1))
        recorded = follower.make_hello(transcript)
        follower.socket.sendall(recorded)
        assert follower.read_refusal(transcript) == ""
        with capture_logs() as logs, closing(RawPeer(leader.endpoint)) as replayer:
            replayer.socket.sendall(recorded)
            assert is_refused_at_once(replayer)
        assert reasons(logs) == ["it does not know the attempt's secret, or replays what another node sent"]
        with closing(connect(leader.listener.endpoint, a_hello(2), soon(), never)):
            assert set(leader.links()) == {1, 2}


def test_a_wrong_secret_is_refused_without_an_answer(leader: Admitting) -> None:
    wrong = Endpoint(leader.endpoint.address, leader.endpoint.port, b"w" * 32)
    with closing(RawPeer(wrong)) as peer:
        transcript = peer.begin(a_hello())
        peer.socket.sendall(peer.make_hello(transcript))
        assert peer.read(1) == b""
    part_one_joins(leader)


def test_the_leaders_own_bytes_sent_back_to_it_are_refused(leader: Admitting) -> None:
    with closing(RawPeer(leader.endpoint)) as peer:
        peer.socket.sendall(peer.read(CHALLENGE_BYTES))
        assert peer.read(1) == b""
    part_one_joins(leader)


def test_two_leaders_cannot_be_made_to_answer_for_each_other() -> None:
    """A stranger hands the challenge of one connection to another one, and what comes there back to the first."""
    with (
        admitting(1, 2) as leader,
        closing(RawPeer(leader.endpoint)) as one,
        closing(RawPeer(leader.endpoint)) as other,
    ):
        first, second = one.read(CHALLENGE_BYTES), other.read(CHALLENGE_BYTES)
        one.socket.sendall(second)
        other.socket.sendall(first)
        assert one.read(1) == other.read(1) == b""
        assert not leader.is_done


def test_nothing_may_follow_a_hello_before_it_is_answered(leader: Admitting) -> None:
    with closing(RawPeer(leader.endpoint)) as peer:
        peer.socket.sendall(peer.make_hello(peer.begin(a_hello())) + b"x")
        assert peer.read(1) == b""
    part_one_joins(leader)


def test_a_hello_that_does_not_decode_is_refused_after_its_proof(leader: Admitting) -> None:
    with closing(RawPeer(leader.endpoint)) as peer:
        transcript = peer.begin(a_hello())
        odd = type(transcript)(transcript.leader_nonce, transcript.follower_nonce, b"\x91\xa5Hello")
        peer.socket.sendall(peer.make_hello(odd))
        assert "does not decode" in peer.read_refusal(odd)
    part_one_joins(leader)


def test_of_a_gigabyte_no_more_is_taken_than_a_hello_may_have(leader: Admitting) -> None:
    """Zeros announce an empty hello, so that too much is noticed at once."""
    chunk = bytes(1024 * 1024)
    for start in (b"", LENGTH.pack(MAX_HELLO_BYTES - 1000), b"\xff"):
        with closing(RawPeer(leader.endpoint)) as peer:
            sent = 0
            try:
                peer.socket.sendall(start)
                while sent < 1024:
                    peer.socket.sendall(chunk)
                    sent += 1
            except ConnectionError:
                pass
            assert sent < 64  # megabytes: what the system's buffers of a connection take
    part_one_joins(leader)


def test_a_silent_stranger_delays_nobody_and_is_dropped(leader: Admitting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "HANDSHAKE_SECONDS", 0.2)
    with capture_logs() as logs, closing(RawPeer(leader.endpoint)) as silent:
        assert silent.read(CHALLENGE_BYTES)
        assert silent.is_dropped()
    assert reasons(logs) == ["no hello within 0.2 s"]
    with closing(RawPeer(leader.endpoint)) as silent:
        part_one_joins(leader)


def trickle(connection: socket.socket, data: bytes) -> int:
    """Send a byte whenever the connection was silent for its time-out; how many, before the other side closed it."""
    for count, byte in enumerate(data):
        try:
            connection.sendall(bytes([byte]))
            if not connection.recv(1):
                return count
        except TimeoutError:
            continue
        except ConnectionError:
            return count
    return len(data)


def test_a_stranger_that_sends_a_byte_at_a_time_gains_no_time(
    leader: Admitting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "HANDSHAKE_SECONDS", 0.5)
    with capture_logs() as logs, closing(RawPeer(leader.endpoint)) as slow:
        hello = slow.make_hello(slow.begin(a_hello()))
        slow.socket.settimeout(0.05)
        assert trickle(slow.socket, hello) < len(hello)
    assert reasons(logs) == ["no hello within 0.5 s"]
    part_one_joins(leader)


def test_a_follower_whose_hello_comes_byte_by_byte_in_time_joins(leader: Admitting) -> None:
    with closing(RawPeer(leader.endpoint)) as slow:
        transcript = slow.begin(a_hello())
        for byte in slow.make_hello(transcript):
            slow.socket.sendall(bytes([byte]))
        assert slow.read_refusal(transcript) == ""
        assert set(leader.links()) == {1}


def test_two_hundred_strangers_at_once_keep_no_part_out() -> None:
    with admitting(1, 2, 3) as leader, ExitStack() as stack, capture_logs() as logs:
        strangers = [stack.enter_context(closing(RawPeer(leader.endpoint))) for _ in range(200)]
        began = time.monotonic()
        for part in (1, 2, 3):
            stack.enter_context(closing(connect(leader.listener.endpoint, a_hello(part), soon(), never)))
        assert set(leader.links()) == {1, 2, 3}
        assert time.monotonic() - began < 60
        assert all(stranger.is_dropped() for stranger in strangers)
    assert len(reasons(logs)) == MAX_LOGGED_REFUSALS
    (summary,) = [line for line in logs if line["event"] == "links_refused"]
    assert summary["in_all"] >= 200 - MAX_HANDSHAKES


def test_the_crowd_of_one_address_takes_no_place_of_another() -> None:
    with admitting(1) as leader, ExitStack() as stack:
        follower = stack.enter_context(closing(RawPeer(leader.endpoint, "127.0.0.8")))
        transcript = follower.begin(a_hello())  # its handshake is the oldest of all
        for _ in range(2 * MAX_HANDSHAKES):
            stack.enter_context(closing(RawPeer(leader.endpoint))).read(CHALLENGE_BYTES)
        follower.socket.sendall(follower.make_hello(transcript))
        assert follower.read_refusal(transcript) == ""
        assert set(leader.links()) == {1}
