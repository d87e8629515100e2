"""The parts of an attempt on other nodes, as their leader has them: their ranks, and the links to them.

What a follower sends goes to those who take what ranks here send (`FollowerEvents`), so that all who decide about ranks
need not know where these run. A link that breaks, or is silent for too long, is a part that is lost: its ranks count as
dead, since their own supervisor kills them when it hears nothing either, and their devices stay leased until it, or
its node, proves that.
"""

import signal
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic, sleep

import msgspec
import structlog

from jobs.files import paths
from jobs.model.parts import ranks_of_part
from jobs.model.records import DeviceRecord
from jobs.protocol.packets import DESCENDANT_PACKET_BYTES, PacketDecoder, SingleRecord, StepBatch, batch_steps
from jobs.protocol.records import Outcome, Returned, Step
from workers.runtime.launch import AttemptConfig
from workers.supervisor.checkpoints.assembly import DraftSource
from workers.supervisor.event_loop import EventLoop
from workers.supervisor.gang.block_pace import LeaderSteps
from workers.supervisor.gang.remote_rank import RemoteRank, make_rank
from workers.supervisor.limits.record_bounds import bound_record
from workers.supervisor.link.connection import Link
from workers.supervisor.link.errors import LinkClosed
from workers.supervisor.link.messages import (
    BlockSize,
    DescendantBytes,
    DescendantEnded,
    HardwareSamples,
    Joined,
    Message,
    Over,
    PartFailed,
    PartSwept,
    RankBlock,
    RankBytes,
    RankCorrupt,
    RankEnded,
    RankTail,
    Start,
)
from workers.supervisor.report.step_blocks import StepBlock

log = structlog.get_logger(__name__)

#: The share of the lease for which a link may be silent, and how many seconds in any case: after a cut of five, TCP
#: takes one or two until it sends again.
SILENCE, MIN_SILENCE_SECONDS = 0.25, 7.0
#: How long a follower may take to say which devices it has, once it has joined.
DEVICES_SECONDS = 10.0
#: How long the end waits for the followers' word that nothing of the attempt is left with them.
SWEEP_SECONDS = 15.0
#: How long it waits until they have heard that the attempt has ended, and have closed their links.
LEAVE_SECONDS = 1.0
_POLL_SECONDS = 0.005


class FollowerGone(Exception):
    """A part was lost, or cannot go on, before the ranks have started. `failure`: what it has said."""

    def __init__(self, node: str, why: str, failure: PartFailed | None = None) -> None:
        super().__init__(f"node {node}: {why}")
        self.node = node
        self.failure = failure


@dataclass(frozen=True, slots=True)
class LostPart:
    """A part whose link has broken (`is_silent`: or says nothing any more)."""

    node: str
    why: str
    is_silent: bool


@dataclass(frozen=True, slots=True)
class FollowerEvents:
    """Who takes what followers send."""

    records: Callable[[RemoteRank, bytes], None]
    block: Callable[[RemoteRank, StepBlock], None]
    corrupt: Callable[[RemoteRank, str], None]
    descendant: Callable[[int, StepBatch | SingleRecord, int], None]
    descendant_ended: Callable[[int, int], None]
    death: Callable[[RemoteRank], None]
    samples: Callable[[int, bytes], None]  # part, what its node has sampled
    failure: Callable[[str, PartFailed], None]  # node, what it says
    lost: Callable[[LostPart], None]


@dataclass(slots=True)
class _Follower:
    """`inbox`: what has come and was not passed on yet. `facts`: what it has said of itself. `swept`: what
    it has said once nothing of the attempt was left there."""

    part: int
    node: str
    link: Link
    ranks: list[RemoteRank]
    inbox: deque[Message] = field(default_factory=deque)
    facts: Joined | None = None
    swept: PartSwept | None = None
    is_lost: bool = False


