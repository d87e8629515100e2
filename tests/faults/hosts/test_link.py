"""The link between two supervisors while the network between them is cut."""

import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.inject.network import Network, network
from tests.faults.scene.machine import need
from tests.support.link_peers import ATTEMPT, Admitting, soon
from workers.supervisor.link.admission import LinkListener
from workers.supervisor.link.connection import Link
from workers.supervisor.link.messages import Over, RankBytes

pytestmark = [pytest.mark.integration, pytest.mark.faults]

ROOT = Path(__file__).parents[3]

#: A follower that numbers what it sends, until it is told that the attempt is over.
FOLLOWER = """
import select, sys, time
from tests.support.link_peers import a_hello, never, soon
from workers.supervisor.link.joining import connect
from workers.supervisor.link.messages import RankBytes

link = connect(sys.argv[1], a_hello(), soon(), never)
number = 0
while not link.receive():
    link.beat_if_due(time.monotonic())
    link.send(RankBytes(number, bytes(100)))
    number += 1
    select.select([link], [], [], 0.02)
link.close()
"""


@pytest.fixture
def place() -> Iterator[Network]:
    need("network namespaces")
    with network() as place:
        yield place


def numbers(link: Link, seconds: float) -> list[int]:
    """What comes in so many seconds."""
    found: list[int] = []
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        select.select([link], [], [], left)
        link.beat_if_due(time.monotonic())
        found += [one.rank for one in link.receive() if isinstance(one, RankBytes)]
    return found


def test_a_cable_that_is_out_for_seconds_costs_a_link_nothing_but_the_silence(place: Network) -> None:
    leader = Admitting(LinkListener(place.host, ATTEMPT), 1)
    command = place.command(sys.executable, "-c", FOLLOWER, leader.listener.endpoint)
    with subprocess.Popen(command, cwd=ROOT) as follower:
        try:
            link = leader.links()[1]
            found = numbers(link, 0.5)
            with place.cut_off():
                found += numbers(link, 3.0)
                assert link.seconds_since_heard > 2
            began, deadline = time.monotonic(), soon()
            before = len(found)
            while len(found) == before:
                assert time.monotonic() < deadline
                found += numbers(link, 0.1)
            assert time.monotonic() - began < 30  # TCP tries again after twice the cut at most
            assert abs(link.clock_offset or 0) < 30
            assert found == list(range(len(found)))
            link.send(Over("done"))
            assert follower.wait(60) == 0
        finally:
            follower.kill()
            leader.end()
