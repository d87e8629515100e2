"""Row 11: a worker whose network is cut, for less and for more than its lease."""

from collections.abc import Iterator

import pytest

from jobs.model.state import JobState, StateReason
from tests.faults.inject import processes
from tests.faults.inject.network import Network, network
from tests.faults.scene.machine import need
from tests.faults.scene.site import Site, running_site
from tests.integration.workers.service import eventually, is_dead
from workers.supervisor.rank_monitor import FENCE

pytestmark = [pytest.mark.integration, pytest.mark.faults]

LEASE = 12.0


@pytest.fixture(scope="module")
def place() -> Iterator[Network]:
    need("network namespaces")
    with network() as place:
        yield place


@pytest.fixture(scope="module")
def apart(place: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site whose worker is in a network of its own, and reaches the control Redis from there."""
    directory = tmp_path_factory.mktemp("apart")
    with running_site(directory, through=place.host, worker=False, lease_seconds=LEASE) as site:
        site.worker_prefix = place.command()
        site.start_worker()
        yield site


@pytest.mark.slow
def test_row_11_a_worker_cut_off_for_less_than_its_lease_trains_on_and_nobody_notices(
    apart: Site, place: Network
) -> None:
    apart.begin()
    job = apart.running("ddp", 2, talks=True)
    ranks = processes.ranks_of(apart.supervisor(apart.attempt(job)))
    with place.cut_off():
        steps = apart.steps_done(job)
        heartbeat = apart.attempts(job)[0].heartbeat
        eventually(lambda: apart.steps_done(job) > steps + 40, "steps while it is cut off")
        assert apart.attempts(job)[0].heartbeat <= heartbeat + 1
    eventually(lambda: apart.attempts(job)[0].heartbeat > heartbeat + 1, "it beats again")
    assert processes.ranks_of(apart.supervisor(apart.attempt(job))) == ranks
    apart.cancel(job)
    assert apart.finished(job).attempt == 1
    apart.is_sound()


@pytest.mark.slow
def test_row_11_a_worker_cut_off_for_more_than_its_lease_has_ended_its_ranks_when_others_may_start(
    apart: Site, place: Network
) -> None:
    apart.begin()
    gone = {StateReason.NODE_LOST, StateReason.LEASE_EXPIRED}  # whichever beat is missed first
    apart.allow(losses=gone)
    job = apart.running("ddp", 2)
    ranks = processes.ranks_of(apart.supervisor(apart.attempt(job)))
    with place.cut_off():
        eventually(lambda: all(is_dead(pid) for pid in ranks.values()), "it fences itself", FENCE * LEASE + 3)
        assert apart.job(job).attempt == 1  # it was first
        eventually(lambda: apart.attempts(job)[0].reason in gone, "the lease expires", 3 * LEASE)
    apart.reaches(job, JobState.RUNNING, attempt=2, seconds=60)
    apart.cancel(job)
    apart.finished(job)
    apart.is_sound()
