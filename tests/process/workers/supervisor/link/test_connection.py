"""Links over real connections: what arrives, what waits, and what closes them."""

import os
import select
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.link_peers import linked, linked_to_raw, receive_until, soon
from tests.support.timing import once_below
from workers.supervisor.link.connection import (
    BEAT_SECONDS,
    MAX_PENDING_BYTES,
    READ_BYTES,
    RETRY_MILLISECONDS,
    TCP_RTO_MAX_MS,
    Link,
)
from workers.supervisor.link.errors import LinkClosed
from workers.supervisor.link.framing import MAX_FRAME_BYTES, LinkFrameWriter
from workers.supervisor.link.handshake import SessionKeys
from workers.supervisor.link.messages import (
    MAX_DATA_BYTES,
    Beat,
    BeatReply,
    Message,
    Over,
    PartFailed,
    RankBytes,
    RankCommand,
    RankEnded,
    RankSignal,
    RankTail,
    Start,
    decode_from_follower,
    encode,
    split,
)


def await_closed(link: Link) -> LinkClosed:
    """How a link closes that is about to. No message may come before."""
    deadline = soon()
    while time.monotonic() < deadline:
        try:
            assert link.receive() == []
        except LinkClosed as closed:
            return closed
        select.select([link], [], [], 0.05)
    raise AssertionError("the link is still open")


# -- messages --------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2", "::1"])
def test_messages_arrive_in_their_order_on_both_sides(address: str) -> None:
    with linked(address) as (leader, follower):
        down: list[Message] = [
            Start(address, 29500, "/ckpt/7"),
            RankCommand(None, b"save"),
            RankSignal(3, 15),
            Over("x"),
        ]
        up: list[Message] = [RankBytes(4, b"abc"), RankTail(4, b""), RankEnded(4, 0, 0.0, False)]
        for message in down:
            leader.send(message)
        for message in up:
            follower.send(message)
        assert receive_until(follower, lambda found: len(found) == len(down)) == down
        assert receive_until(leader, lambda found: len(found) == len(up)) == up
        assert leader.peer == "node gpu-1 (10.0.0.1)"
        assert follower.peer == f"the leader ({address})"


def test_both_sides_count_the_same_bytes() -> None:
    with linked() as (leader, follower):
        follower.send(RankBytes(0, bytes(1000)))
        receive_until(leader, bool)
        assert follower.bytes_sent == leader.bytes_received > 1000
        assert leader.bytes_sent == follower.bytes_received == 0


def test_a_link_with_nothing_to_say_has_nothing() -> None:
    with linked() as (leader, follower):
        assert leader.receive() == []
        assert follower.receive() == []
        assert leader.pending_bytes == 0