class Followers:
    """`links` are those to all other parts of the attempt, by their numbers."""

    def __init__(self, config: AttemptConfig, links: Mapping[int, Link]) -> None:
        self._silence_seconds = bearable_silence(config)
        self.own_steps = LeaderSteps(config.ranks, config.world_size)  # those of the ranks here
        self._parts = {part: _make_follower(config, part, link) for part, link in sorted(links.items())}
        self._events: FollowerEvents | None = None
        self._lost: LostPart | None = None

    # -- before the ranks start ------------------------------------------------------------------------

    @property
    def ranks(self) -> list[RemoteRank]:
        """All ranks of other nodes, in the order of their numbers."""
        return [rank for follower in self._parts.values() for rank in follower.ranks]

    @property
    def devices(self) -> dict[int, tuple[DeviceRecord, ...]]:
        """Those of each part that has said which it has."""
        facts = {part: follower.facts for part, follower in self._parts.items() if follower.facts is not None}
        return {part: msgspec.json.decode(one.devices, type=tuple[DeviceRecord, ...]) for part, one in facts.items()}

    def await_devices(self) -> None:
        """Wait until each part has said which devices it has.

        Raises:
            FollowerGone: a part was lost, or has not said it in time.
        """
        deadline = monotonic() + DEVICES_SECONDS
        while missing := [one for one in self._parts.values() if one.facts is None]:
            for follower in missing:
                try:
                    self._take(follower, follower.link.receive())
                except LinkClosed as error:
                    raise FollowerGone(follower.node, str(error)) from error
            if monotonic() > deadline:
                raise FollowerGone(missing[0].node, "it does not say which devices it has")
            sleep(_POLL_SECONDS)

    def draft_sources(self, attempt: Path) -> list[DraftSource]:
        """Where the ranks of all parts save what becomes checkpoints; `attempt` is the attempt's directory."""
        found = []
        for part, follower in self._parts.items():
            carries = follower.facts is not None and follower.facts.carries
            uid = -1 if follower.facts is None or carries else follower.facts.uid
            numbers = range(follower.ranks[0].number, follower.ranks[-1].number + 1)
            found.append(DraftSource(paths.drafts_dir(attempt, part), numbers, None if uid < 0 else uid, carries))
        return found

    def change_block_size(self) -> Mapping[int, list[Step | StepBlock]]:
        """Have blocks of steps follow the pace of the ranks, here and on all nodes; to be called often. Where their
        size changes: what was held of the ranks here, by their numbers."""
        change = self.own_steps.change_size()
        if change is None:
            return {}
        size, held = change
        self._send_all(BlockSize(size))
        return held

    def start_ranks(self, start: Start) -> None:
        self._send_all(start)

    # -- while they run ---------------------------------------------------------------------------------

    def watch(self, loop: EventLoop, events: FollowerEvents) -> None:
        """Have `loop` read the links from now on."""
        self._events = events
        for follower in self._parts.values():
            loop.register_input(follower.link.fileno(), partial(self._receive, follower, loop))
            self._receive(follower, loop)  # what came before it was watched

    def on_tick(self, now: float, loop: EventLoop) -> None:
        """Send what waits, and find links that have been silent for too long."""
        for follower in self._parts.values():
            if follower.is_lost:
                continue
            self._take(follower, [])
            with suppress(LinkClosed):  # which is found out when it is read
                follower.link.beat_if_due(now)
                follower.link.flush()
            silence = follower.link.seconds_since_heard
            if silence > self._silence_seconds:
                self._lose(follower, loop, f"nothing was heard from it for {silence:.0f} s", is_silent=True)

    def await_deaths(self, seconds: float) -> None:
        """Wait for so long, or until a rank of theirs is known to have died without a report: its peers may know of
        that first. What followers send meanwhile is taken afterwards, but a part that is gone is told of at once."""
        deadline = monotonic() + seconds
        while monotonic() < deadline and all(rank.is_alive for rank in self.ranks):
            for follower in self._parts.values():
                try:
                    if not follower.is_lost:
                        _read_ahead(follower)
                except LinkClosed as error:
                    self._tell_loss(follower, str(error))
                    return
            sleep(_POLL_SECONDS)

    # -- the end ----------------------------------------------------------------------------------------

    @property
    def clock_offsets(self) -> dict[str, float]:
        """How many seconds the clocks of other nodes are ahead of this one's, where that is known."""
        found = {one.node: one.link.clock_offset for one in self._parts.values()}
        return {node: offset for node, offset in found.items() if offset is not None}

    @property
    def lost_part(self) -> LostPart | None:
        """The first part that was lost, if any was."""
        return self._lost

    def await_sweep(self) -> None:
        """Wait, for a while, until nothing of the attempt is left on any node that can still say so."""
        deadline = monotonic() + SWEEP_SECONDS
        while monotonic() < deadline:
            waiting = [one for one in self._parts.values() if one.swept is None and not one.is_lost]
            if not waiting:
                return
            for follower in waiting:
                self._read(follower)
            sleep(_POLL_SECONDS)
        log.warning("parts_not_swept", nodes=[one.node for one in self._parts.values() if one.swept is None])

    @property
    def swept(self) -> dict[str, PartSwept]:
        """What each node has said once nothing of the attempt was left there, as far as it has."""
        return {one.node: one.swept for one in self._parts.values() if one.swept is not None}

    def end(self, reason: str) -> None:
        """Tell all that the attempt has ended, as the store knows by now: they give their devices back and leave."""
        self._send_all(Over(reason))
        deadline = monotonic() + LEAVE_SECONDS
        for follower in self._parts.values():
            while not follower.is_lost and monotonic() < deadline:
                self._read(follower)
                sleep(_POLL_SECONDS)
            follower.link.close()

    # -- within -----------------------------------------------------------------------------------------

    def _receive(self, follower: _Follower, loop: EventLoop) -> None:
        if follower.is_lost:
            return
        try:
            messages = follower.link.receive()
        except LinkClosed as error:
            self._lose(follower, loop, str(error), is_silent=False)
        else:
            self._take(follower, messages)

    def _read(self, follower: _Follower) -> None:
        """Read outside of the loop."""
        try:
            self._take(follower, follower.link.receive())
            follower.link.beat_if_due(monotonic())
            follower.link.flush()
        except LinkClosed:
            self._take(follower, follower.link.receive_rest())
            follower.is_lost = True

    def _take(self, follower: _Follower, messages: list[Message]) -> None:
        """Whoever gets a message may wait for the next ones (`await_deaths`), so they are taken from one queue."""
        follower.inbox.extend(messages)
        while follower.inbox:
            message = follower.inbox.popleft()
            match message:
                case Joined():
                    follower.facts = message
                case PartSwept():
                    follower.swept = message
                case PartFailed() if self._events is None:
                    raise FollowerGone(follower.node, message.message, message)
                case _ if self._events is not None:
                    self._pass_on(follower, self._events, message)

    def _pass_on(self, follower: _Follower, events: FollowerEvents, message: Message) -> None:
        match message:
            case PartFailed():
                events.failure(follower.node, message)
            case HardwareSamples():
                events.samples(follower.part, message.data)
            case (
                RankBytes()
                | RankBlock()
                | RankCorrupt()
                | RankTail()
                | RankEnded()
                | DescendantBytes()
                | DescendantEnded()
            ):
                rank = next((one for one in follower.ranks if one.number == message.rank), None)
                if rank is None:
                    log.warning("rank_of_another_part", node=follower.node, rank=message.rank)
                else:
                    _pass_on_rank(rank, events, message)

    def _lose(self, follower: _Follower, loop: EventLoop, why: str, *, is_silent: bool) -> None:
        if follower.is_lost:
            return
        self._take(follower, follower.link.receive_rest())  # why it has left, perhaps
        follower.is_lost = True
        loop.unregister(follower.link.fileno())
        log.warning("part_lost", node=follower.node, why=why)
        lost = LostPart(follower.node, why, is_silent)
        self._lost = self._lost or lost
        if self._events is not None:
            self._events.lost(lost)
            for rank in follower.ranks:
                if rank.is_alive:
                    rank.status = -signal.SIGKILL
                    self._events.death(rank)

    def _tell_loss(self, follower: _Follower, why: str) -> None:
        """Say only that a part is gone, or why it has left: the loop does the rest when it reads the link."""
        follower.inbox.extend(follower.link.receive_rest())
        failure = next((message for message in follower.inbox if isinstance(message, PartFailed)), None)
        if self._events is not None and failure is not None:
            self._events.failure(follower.node, failure)
        elif self._events is not None:
            self._events.lost(LostPart(follower.node, why, is_silent=False))

    def _send_all(self, message: Message) -> None:
        for follower in self._parts.values():
            _send(follower, message)


