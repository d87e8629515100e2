"""Supervisors, workers and forkservers that are killed or stopped. Each test leaves a worker running."""

import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from jobs.model.state import JobState, StateReason
from jobs.store import AttemptId
from tests.integration.workers.service import MODULE, NODE, TENANT, Service, children_named, eventually, is_dead

pytestmark = pytest.mark.integration

#: A worker whose consumer listens to nobody, as kombu's sometimes does after a restart of Redis. It finds out sooner.
DEAF = [
    sys.executable,
    "-c",
    (
        "from kombu.entity import Queue; from workers import app; from workers.node import agent; "
        "agent.LOST_HINT_SECONDS = 2.0; "
        "app.app.conf.task_queues = [Queue('nobody')]; app.app.worker_main(['worker'])"
    ),
]
CELERY = [sys.executable, "-m", "celery", "-A", "workers.app", "worker"]


def test_a_killed_supervisor_takes_its_ranks_along_and_the_job_starts_again(service: Service) -> None:
    lost = len(service.events("supervisor_lost"))
    job = service.long("ddp", 2, fault="fork_daemon", rank=-1)
    supervisor = service.supervisor(service.attempt(job))
    eventually(lambda: len(service.living()) == 4, "two ranks and their daemons")
    processes = service.living()
    os.kill(supervisor, signal.SIGKILL)
    record = service.reaches(job, JobState.RUNNING, attempt=2)
    assert all(is_dead(pid) for pid in processes)
    first, _ = service.attempts(job)
    assert (first.reason, first.message) == (StateReason.SUPERVISOR_LOST, "its supervisor died")
    assert record.retries == 0
    assert len(service.held_by(job)) == 2
    service.cancel(job)
    service.ended(job)
    eventually(lambda: len(service.events("supervisor_lost")) == lost + 1, "it is logged")


@pytest.mark.slow
def test_a_killed_forkserver_is_warm_again_before_a_job_needs_it(service: Service) -> None:
    warmed = len(service.events("forkserver_warm"))
    os.kill(_forkserver(service), signal.SIGKILL)
    eventually(lambda: len(service.events("forkserver_warm")) > warmed, "the forkserver is warm again")
    assert service.ended(service.submit("ddp", 2)).state is JobState.SUCCEEDED


@pytest.mark.slow
def test_a_job_that_comes_right_after_the_forkserver_was_killed_runs_in_its_first_attempt(service: Service) -> None:
    os.kill(_forkserver(service), signal.SIGKILL)
    record = service.ended(service.submit("single"), 60)
    assert (record.state, record.attempt) == (JobState.SUCCEEDED, 1)


def test_a_job_whose_supervisor_was_killed_as_it_was_handed_over_starts_with_the_next_hint(service: Service) -> None:
    spare = _spare(service)
    os.kill(spare, signal.SIGSTOP)
    job = service.submit("ddp", 2)
    eventually(lambda: _started(service, job) == [spare], "the process that was forked ahead is its supervisor")
    os.kill(spare, signal.SIGKILL)
    record = service.ended(job)
    assert (record.state, record.attempt, record.losses) == (JobState.SUCCEEDED, 1, 0)
    assert len(_started(service, job)) > 1


@pytest.mark.slow
def test_a_supervisor_that_slept_when_it_was_handed_a_job_finds_it_taken_and_leaves(service: Service) -> None:
    spare = _spare(service)
    os.kill(spare, signal.SIGSTOP)
    try:
        job = service.submit("ddp", 2, fault="wait_for_the_test")
        service.reaches(job, JobState.RUNNING)
        running = service.supervisor(service.attempt(job))
        assert running != spare
    finally:
        os.kill(spare, signal.SIGCONT)
    eventually(lambda: is_dead(spare), "it leaves")
    assert not is_dead(running)
    service.let_go(job)
    record = service.ended(job)
    assert (record.state, record.attempt) == (JobState.SUCCEEDED, 1)


@pytest.mark.slow
def test_a_supervisor_that_slept_until_its_job_was_over_does_nothing(service: Service) -> None:
    spare = _spare(service)
    os.kill(spare, signal.SIGSTOP)
    try:
        job = service.submit("single")
        before = service.ended(job)
    finally:
        os.kill(spare, signal.SIGCONT)
    eventually(lambda: is_dead(spare), "it leaves")
    assert service.job(job) == before


@pytest.mark.slow
def test_nothing_of_a_worker_that_was_killed_waits_for_work(service: Service) -> None:
    spare, server = _spare(service), _forkserver(service)
    service.kill_worker()
    eventually(lambda: is_dead(spare) and is_dead(server), "its forkserver, and what that forked ahead, have ended")
    service.start_worker()


def _spare(service: Service) -> int:
    """The process that was forked ahead, to be the next supervisor."""
    (child,) = eventually(lambda: children_named("sy-spare", _forkserver(service)), "one is forked ahead")
    return int(child.pid)


def _started(service: Service, job: str) -> list[int]:
    """Supervisors that were started for a job, as far as the worker knows."""
    return [event["pid"] for event in service.events("supervisor_started") if job in event["attempt"]]