def test_the_largest_output_of_a_rank_arrives_in_parts() -> None:
    data = os.urandom(3 * MAX_FRAME_BYTES)
    with linked() as (leader, follower):
        for part in split(RankBytes(0, data)):
            follower.send(part)
        parts = receive_until(leader, lambda found: len(found) == len(data) // MAX_DATA_BYTES, follower)
        assert b"".join(part.data for part in parts if isinstance(part, RankBytes)) == data


def test_one_call_reads_no_more_than_its_share() -> None:
    with linked() as (leader, follower):
        for part in split(RankBytes(0, bytes(8 * READ_BYTES))):
            follower.send(part)
        most, before = 0, 0
        deadline = soon()
        while leader.bytes_received < follower.bytes_sent + follower.pending_bytes:
            assert time.monotonic() < deadline
            leader.receive()
            most, before = max(most, leader.bytes_received - before), leader.bytes_received
            follower.flush()
        assert 0 < most <= READ_BYTES


def test_a_message_over_the_limit_is_a_mistake_of_its_sender_and_harms_no_link() -> None:
    with linked() as (leader, follower):
        with pytest.raises(ValueError, match="split it"):
            follower.send(RankBytes(0, bytes(MAX_FRAME_BYTES)))
        follower.send(RankBytes(0, b"small"))
        assert receive_until(leader, bool) == [RankBytes(0, b"small")]


def test_a_hundred_megabytes_take_seconds_of_a_processor() -> None:
    def send_much() -> float:
        count = 100 * 2**20 // MAX_DATA_BYTES
        with linked() as (leader, follower), ThreadPoolExecutor(1) as pool:
            began = time.process_time()
            reading = pool.submit(receive_until, leader, lambda found: len(found) == count)
            for number in range(count):
                follower.send(RankBytes(number, bytes(MAX_DATA_BYTES)))
                while follower.pending_bytes:
                    select.select([], [follower], [], 1)
                    follower.flush()
            reading.result(120)
            return time.process_time() - began

    once_below(5, send_much)


# -- a peer that does not read, or is gone -----------------------------------------------------------


def test_sending_to_a_peer_that_does_not_read_never_blocks_and_ends_at_the_bound() -> None:
    part = RankBytes(0, bytes(MAX_DATA_BYTES))
    with linked() as (_, follower):
        most = 0

        def send_without_end() -> None:
            nonlocal most
            for _ in range(1000):
                follower.send(part)
                most = max(most, follower.pending_bytes)

        with pytest.raises(LinkClosed, match=r"the leader \(127\.0\.0\.1\) does not read"):
            send_without_end()
        assert MAX_PENDING_BYTES - 2 * MAX_DATA_BYTES < most <= MAX_PENDING_BYTES
        for use in (lambda: follower.send(part), follower.flush, follower.receive, lambda: follower.beat_if_due(0.0)):
            with pytest.raises(LinkClosed, match="does not read"):
                use()


def test_what_waited_is_sent_when_the_peer_reads_again() -> None:
    with linked() as (leader, follower):
        sent = 0
        while not follower.pending_bytes:
            follower.send(RankBytes(sent, bytes(MAX_DATA_BYTES)))
            sent += 1
        follower.send(RankBytes(sent, b"last"))
        found = receive_until(leader, lambda found: bool(found) and found[-1] == RankBytes(sent, b"last"), follower)
        assert [one.rank for one in found if isinstance(one, RankBytes)] == list(range(sent + 1))
        assert follower.pending_bytes == 0


def test_what_a_follower_said_before_it_left_is_read_first() -> None:
    with linked() as (leader, follower):
        follower.send(RankEnded(1, 0, 0.5, out_of_memory=False))
        follower.close()
        assert receive_until(leader, bool) == [RankEnded(1, 0, 0.5, out_of_memory=False)]
        assert str(await_closed(leader)) == "node gpu-1 (10.0.0.1) closed the connection"


def test_what_is_still_in_the_systems_buffers_arrives_although_the_sender_left_without_reading() -> None:
    with linked() as (leader, follower):
        leader.send(RankCommand(None, b"save"))
        select.select([follower], [], [], 60)
        found: list[Message] = []
        sent = 0
        while not follower.pending_bytes:
            follower.send(RankBytes(sent, bytes(MAX_DATA_BYTES)))
            sent += 1
        while follower.pending_bytes:
            found += leader.receive()
            follower.flush()
        follower.close()
        assert len(found) < sent
        found += receive_until(leader, lambda more: len(found) + len(more) == sent)
        assert [one.rank for one in found if isinstance(one, RankBytes)] == list(range(sent))
        assert "closed the connection" in str(await_closed(leader))


@pytest.mark.parametrize("receive", [Link.receive, Link.receive_rest])
def test_what_a_peer_said_is_not_lost_to_the_failure_of_answering_it(receive: Callable[[Link], list[Message]]) -> None:
    said = [RankBytes(1, b"before"), Beat(1.0), PartFailed("resource_limit", "scratch is full", b"null", urgent=True)]
    with linked_to_raw() as (leader, peer, writer):
        peer.socket.sendall(b"".join(writer.make_frame(encode(message)) for message in said))
        peer.close()

        def send_until_it_fails() -> None:
            deadline = soon()
            while time.monotonic() < deadline:
                leader.send(RankSignal(None, 15))
                select.select([leader], [], [], 0.01)

        with pytest.raises(LinkClosed, match="the connection to node gpu-1"):
            send_until_it_fails()
        assert receive(leader) == [said[0], said[2]]
        await_closed(leader)
        assert leader.receive_rest() == []


def test_a_peer_that_lives_has_said_no_more_than_came() -> None:
    with linked() as (leader, follower):
        follower.send(RankBytes(1, b"x"))
        select.select([leader], [], [], 60)
        assert leader.receive_rest() == [RankBytes(1, b"x")]
        assert leader.receive() == []


def test_a_reset_closes_the_link() -> None:
    with linked_to_raw() as (leader, peer, _):
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        peer.close()
        assert "broke: Connection reset by peer" in str(await_closed(leader))


def test_a_peer_that_dies_within_a_message_is_said_to_have() -> None:
    with linked_to_raw() as (leader, peer, writer):
        peer.socket.sendall(writer.make_frame(encode(Over("x")))[:-1])
        peer.close()
        assert str(await_closed(leader)).endswith("closed the connection in the middle of a message")


def test_the_descriptor_of_a_broken_link_stays_until_it_is_closed() -> None:
    with linked_to_raw() as (leader, peer, _):
        peer.close()
        await_closed(leader)
        assert leader.fileno() >= 0  # it may still be in a selector, where its number must not be another's
        leader.close()
        leader.close()
        assert leader.fileno() == -1
        with pytest.raises(LinkClosed, match="closed the connection"):
            leader.receive()


def test_a_closed_link_is_closed() -> None:
    with linked() as (leader, _):
        leader.close()
        with pytest.raises(LinkClosed, match="closed on this side"):
            leader.send(Over("x"))


def test_the_socket_is_closed_in_programs_that_are_started_and_sends_at_once() -> None:
    with linked() as ends:
        for link in ends:
            assert not os.get_inheritable(link.fileno())
            with socket.socket(fileno=os.dup(link.fileno())) as own:
                assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                assert own.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                with suppress(OSError):  # of a system that does not know the option
                    assert own.getsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS) == RETRY_MILLISECONDS
            assert not os.get_blocking(link.fileno())