def bearable_silence(config: AttemptConfig) -> float:
    """Seconds after which a link that is silent counts as broken."""
    return max(MIN_SILENCE_SECONDS, SILENCE * config.lease_seconds)


def _make_follower(config: AttemptConfig, part: int, link: Link) -> _Follower:
    follower = _Follower(part, config.parts[part], link, [])
    numbers = ranks_of_part(part, len(config.devices), config.strategy)
    send = partial(_send, follower)
    follower.ranks += [make_rank(number, follower.node, send, is_first=number == numbers.start) for number in numbers]
    return follower


def _send(follower: _Follower, message: Message) -> None:
    """Send what can be sent: a link that has broken is found out when it is read."""
    if not follower.is_lost:
        with suppress(LinkClosed):
            follower.link.send(message)


def _read_ahead(follower: _Follower) -> None:
    """Read what has come, and note which ranks have died without a report. Raises LinkClosed where the link is
    broken."""
    messages = follower.link.receive()
    follower.inbox.extend(messages)
    for message in messages:
        if isinstance(message, RankEnded) and not _has_reported(follower.inbox, message.rank):
            for rank in follower.ranks:
                if rank.number == message.rank:
                    rank.end(message)


def _has_reported(inbox: Iterable[Message], rank: int) -> bool:
    """Whether a rank says in one of these messages how it has ended."""
    data = b"".join(message.data for message in inbox if isinstance(message, RankBytes) and message.rank == rank)
    with suppress(ValueError):
        return any(
            isinstance(record, (Outcome, Returned)) for packet in PacketDecoder().feed(data) for record in packet
        )
    return False


def _pass_on_rank(
    rank: RemoteRank,
    events: FollowerEvents,
    message: RankBytes | RankBlock | RankCorrupt | RankTail | RankEnded | DescendantBytes | DescendantEnded,
) -> None:
    match message:
        case RankBytes():
            events.records(rank, message.data)
        case RankBlock():
            events.block(rank, message.block)
        case RankCorrupt():
            events.corrupt(rank, message.why)
        case RankTail():
            rank.stderr_tail = message.data
        case RankEnded():
            rank.end(message)
            events.death(rank)
        case DescendantBytes():
            for packet in PacketDecoder(DESCENDANT_PACKET_BYTES).feed(message.data):
                for record in batch_steps(packet):
                    events.descendant(rank.number, bound_record(record), message.source)
        case DescendantEnded():
            events.descendant_ended(rank.number, message.source)
