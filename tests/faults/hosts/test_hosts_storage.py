"""Row 40: the shared storage hangs on one host of a job over two, as NFS does whose server is away."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from jobs.model.state import JobState, StateReason
from jobs.store import AttemptId
from tests.faults.inject.hanging_storage import HangingStorage
from tests.faults.scene.host_service import LEASE_SECONDS, HostService, service_over_hosts
from tests.faults.scene.machine import need
from tests.integration.workers.service import eventually, is_dead
from workers.supervisor.gang.followers import MIN_SILENCE_SECONDS
from workers.supervisor.main_thread_watch import LOOP_SECONDS

pytestmark = [pytest.mark.integration, pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(900)]

NODES = ("n1", "n2", "n3")
LENIENCY_SECONDS = 15.0


@pytest.fixture(scope="module")
def storages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[HostService, dict[str, HangingStorage]]]:
    need("network namespaces", "file systems in user space")
    directory = tmp_path_factory.mktemp("hanging")
    with ExitStack() as stack:
        found = {}
        for node in NODES:
            found[node] = HangingStorage(directory / "storage")
            stack.callback(found[node].close)
        prefixes = {node: storage.prefix for node, storage in found.items()}
        yield stack.enter_context(service_over_hosts(directory, len(NODES), prefixes)), found


def runs(hosts: HostService) -> tuple[str, AttemptId, list[str]]:
    """A job over two hosts that prints, its attempt, and the nodes of its parts."""
    job = hosts.long("ddp", 1, nodes=2, talks=True)
    return job, hosts.attempt(job), [place.node for place in hosts.job(job).placement]


def goes_on_elsewhere(hosts: HostService, job: str, hung: str) -> None:
    eventually(lambda: hosts.job(job).attempt == 2 and hosts.job(job).first_step, "it trains again")
    assert hung not in {place.node for place in hosts.job(job).placement}
    assert hosts.job(job).retries == 0, "the service's budget, and not the user's"


def comes_free(hosts: HostService, job: str, node: str, attempt: AttemptId, ranks: list[int]) -> None:
    """What hung goes on: the ranks die, and the devices are given back."""
    eventually(lambda: all(map(is_dead, ranks)), "its ranks are dead")
    eventually(lambda: not hosts.held_on(node, attempt), "its devices are free", 3 * LEASE_SECONDS)
    hosts.cancel(job)
    assert hosts.ended(job).state is JobState.CANCELLED
    hosts.leaves_nothing()


def test_a_follower_whose_storage_hangs_is_cut_off_and_the_job_goes_on_elsewhere(
    storages: tuple[HostService, dict[str, HangingStorage]],
) -> None:
    hosts, of_node = storages
    job, attempt, (leader, follower) = runs(hosts)
    ranks, everyone = hosts.ranks_on(follower, attempt), hosts.everyone(job)
    with of_node[follower].hanging():
        patience = MIN_SILENCE_SECONDS + LENIENCY_SECONDS
        eventually(lambda: hosts.attempts(job)[0].reason, "the attempt has ended", patience)
        first = hosts.attempts(job)[0]
        assert first.reason in (StateReason.NODE_LOST, StateReason.LINK_LOST), first
        assert follower in first.message
        eventually(lambda: not hosts.held_on(leader, attempt), "the other node's devices are free", LENIENCY_SECONDS)
        assert all(map(is_dead, set(everyone) - set(ranks)))
        assert hosts.held_on(follower, attempt), "its own are leased until they are proven free"
        goes_on_elsewhere(hosts, job, follower)
    comes_free(hosts, job, follower, attempt, ranks)


def test_a_leader_whose_storage_hangs_loses_its_lease_and_the_others_devices_come_free(
    storages: tuple[HostService, dict[str, HangingStorage]],
) -> None:
    hosts, of_node = storages
    job, attempt, (leader, follower) = runs(hosts)
    ranks, theirs = hosts.ranks_on(leader, attempt), hosts.ranks_on(follower, attempt)
    with of_node[leader].hanging():
        eventually(lambda: all(map(is_dead, theirs)), "their ranks are dead", MIN_SILENCE_SECONDS + LENIENCY_SECONDS)
        patience = LOOP_SECONDS + 2 * LEASE_SECONDS + LENIENCY_SECONDS
        eventually(lambda: hosts.attempts(job)[0].reason, "the attempt has ended", patience)
        first = hosts.attempts(job)[0]
        assert first.reason in (StateReason.NODE_LOST, StateReason.LEASE_EXPIRED), (first.reason, first.message)
        eventually(lambda: all(map(is_dead, ranks)), "a thread that waits for no file ends its ranks", LENIENCY_SECONDS)
        eventually(lambda: not hosts.held_on(follower, attempt), "the other node's devices are free")
        assert hosts.held_on(leader, attempt), "its own are leased until they are proven free"
        goes_on_elsewhere(hosts, job, leader)
    comes_free(hosts, job, leader, attempt, ranks)