# -- what cannot be believed -------------------------------------------------------------------------


def test_a_flipped_bit_in_mid_run_closes_the_link_after_what_came_before_it() -> None:
    with linked_to_raw() as (leader, peer, writer):
        good, bad = (bytearray(writer.make_frame(encode(RankBytes(0, data)))) for data in (b"good", b"bad"))
        bad[-20] ^= 4
        peer.socket.sendall(good + bad)
        assert receive_until(leader, bool) == [RankBytes(0, b"good")]
        for use in (leader.receive, leader.flush, lambda: leader.send(Over("x")), lambda: leader.beat_if_due(1e9)):
            with pytest.raises(LinkClosed, match=r"node gpu-1 \(10\.0\.0\.1\) sent invalid data.*authentic"):
                use()


def test_a_frame_that_is_sent_twice_closes_the_link() -> None:
    with linked_to_raw() as (leader, peer, writer):
        frame = writer.make_frame(encode(RankBytes(0, b"once")))
        peer.socket.sendall(frame + frame)
        assert receive_until(leader, bool) == [RankBytes(0, b"once")]
        assert "repeated" in str(await_closed(leader))


def test_bytes_of_a_stranger_close_the_link() -> None:
    with linked_to_raw() as (leader, peer, _):
        peer.socket.sendall(os.urandom(1000))
        assert "not authentic" in str(await_closed(leader))


def test_the_leaders_own_messages_sent_back_to_it_close_the_link() -> None:
    with linked_to_raw() as (leader, peer, _):
        leader.send(Over("x"))
        peer.socket.sendall(peer.read(leader.bytes_sent))
        assert "not authentic" in str(await_closed(leader))


@pytest.mark.parametrize("payload", [b"", b"\xc1", encode(Over("x"))], ids=["empty", "garbage", "a leader's"])
def test_an_authentic_frame_that_is_no_message_closes_the_link(payload: bytes) -> None:
    with linked_to_raw() as (leader, peer, writer):
        peer.socket.sendall(writer.make_frame(payload))
        assert "does not decode" in str(await_closed(leader))


@dataclass
class Wire:
    """The leader's end of a link over a pair of sockets, which is quick to make."""

    keys = SessionKeys(b"u" * 32, b"d" * 32)

    def __post_init__(self) -> None:
        ours, self.theirs = socket.socketpair()
        ours.setblocking(False)
        self.link = Link(ours, "the peer", self.keys.to_follower, self.keys.to_leader, decode_from_follower)
        self.follower = LinkFrameWriter(self.keys.to_leader)

    def close(self) -> None:
        self.link.close()
        self.theirs.close()


