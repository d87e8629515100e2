"""What the leader makes of a follower's messages, over a real link."""

import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pytest

from jobs.protocol.packets import encode_packet
from jobs.protocol.records import Note, Outcome, Returned
from tests.support.link_peers import linked
from tests.support.samples.attempts import a_launch
from workers.supervisor.event_loop import EventLoop
from workers.supervisor.gang.followers import FollowerEvents, Followers
from workers.supervisor.gang.remote_rank import RemoteRank
from workers.supervisor.link.connection import Link
from workers.supervisor.link.messages import Message, PartFailed, RankBytes, RankEnded

PATIENCE_SECONDS = 30.0
FAILED = Outcome(3, 1, "code_error", "RuntimeError: Connection reset by peer")
PEER_LOST = RankBytes(3, encode_packet([Note("patterns", "why"), Returned(FAILED, "handlers")]))
KILLED = RankEnded(2, -signal.SIGKILL, 0.0, out_of_memory=False)


@dataclass
class Leader:
    """Two ranks are on the leader's node, two on the follower's. `taken`: what it passed on, in that order."""

    followers: Followers
    link: Link
    loop: EventLoop
    taken: list[object] = field(default_factory=list)

    def send(self, *messages: Message) -> None:
        for message in messages:
            self.link.send(message)
        self.link.flush()

    def dead(self) -> list[int]:
        return [rank.number for rank in self.followers.ranks if not rank.is_alive]


@pytest.fixture
def leader() -> Iterator[Leader]:
    config = replace(a_launch(), node="gpu-0", parts=("gpu-0", "gpu-1"), lease_seconds=600)
    with linked() as (to_follower, link):
        made = Leader(Followers(config, {1: to_follower}), link, EventLoop())

        def take_death(rank: RemoteRank) -> None:
            made.taken.append(("death", rank.number))

        made.followers.watch(
            made.loop,
            FollowerEvents(
                records=lambda rank, data: made.taken.append(("records", rank.number)),
                block=lambda rank, block: made.taken.append(("block", rank.number)),
                corrupt=lambda rank, why: made.taken.append(("corrupt", why)),
                descendant=lambda rank, record, source: None,
                descendant_ended=lambda rank, source: None,
                death=take_death,
                samples=lambda part, data: None,
                failure=lambda node, failure: made.taken.append(("failure", node)),
                lost=lambda part: made.taken.append(("lost", part.node)),
            ),
        )
        yield made
        made.loop.close()


def test_a_death_is_known_at_once_and_what_came_before_it_is_taken_in_order_afterwards(leader: Leader) -> None:
    leader.send(PEER_LOST, KILLED)
    leader.followers.await_deaths(PATIENCE_SECONDS)

    assert leader.dead() == [2]
    assert leader.taken == []  # whoever waits here decides about a failure, and must not be asked about another one
    leader.followers.on_tick(time.monotonic(), leader.loop)
    assert leader.taken == [("records", 3), ("death", 2)]


def test_a_rank_that_reported_how_it_failed_has_not_died_before_the_others(leader: Leader) -> None:
    leader.send(PEER_LOST, RankEnded(3, 256, 0.0, out_of_memory=False), KILLED)
    leader.followers.await_deaths(PATIENCE_SECONDS)

    assert leader.dead() == [2]


def test_a_part_that_is_gone_is_told_of_at_once_and_before_what_its_ranks_had_to_say(leader: Leader) -> None:
    leader.send(PEER_LOST)
    leader.link.close()
    began = time.monotonic()
    leader.followers.await_deaths(PATIENCE_SECONDS)

    assert time.monotonic() - began < PATIENCE_SECONDS
    assert leader.dead() == []
    assert leader.taken == [("lost", "gpu-1")]  # why the ranks of other nodes have lost their peers
    with suppress(KeyError):
        leader.loop.run_once(0.1)
    assert leader.taken[1:] == [("records", 3), ("lost", "gpu-1"), ("death", 2), ("death", 3)]
    assert leader.dead() == [2, 3]


def test_a_part_that_left_with_a_reason_is_gone_for_that_reason(leader: Leader) -> None:
    leader.send(PEER_LOST, PartFailed("memory_limit", "too much memory", b"null", urgent=False))
    leader.link.close()
    leader.followers.await_deaths(PATIENCE_SECONDS)

    assert leader.taken == [("failure", "gpu-1")]
