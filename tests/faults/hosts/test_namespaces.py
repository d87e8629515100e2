"""The hosts that tests of faults are run on, themselves."""

import subprocess
import sys
from collections.abc import Iterator
from itertools import permutations

import pytest

from tests.faults.inject.hosts import NAMESPACES, Hosts, clear_leftovers, running_hosts
from tests.faults.scene.machine import need
from tests.integration.workers.service import eventually, is_dead

pytestmark = [pytest.mark.integration, pytest.mark.faults]

#: Whether an address refuses a connection, which takes it to be reached.
REFUSES = """
import socket, sys
connection = socket.socket()
connection.settimeout(0.5)
try:
    connection.connect((sys.argv[1], 9))
except ConnectionRefusedError:
    sys.exit(0)
except OSError:
    sys.exit(1)
"""


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    need("network namespaces")
    with running_hosts(3) as hosts:
        yield hosts


def reaches(hosts: Hosts, host: int, address: str) -> bool:
    return subprocess.run(hosts.command(host, sys.executable, "-c", REFUSES, address), timeout=60).returncode == 0


def reached(hosts: Hosts) -> set[tuple[int, int]]:
    """All pairs of hosts of which the first reaches the second; the bridge is 0."""
    pairs = [*permutations(range(1, 4), 2), *((host, 0) for host in range(1, 4))]
    return {(one, far) for one, far in pairs if reaches(hosts, one, hosts.address(far) if far else hosts.bridge)}


@pytest.mark.slow
def test_a_host_whose_cable_is_out_reaches_nobody_and_is_back_when_it_is_put_in(hosts: Hosts) -> None:
    eventually(lambda: len(reached(hosts)) == 9, "the cables are in")  # the kernel takes up to a second to notice one
    everything = reached(hosts)
    with hosts.without(2):
        assert reached(hosts) == {pair for pair in everything if 2 not in pair}
    eventually(lambda: reached(hosts) == everything, "all is as before")  # addresses have to be found again


def test_two_hosts_that_are_cut_from_each_other_reach_all_else(hosts: Hosts) -> None:
    with hosts.cut_between(1, 3):
        assert reached(hosts) == {(1, 2), (2, 1), (2, 3), (3, 2), (1, 0), (2, 0), (3, 0)}


def test_hosts_of_a_run_that_was_killed_are_removed_with_what_runs_on_them(hosts: Hosts) -> None:
    with subprocess.Popen(["true"]) as gone:
        gone.wait(60)
    left = Hosts(f"sh{gone.pid}x1", 1)
    left.make()
    with subprocess.Popen(left.command(1, "sleep", "600")) as sleeper:
        eventually(lambda: left.processes(1), "it runs there")
        clear_leftovers()
        assert not list(NAMESPACES.glob(f"{left.name}*"))
        sleeper.wait(60)
    assert is_dead(sleeper.pid)
    assert (NAMESPACES / f"{hosts.name}h1").exists()
