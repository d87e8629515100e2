"""Rows 1, 2, 3, 6, 7 and 27: processes that are killed, frozen, deaf or stopped."""

import random
import signal
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from jobs.model.state import AttemptState, JobState, StateReason
from tests.faults.conftest import LEASE
from tests.faults.inject import processes
from tests.faults.inject.freezer import undying
from tests.faults.scene.machine import need
from tests.faults.scene.site import Site, running_site
from tests.integration.workers.service import eventually, is_dead
from tests.support.timing import once_below

pytestmark = [pytest.mark.integration, pytest.mark.faults]


@pytest.mark.parametrize(("strategy", "devices"), [pytest.param("dp", 2, marks=pytest.mark.slow), ("ddp", 2)])
def test_row_01_a_killed_supervisor_takes_its_ranks_along_and_the_job_ends_as_if_nothing_had_been(
    site: Site, strategy: str, devices: int
) -> None:
    chosen: dict[str, Any] = {"steps": 40, "talks": True, "name": f"row-01-{strategy}"}
    undisturbed = site.post(strategy, devices, **chosen)
    assert site.finished(undisturbed, 60).state is JobState.SUCCEEDED
    site.allow(baselines={chosen["name"]: site.essence(undisturbed)}, losses={StateReason.SUPERVISOR_LOST})

    marker = random.Random(strategy).randrange(5, 30) * (devices if strategy == "dp" else 1)
    job = site.post(strategy, devices, fault="wait_for_the_test", at_step=marker, **chosen)
    site.held(job)
    supervisor = site.supervisor(site.attempt(job))
    ranks = processes.ranks_of(supervisor)
    assert processes.kill(supervisor)
    eventually(lambda: all(is_dead(pid) for pid in ranks.values()), "its ranks die with it")
    site.let_go(job)
    record = site.finished(job, 60)
    assert (record.state, record.attempt, record.retries) == (JobState.SUCCEEDED, 2, 0)
    assert site.attempts(job)[0].reason is StateReason.SUPERVISOR_LOST


def test_row_02_training_outlives_a_killed_worker_and_a_lost_hint_is_sent_again(site: Site) -> None:
    job = site.running("ddp", 2, talks=True)
    ranks = processes.ranks_of(site.supervisor(site.attempt(job)))
    site.kill_worker()
    waits = site.post("single", 1, steps=2)
    site.reaches(waits, JobState.STARTING)
    with site.server.client() as client:
        eventually(lambda: client.delete(f"sy:celery:node.{site.settings.node}"), "the hint is on its way")
    steps = site.steps_done(job)
    eventually(lambda: site.steps_done(job) > steps + 10, "steps without a worker")
    site.start_worker()
    assert site.finished(waits).state is JobState.SUCCEEDED
    assert processes.ranks_of(site.supervisor(site.attempt(job))) == ranks
    assert site.job(job).attempt == 1
    site.cancel(job)
    site.finished(job)


def test_row_02_a_worker_that_is_stopped_is_gone_in_5_seconds_and_training_goes_on(site: Site) -> None:
    job = site.running("single", 1, talks=True)

    def stopped() -> float:
        site.restore_worker()
        began = time.monotonic()
        assert site.stop_worker() == 0
        return time.monotonic() - began

    once_below(5, stopped)
    assert not site.node().alive
    steps = site.steps_done(job)
    eventually(lambda: site.steps_done(job) > steps + 10, "steps without a worker")
    site.start_worker()
    site.cancel(job)
    assert site.finished(job).attempt == 1


@pytest.mark.parametrize("victim", [0, 2])
def test_row_03_a_killed_rank_ends_the_others_and_is_named(site: Site, victim: int) -> None:
    def killed() -> float:
        job = site.running("ddp", 3)
        ranks = processes.ranks_of(site.supervisor(site.attempt(job)))
        began = time.monotonic()
        processes.kill(ranks[victim])
        eventually(lambda: all(is_dead(pid) for pid in ranks.values()), "the other ranks end")
        took = time.monotonic() - began
        record = site.finished(job)
        assert (record.state, record.reason) == (JobState.FAILED, StateReason.RANK_FAILED)
        assert record.error is not None
        assert (record.error["rank"], record.error["signal"]) == (victim, "SIGKILL")
        return took

    once_below(5, killed)