messages = st.lists(
    st.one_of(
        st.builds(RankBytes, st.integers(0, 1023), st.binary(max_size=300)),
        st.builds(RankTail, st.integers(0, 9), st.binary(max_size=9)),
        st.builds(PartFailed, st.just("no_disk"), st.text(max_size=9), st.binary(max_size=9), st.booleans()),
    ),
    min_size=1,
    max_size=5,
)


@given(messages, st.data())
@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])  # more of them try frames alone
def test_any_cut_of_the_stream_gives_the_same_messages(sent: list[Message], data: st.DataObject) -> None:
    wire = Wire()
    try:
        stream = b"".join(wire.follower.make_frame(encode(message)) for message in sent)
        cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
        found: list[Message] = []
        for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
            wire.theirs.sendall(stream[start:end])
            found += wire.link.receive()
        assert found == sent
    finally:
        wire.close()


@given(messages, st.data())
@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])  # more of them try frames alone
def test_any_flipped_bit_closes_the_link(sent: list[Message], data: st.DataObject) -> None:
    wire = Wire()
    try:
        stream = bytearray(b"".join(wire.follower.make_frame(encode(message)) for message in sent))
        bit = data.draw(st.integers(0, len(stream) * 8 - 1))
        stream[bit // 8] ^= 1 << bit % 8
        wire.theirs.sendall(stream)
        found: list[Message] = []

        def receive_twice() -> None:
            for _ in range(2):
                found.extend(wire.link.receive())

        with pytest.raises(LinkClosed, match="not authentic"):
            receive_twice()
        assert found == sent[: len(found)]
        assert len(found) < len(sent)
    finally:
        wire.close()


# -- beats and clocks --------------------------------------------------------------------------------


def await_offset(link: Link, *others: Link) -> float:
    deadline = soon()
    while link.clock_offset is None:
        assert time.monotonic() < deadline
        assert all(other.receive() == [] for other in (link, *others))
    return link.clock_offset


def test_a_beat_is_answered_and_gives_the_offset_of_the_clocks() -> None:
    with linked() as (leader, follower):
        assert not leader.clock_offset
        leader.beat_if_due(time.monotonic())
        assert abs(await_offset(leader, follower)) < 30  # one machine has one clock, and is slow at worst
        assert follower.clock_offset is None  # it sent no beat


def test_beats_are_sent_once_a_second() -> None:
    with linked() as (leader, _):
        now = time.monotonic()
        counts = []
        for after in (0, 0.5, 0.99, 1.0, 1.5, 1.99, 2.01):
            leader.beat_if_due(now + after * BEAT_SECONDS)
            counts.append(leader.bytes_sent)
        assert counts[0] > 0
        assert [one / counts[0] for one in counts] == [1, 1, 1, 2, 2, 2, 3]


def test_the_offset_is_that_of_the_shortest_round_trip() -> None:
    with linked_to_raw() as (leader, peer, writer):
        now, wall = time.monotonic(), time.time()
        replies = [BeatReply(now - 90, wall + 7), BeatReply(now - 10, wall + 95), BeatReply(now - 50, wall)]
        peer.socket.sendall(b"".join(writer.make_frame(encode(reply)) for reply in replies))
        assert 95 < await_offset(leader) < 155  # the second reply's: it was under way for half of 10 s and a little


def test_an_answer_to_a_beat_of_the_future_is_not_believed() -> None:
    with linked_to_raw() as (leader, peer, writer):
        reply = writer.make_frame(encode(BeatReply(time.monotonic() + 1e6, 0.0)))
        peer.socket.sendall(reply + writer.make_frame(encode(RankBytes(0, b""))))
        receive_until(leader, bool)
        assert leader.clock_offset is None


def test_only_authentic_messages_count_as_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    with linked_to_raw() as (leader, peer, writer):
        frame = writer.make_frame(encode(Beat(1.0)))
        heard_at = leader._heard_at
        peer.socket.sendall(frame[:-1])
        select.select([leader], [], [], 60)
        assert leader.receive() == []
        assert leader._heard_at == heard_at
        monkeypatch.setattr(leader, "_heard_at", heard_at - 100)
        assert leader.seconds_since_heard > 99
        peer.socket.sendall(frame[-1:])
        select.select([leader], [], [], 60)
        assert leader.receive() == []
        assert leader.seconds_since_heard < 60