def _forkserver(service: Service) -> int:
    assert service.worker is not None
    (found,) = (
        child.pid
        for child in psutil.Process(service.worker.pid).children()
        if any("workers.node.forkserver" in part for part in child.cmdline())
    )
    return int(found)


#: The worker's threads may need one more connection to Redis at the same time than before, which it keeps. Fewer than
#: the attempts that follow.
MORE_CONNECTIONS = 2


def test_starting_attempts_leaves_the_worker_no_zombies_and_no_open_files(service: Service) -> None:
    assert service.worker is not None
    service.ended(service.submit("single"))
    before = _open_files(service.worker.pid)
    for _ in range(5):
        service.ended(service.submit("single"))
    worker = service.worker.pid
    eventually(lambda: _open_files(worker) <= before + MORE_CONNECTIONS, "no more files are open than before")
    for parent in (worker, _forkserver(service)):
        eventually(lambda pid=parent: not _zombies(pid), "no child of it stays a zombie")  # type: ignore[misc]


def _zombies(pid: int) -> list[psutil.Process]:
    return [child for child in psutil.Process(pid).children() if is_dead(child.pid)]


def _open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def test_training_goes_on_while_the_worker_is_dead_and_the_next_one_finds_the_living_and_the_dead(
    service: Service,
) -> None:
    living, dead, short = service.long("ddp", 2, talks=True), service.long(), service.long(steps=100)
    ranks = service.ranks(service.attempt(living))
    service.kill_worker()
    steps = service.steps_done(living)
    eventually(lambda: service.steps_done(living) > steps + 10, "more steps")
    assert service.ended(short).state is JobState.SUCCEEDED  # without any worker
    os.kill(service.supervisor(service.attempt(dead)), signal.SIGKILL)
    # Its supervisor gave the devices back, and was killed before it could clear away; `leaves_nothing` looks for it.
    service.marks(AttemptId(TENANT, "long-gone", 1)).create()

    service.start_worker()
    service.reaches(dead, JobState.RUNNING, attempt=2)  # long before a lease is over
    assert service.job(living).attempt == 1
    assert service.ranks(service.attempt(living)) == ranks
    os.kill(service.supervisor(service.attempt(living)), signal.SIGKILL)
    service.reaches(living, JobState.RUNNING, attempt=2)
    for job in (living, dead):
        service.cancel(job)
        service.ended(job)


@pytest.mark.slow  # as row 2 of the faults
def test_a_worker_that_is_asked_to_stop_is_gone_in_5_seconds_and_training_goes_on(service: Service) -> None:
    job = service.long("single", talks=True)
    began = time.monotonic()
    assert service.stop_worker() == 0
    assert time.monotonic() - began < 5
    assert not service.node().alive
    steps = service.steps_done(job)
    eventually(lambda: service.steps_done(job) > steps + 10, "more steps")
    service.start_worker()
    assert service.job(job).attempt == 1
    service.cancel(job)
    service.ended(job)


@pytest.mark.slow
def test_a_worker_that_stops_its_attempts_gives_the_jobs_back_and_celery_itself_can_serve_them(
    service: Service,
) -> None:
    service.stop_worker()
    service.start_worker([*MODULE, "--stop-attempts-on-exit"])
    job = service.long("ddp", 2)
    service.stop_worker()
    record = service.job(job)
    assert (record.state, record.reason, record.retries) == (JobState.QUEUED, StateReason.SERVICE_STOPPED, 0)
    assert service.held_by(job) == []
    assert service.living() == []

    service.start_worker(CELERY)
    assert service.worker is not None
    service.reaches(job, JobState.RUNNING, attempt=2)
    # The forkserver alone: no pool of processes.
    assert len(psutil.Process(service.worker.pid).children()) == 1
    service.cancel(job)
    service.ended(job)


def test_a_second_worker_for_the_node_is_refused(service: Service) -> None:
    with service.another_worker() as second:
        assert second.wait(60) != 0
    assert f"another worker on this host already serves node '{NODE}'" in service.worker_log()
    assert service.ended(service.submit("single")).state is JobState.SUCCEEDED


def test_a_worker_that_cannot_have_its_devices_ends_and_says_why(service: Service) -> None:
    with service.another_worker(SHARDYARD_NODE="n2", SHARDYARD_DEVICES="tpu:4") as second:
        assert second.wait(60) != 0
    assert "'tpu:4' names no devices; use auto" in service.worker_log()


@pytest.mark.slow
def test_a_job_starts_though_no_hint_reaches_its_node(service: Service) -> None:
    assert service.stop_worker() == 0
    service.start_worker(DEAF)
    job = service.submit("single", 1, steps=2)
    assert service.ended(job).state is JobState.SUCCEEDED
    unheard = [str(service.attempt(job))]
    eventually(lambda: unheard in [event["attempts"] for event in service.events("hints_not_heard")], "it is logged")
    assert service.stop_worker() == 0
    service.start_worker()
