"""Messages between the supervisors of one attempt: the whole protocol of a link.

    follower                                   leader
       |                                          |  listens; its endpoint is in the control Redis
       | <------------- challenge --------------- |
       | ------ PartHello, and its proof -------> |  `workers.supervisor.link.handshake` has these three
       | <-------- answer, and its proof -------- |
       | ---------------- Joined ---------------> |  its devices
       |                                          |  waits until every part has joined
       | <---------------- Start ---------------- |  ranks may run their program
       | --- RankBytes, DescendantBytes --------> |  records, in their order
       | --- RankBlock -------------------------> |  many steps in one, where steps come fast
       | --- RankTail --------------------------> |  the end of what a rank that fails has printed
       | --- HardwareSamples -------------------> |
       | <------- RankCommand, RankSignal ------- |
       | <----- ShowProfile, CallsRequest ------- |
       | <------------- BlockSize --------------- |
       | --- DescendantEnded, RankEnded --------> |
       | --- RankCorrupt -----------------------> |  a rank has written what are no records
       | --- PartFailed ------------------------> |  at any time: this part cannot go on
       | --- PartSwept -------------------------> |  all ranks are dead, and what they had started
       | <----------------- Over ---------------- |  at any time: sweep, give the devices back, leave
       | --- (closes) --------------------------> |

Both sides send a `Beat` every second and answer the other's, so a silent link is a broken one. Messages of one
direction arrive once and in their order, or the link closes: a follower's bytes of a rank come before its `RankEnded`.

The follower closes first, after `Over`: a connection that is closed with something unread takes along what is still
on its way to the other side. Where it had to leave before, `Link.receive_rest` has what arrived.

Fields only grow at the end, with a default: both sides run the same version, but the hello is read by one that may not.
"""

from collections.abc import Iterator
from importlib.metadata import version
from typing import Annotated, TypeVar

import msgspec

from workers.supervisor.report.step_blocks import MAX_BLOCK_STEPS, StepBlock

#: Bytes of a rank in one message. Smaller messages let a beat pass sooner on a slow network.
MAX_DATA_BYTES = 256 * 1024
#: How much of the end of a rank's stderr is kept: for its last line, and for tracebacks of what it started.
MAX_TAIL_BYTES = 32 * 1024

_Number = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=2.0**53)]  # neither NaN nor infinite