def test_row_06_a_rank_that_ignores_sigterm_is_killed_after_the_grace(site: Site) -> None:
    def cancelled() -> float:
        job = site.post("ddp", 2, fault="ignore_sigterm", rank=-1)
        eventually(lambda: site.job(job).first_step, "first step")
        ranks = processes.ranks_of(site.supervisor(site.attempt(job)))
        began = time.monotonic()
        site.cancel(job)
        eventually(lambda: all(is_dead(pid) for pid in ranks.values()), "they die")
        took = time.monotonic() - began
        assert site.finished(job).state is JobState.CANCELLED
        return took

    once_below(LEASE / 12 + 5, cancelled)


@pytest.mark.slow
def test_row_06_a_process_that_survives_sigkill_keeps_its_device_from_others_and_the_job_ends(
    tmp_path: Path,
) -> None:
    need("freezer")
    with running_site(tmp_path / "site") as other:
        job = other.running("ddp", 2)
        ranks = processes.ranks_of(other.supervisor(other.attempt(job)))
        with undying(ranks[1]):
            other.cancel(job)
            assert other.finished(job, 60).state is JobState.CANCELLED
            eventually(lambda: not other.held_by(job), "its lease is over")
            assert not is_dead(ranks[1])
            devices = other.caller.insist("GET", "/v1/nodes").json()["nodes"][0]["devices"]
            apart = [device for device in devices if device["state"] == "quarantined"]
            assert [device["device"] for device in apart] == [0, 1]
            assert all(str(ranks[1]) in device["quarantine"] for device in apart)
            after = other.post("ddp", 6, steps=2)
            assert other.finished(after).state is JobState.SUCCEEDED
            assert set(other.attempts(after)[0].leased) == set(range(2, 8))
        eventually(lambda: is_dead(ranks[1]), "it dies when it can")
        eventually(lambda: not other.node().quarantine, "its devices are given out again", 120)
        assert other.finished(other.post("ddp", 8, steps=2)).state is JobState.SUCCEEDED
        other.is_sound()


@pytest.mark.slow
def test_row_07_a_supervisor_frozen_beyond_its_lease_loses_the_job_and_kills_its_ranks_when_it_wakes(
    site: Site,
) -> None:
    site.allow(losses={StateReason.LEASE_EXPIRED})
    job = site.running("ddp", 2)
    first = site.attempt(job)
    supervisor, devices = site.supervisor(first), site.held_by(job)
    ranks = processes.ranks_of(supervisor)
    with processes.frozen(supervisor):
        site.reaches(job, JobState.RUNNING, attempt=2, seconds=6 * LEASE)
        assert set(devices) < set(site.held_by(job))  # nothing has proved that its ranks are dead
        assert not any(is_dead(pid) for pid in ranks.values())
    eventually(lambda: is_dead(supervisor), "it leaves when it wakes")
    assert all(is_dead(pid) for pid in ranks.values())
    eventually(lambda: len(site.held_by(job)) == 2, "its devices are free")
    old, new = site.attempts(job)
    assert (old.reason, new.state) == (StateReason.LEASE_EXPIRED, AttemptState.CLAIMED)
    site.cancel(job)
    site.finished(job)


@pytest.mark.slow
def test_row_27_api_and_worker_are_restarted_under_load_and_nobody_notices(site: Site) -> None:
    training = site.running("ddp", 2, talks=True)
    ranks = processes.ranks_of(site.supervisor(site.attempt(training)))
    accepted: list[str] = []
    enough = threading.Event()

    def load() -> None:
        while not enough.wait(0.5):  # a job takes about as long
            accepted.append(site.post("single", 1, steps=1, key=uuid.uuid4().hex))

    loader = threading.Thread(target=load)
    loader.start()
    try:
        for _ in range(2):
            assert site.api.end(signal.SIGTERM) == 0
            assert site.stop_worker() == 0
            site.api.start()
            site.start_worker()
    finally:
        enough.set()
        loader.join(60)
    assert {exchange.status for exchange in site.caller.exchanges if exchange.method == "POST"} <= {0, 200, 201}
    assert processes.ranks_of(site.supervisor(site.attempt(training))) == ranks
    site.cancel(training)
    site.all_ended([*accepted, training], 120)
    assert [site.job(job).state for job in accepted] == [JobState.SUCCEEDED] * len(accepted)
