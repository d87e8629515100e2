"""Leases that run out, and a Redis that goes away, shorter and longer than a lease lasts."""

import os
import signal
import sys
import time
from collections.abc import Iterator

import pytest

from jobs import store
from jobs.model.state import AttemptState, JobState, StateReason
from tests.integration.workers.service import WARM_SECONDS, Service, eventually, is_dead, running_service
from tests.support.timing import once_below
from workers.supervisor.rank_monitor import FENCE

pytestmark = pytest.mark.integration

LEASE = 4.0
#: A worker that soon takes a supervisor for stuck that still holds devices of an attempt that has ended.
HASTY = [
    sys.executable,
    "-c",
    (
        "from workers.node import attempt_reaper; attempt_reaper.STUCK_LEASES = 0.25; "
        "from workers.__main__ import main; main()"
    ),
]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(tmp_path_factory.mktemp("service"), lease_seconds=LEASE) as service:
        yield service


def test_a_frozen_supervisor_loses_its_lease_and_kills_its_ranks_when_it_wakes(service: Service) -> None:
    job = service.long("ddp", 2)
    first = service.attempt(job)
    supervisor, ranks, devices = service.supervisor(first), service.ranks(first), service.held_by(job)
    os.kill(supervisor, signal.SIGSTOP)
    try:
        _watch_for_second_attempt(service, job)
        assert set(devices) < set(service.held_by(job))  # still busy: nothing has proved that the ranks are dead
        assert not any(is_dead(pid) for pid in ranks)
    finally:
        os.kill(supervisor, signal.SIGCONT)
    eventually(lambda: is_dead(supervisor), "the first supervisor leaves")
    assert all(is_dead(pid) for pid in ranks)
    assert set(service.held_by(job)).isdisjoint(devices)
    old, new = service.attempts(job)
    assert (old.reason, new.state) == (StateReason.LEASE_EXPIRED, AttemptState.CLAIMED)
    assert service.job(job).state is JobState.RUNNING
    service.cancel(job)
    service.ended(job)


def _watch_for_second_attempt(service: Service, job: str) -> None:
    deadline = time.monotonic() + 60
    while service.job(job).state is not JobState.RUNNING or service.job(job).attempt < 2:
        live = [attempt for attempt in service.attempts(job) if attempt.state is not AttemptState.ENDED]
        assert len(live) <= 1
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
def test_a_node_that_falls_silent_with_its_attempts_is_lost_by_name_and_another_one_goes_on(service: Service) -> None:
    job = service.long("ddp", 2)
    supervisor, ranks = service.supervisor(service.attempt(job)), service.living()
    with service.another_worker(SHARDYARD_NODE="n2"):
        eventually(lambda: len(service.run(store.read_fleet()).nodes) == 2, "the other node registers", WARM_SECONDS)
        os.kill(supervisor, signal.SIGSTOP)  # as far as others can see, its host is gone
        service.kill_worker()
        record = service.reaches(job, JobState.RUNNING, attempt=2)
        first, second = service.attempts(job)
        assert (first.reason, second.node) == (StateReason.NODE_LOST, "n2")
        assert first.message.startswith("node n1 is lost: neither it nor the attempt")
        assert (record.losses, record.retries) == (1, 0)
        service.cancel(job)
        service.finished(job)
    service.run(store.take_down_node("n2", None))
    service.start_worker(HASTY)
    eventually(lambda: is_dead(supervisor) and all(is_dead(pid) for pid in ranks), "its agent ends them")
    eventually(lambda: not service.node().held, "its devices are free")


@pytest.mark.slow
def test_a_supervisor_that_never_wakes_is_killed_and_its_devices_are_free_again(service: Service) -> None:
    job = service.long("single")
    supervisor, ranks = service.supervisor(service.attempt(job)), service.living()
    os.kill(supervisor, signal.SIGSTOP)
    eventually(lambda: is_dead(supervisor), "the agent kills it", 8 * LEASE)
    assert all(is_dead(pid) for pid in ranks)
    service.reaches(job, JobState.RUNNING, attempt=2)
    eventually(lambda: len(service.held_by(job)) == 1, "one device is held")
    service.cancel(job)
    service.ended(job)


def test_a_redis_that_is_killed_and_comes_back_soon_does_not_touch_a_run(service: Service) -> None:
    job = service.submit("single", steps=80, seconds=0.02, talks=True, fault="wait_for_the_test", at_step=60)
    eventually(lambda: service.job(job).first_step, "the first step")
    ranks, steps = service.living(), service.steps_done(job)
    service.server.kill()
    eventually(lambda: service.steps_done(job) > steps + 10, "steps while Redis is away")
    service.server.start()
    service.let_go(job)
    record = service.ended(job)
    assert (record.state, record.attempt) == (JobState.SUCCEEDED, 1)
    assert service.noted() == ranks
    assert service.text(job).splitlines() == [f"step {step}" for step in range(80)]


@pytest.mark.slow
def test_a_supervisor_that_is_cut_off_for_most_of_its_lease_ends_its_ranks_before_others_may_start(
    service: Service,
) -> None:
    assert once_below(LEASE, lambda: _cut_off(service), 3) > FENCE * LEASE - 1.5


def _cut_off(service: Service) -> float:
    """Seconds until a supervisor that does not reach Redis has ended its ranks."""
    job = service.long("ddp", 2)
    ranks = service.living()
    service.server.kill()
    began = time.monotonic()
    try:
        eventually(lambda: all(is_dead(pid) for pid in ranks), "the ranks are dead")
        took = time.monotonic() - began
    finally:
        service.server.start()
    service.reaches(job, JobState.RUNNING, attempt=2)
    assert service.attempts(job)[0].reason is StateReason.LEASE_EXPIRED
    service.cancel(job)
    service.ended(job)
    return took


@pytest.mark.slow
def test_a_worker_is_gone_in_5_seconds_when_it_is_asked_to_stop_while_redis_is_away(service: Service) -> None:
    job = service.long("single", talks=True)
    service.server.kill()
    began = time.monotonic()
    try:
        assert service.stop_worker() == 0
        assert time.monotonic() - began < 5
    finally:
        service.server.start()
    service.start_worker()
    assert service.job(job).attempt == 1
    service.cancel(job)
    service.ended(job)