class LinkMessage(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all messages: the first element on the wire is the class's name."""


# -- follower to leader ----------------------------------------------------------------------------


class PartHello(LinkMessage, frozen=True):
    """Who wants to join. Part of the handshake, and never sent later."""

    attempt: str
    node: str
    address: str
    part: _Number
    ranks: _Number
    version: str


class Joined(LinkMessage, frozen=True):
    """The first message after the handshake. `devices` are those of the lease on this node, as JSON; `uid` is that of
    the ranks' account, -1 where they have the service's. `carries`: the node does not mount the storage, and brings its
    files there."""

    devices: bytes
    uid: int
    carries: bool = False


class RankBytes(LinkMessage, frozen=True):
    """Packets of records of a rank, cut anywhere."""

    rank: _Number
    data: bytes


class RankBlock(LinkMessage, frozen=True):
    """Steps of a rank that follow those sent before."""

    rank: _Number
    block: StepBlock


class RankCorrupt(LinkMessage, frozen=True):
    """What a rank has written to its channel cannot be read, and is not read any further."""

    rank: _Number
    why: str


class RankTail(LinkMessage, frozen=True):
    """The end of what a rank has written to stderr, before it says how it ended, or has died. The log has all of it:
    each node writes its own."""

    rank: _Number
    data: Annotated[bytes, msgspec.Meta(max_length=MAX_TAIL_BYTES)]


class RankEnded(LinkMessage, frozen=True):
    """A rank is dead and reaped. Nothing of it follows."""

    rank: _Number
    status: int
    children_seconds: _Seconds
    out_of_memory: bool


class DescendantBytes(LinkMessage, frozen=True):
    """One packet of records of a process that a rank started, whole."""

    rank: _Number
    source: _Number
    data: bytes


class DescendantEnded(LinkMessage, frozen=True):
    rank: _Number
    source: _Number


class HardwareSamples(LinkMessage, frozen=True):
    """What this node has sampled of its devices, compressed: all of it each time, every ten seconds."""

    data: bytes


class PartFailed(LinkMessage, frozen=True):
    """This part cannot go on: a limit, a bundle that cannot be unpacked, no disk. `error` is what the job's status is
    to show, as JSON. `urgent`: the ranks get no grace."""

    reason: str
    message: str
    error: bytes
    urgent: bool


class PartSwept(LinkMessage, frozen=True):
    """Nothing of the attempt runs on this node any more, but for so many processes that would not die. `disk_was_low`:
    a rank that failed here may have failed of a full disk; `disk_breach` says so where it was this attempt that filled
    it."""

    survivors: _Number
    disk_was_low: bool = False
    disk_breach: PartFailed | None = None


# -- leader to follower ----------------------------------------------------------------------------


class Start(LinkMessage, frozen=True):
    """Every part has joined. `resume` is what to go on from, or empty: the name of a checkpoint whose manifest has
    `resume_sha256`, or the number of the attempt in which the script has saved."""

    master_address: str
    master_port: _Number
    resume: str
    resume_sha256: str = ""


class RankCommand(LinkMessage, frozen=True):
    """Bytes for the control channel of a rank, or of all ranks of the part (`None`)."""

    rank: _Number | None
    command: bytes


class RankSignal(LinkMessage, frozen=True):
    """A signal for a rank, or for all ranks of the part (`None`)."""

    rank: _Number | None
    number: _Number


class ShowProfile(LinkMessage, frozen=True):
    """Ranks are to record profile `number`, of so many steps; 0: none any more."""

    number: _Number
    steps: _Number


class CallsRequest(LinkMessage, frozen=True):
    """Ranks are to say which collectives they have called."""

    number: _Number


class BlockSize(LinkMessage, frozen=True):
    """From now on blocks of steps are to have so many."""

    steps: Annotated[int, msgspec.Meta(ge=1, le=MAX_BLOCK_STEPS)]


class Over(LinkMessage, frozen=True):
    """The attempt has ended."""

    reason: str


# -- both ------------------------------------------------------------------------------------------


class Beat(LinkMessage, frozen=True):
    """`sent`: the sender's monotonic clock."""

    sent: _Seconds


class BeatReply(LinkMessage, frozen=True):
    """`sent` of the beat that is answered; `at`: seconds since the epoch by the clock of the answerer."""

    sent: _Seconds
    at: _Seconds


FollowerMessage = (
    Joined
    | RankBytes
    | RankBlock
    | RankCorrupt
    | RankTail
    | RankEnded
    | DescendantBytes
    | DescendantEnded
    | HardwareSamples
    | PartFailed
    | PartSwept
)
LeaderMessage = Start | RankCommand | RankSignal | ShowProfile | CallsRequest | BlockSize | Over
Message = FollowerMessage | LeaderMessage

Decoded = TypeVar("Decoded")

_encoder = msgspec.msgpack.Encoder()
#: A follower that says what only a leader may say is not understood, and the other way round.
_from_follower: msgspec.msgpack.Decoder[FollowerMessage | Beat | BeatReply] = msgspec.msgpack.Decoder(
    FollowerMessage | Beat | BeatReply
)
_from_leader: msgspec.msgpack.Decoder[LeaderMessage | Beat | BeatReply] = msgspec.msgpack.Decoder(
    LeaderMessage | Beat | BeatReply
)
_hello = msgspec.msgpack.Decoder(PartHello)


def this_version() -> str:
    """The version that a PartHello names: supervisors of one attempt run the same."""
    return version("shardyard")


def split(message: RankBytes) -> Iterator[RankBytes]:
    """The message as several of at most `MAX_DATA_BYTES`; mostly itself alone."""
    if len(message.data) <= MAX_DATA_BYTES:
        yield message
        return
    for start in range(0, len(message.data), MAX_DATA_BYTES):
        yield msgspec.structs.replace(message, data=message.data[start : start + MAX_DATA_BYTES])


def encode(message: LinkMessage) -> bytes:
    return _encoder.encode(message)


def decode_from_follower(payload: bytes) -> FollowerMessage | Beat | BeatReply:
    """Raises ValueError where this is none."""
    return _decode(_from_follower, payload)


def decode_from_leader(payload: bytes) -> LeaderMessage | Beat | BeatReply:
    """Raises ValueError where this is none."""
    return _decode(_from_leader, payload)


def decode_hello(payload: bytes) -> PartHello:
    """Raises ValueError where this is none."""
    return _decode(_hello, payload)


def _decode(decoder: msgspec.msgpack.Decoder[Decoded], payload: bytes) -> Decoded:
    try:
        return decoder.decode(payload)
    except (ValueError, RecursionError) as error:  # errors of msgspec are ValueErrors
        raise ValueError(f"a message does not decode: {error}") from error
