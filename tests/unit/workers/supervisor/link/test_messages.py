"""What supervisors say to each other, there and back, and what is none of it."""

import inspect

import msgspec
import pytest

from jobs.protocol.packets import DESCENDANT_PACKET_BYTES
from jobs.protocol.records import Step
from workers.supervisor.link import messages
from workers.supervisor.link.framing import MAX_FRAME_BYTES
from workers.supervisor.link.messages import (
    MAX_DATA_BYTES,
    Beat,
    BeatReply,
    BlockSize,
    CallsRequest,
    DescendantBytes,
    DescendantEnded,
    HardwareSamples,
    Joined,
    LinkMessage,
    Over,
    PartFailed,
    PartHello,
    PartSwept,
    RankBlock,
    RankBytes,
    RankCommand,
    RankCorrupt,
    RankEnded,
    RankSignal,
    RankTail,
    ShowProfile,
    Start,
    decode_from_follower,
    decode_from_leader,
    decode_hello,
    encode,
    split,
)
from workers.supervisor.report.step_blocks import StepBlock

BEATS = [Beat(12.5), BeatReply(12.5, 1.7e9)]
FROM_FOLLOWERS = [
    RankBytes(3, b"\0\xff"),
    RankBlock(3, StepBlock(128, 16, 1.7e9, Step(130, 0, "train", (0,), 1.7e9, 12.5, forward_ms=(3.0,)))),
    RankCorrupt(3, "a packet does not decode"),
    RankTail(3, b"KeyError: 3\n"),
    RankEnded(3, -9, 0.25, out_of_memory=True),
    DescendantBytes(3, 7, b"packet"),
    DescendantEnded(3, 7),
    HardwareSamples(b"packed"),
    Joined(b"[]", 1001),
    PartFailed("resource_limit", "scratch is full", b"null", urgent=True),
    PartSwept(0),
    PartSwept(2, True, PartFailed("resource_limit", "a disk is full", b"null", urgent=True)),
    *BEATS,
]
FROM_LEADERS = [
    Start("10.0.0.1", 29500, ""),
    Start("10.0.0.1", 29500, "000000000020-1", "ab" * 32),
    ShowProfile(1, 10),
    CallsRequest(2),
    BlockSize(16),
    RankCommand(None, b"save"),
    RankCommand(2, b"save"),
    RankSignal(None, 15),
    Over("cancelled"),
    *BEATS,
]


def test_every_message_is_tried_here() -> None:
    classes = {one for _, one in inspect.getmembers(messages, inspect.isclass) if issubclass(one, LinkMessage)}
    assert classes - {LinkMessage, PartHello} == {type(one) for one in FROM_FOLLOWERS + FROM_LEADERS}


@pytest.mark.parametrize("message", FROM_FOLLOWERS, ids=repr)
def test_what_a_follower_says_arrives(message: messages.FollowerMessage) -> None:
    assert decode_from_follower(encode(message)) == message


@pytest.mark.parametrize("message", FROM_LEADERS, ids=repr)
def test_what_a_leader_says_arrives(message: messages.LeaderMessage) -> None:
    assert decode_from_leader(encode(message)) == message


@pytest.mark.parametrize("message", FROM_LEADERS[:-2], ids=repr)
def test_a_follower_may_not_say_what_only_a_leader_may(message: messages.LeaderMessage) -> None:
    with pytest.raises(ValueError, match="does not decode"):
        decode_from_follower(encode(message))


@pytest.mark.parametrize("message", FROM_FOLLOWERS[:-2], ids=repr)
def test_a_leader_may_not_say_what_only_a_follower_may(message: messages.FollowerMessage) -> None:
    with pytest.raises(ValueError, match="does not decode"):
        decode_from_leader(encode(message))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"[]",
        encode(RankBytes(1, b"x")) + b"x",
        encode(RankBytes(-1, b"")),
        encode(RankBytes(2**31, b"")),
        encode(RankEnded(1, 0, float("nan"), out_of_memory=False)),
        encode(Beat(float("inf"))),
        encode(Beat(-1.0)),
        msgspec.msgpack.encode(["RankTail", 1, 3]),
        msgspec.msgpack.encode(["RankCorrupt", 1, "x"]).replace(b"\xa1x", b"\xa1\xff"),
        b"\x94\xa9RankBytes\x01\xc4\0" + b"\x91" * 100_000 + b"\xc0",
    ],
    ids=repr,
)
def test_what_is_no_message_is_a_value_error(payload: bytes) -> None:
    with pytest.raises(ValueError, match="does not decode"):
        decode_from_follower(payload)


def test_a_newer_hello_is_read_without_its_new_fields() -> None:
    fields = ["PartHello", "t/j/1", "gpu-2", "10.0.0.2", 1, 4, "9.9", "new"]
    assert decode_hello(msgspec.msgpack.encode(fields)) == PartHello("t/j/1", "gpu-2", "10.0.0.2", 1, 4, "9.9")


@pytest.mark.parametrize("size", [0, 1, MAX_DATA_BYTES, MAX_DATA_BYTES + 1, 3 * MAX_DATA_BYTES])
def test_bytes_of_a_rank_are_split_and_none_is_lost(size: int) -> None:
    data = bytes(number % 251 for number in range(size))
    parts = list(split(RankBytes(1, data)))
    assert b"".join(part.data for part in parts) == data
    assert len(parts) == max(1, -(-size // MAX_DATA_BYTES))
    assert {part.rank for part in parts} == {1}


@pytest.mark.parametrize("size", [MAX_DATA_BYTES, DESCENDANT_PACKET_BYTES + 4])
def test_what_may_be_in_one_message_fits_a_frame(size: int) -> None:
    assert len(encode(DescendantBytes(2**31 - 1, 2**31 - 1, bytes(size)))) < MAX_FRAME_BYTES
