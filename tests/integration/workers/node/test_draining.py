"""Nodes that drain, by the operator's command or because their worker leaves. Each test leaves a worker running."""

import json
import os
import signal
import sys
import time
import uuid

import pytest

from jobs import store
from jobs.model.records import NodeRecord
from jobs.model.spec_rules import parse_spec
from jobs.model.state import JobState, StateReason
from tests.integration.workers.service import MODULE, NODE, PATIENCE_SECONDS, TENANT, WARM_SECONDS, Service, eventually

pytestmark = pytest.mark.integration

KEEPER = [sys.executable, "-m", "workers.node.worker_monitor"]


def nodes(service: Service) -> dict[str, NodeRecord]:
    return {node.id: node for node in service.run(store.read_fleet()).nodes}


def is_sent_back(service: Service, job: str) -> bool:
    """Whether a job waits again, because its node drained, and it cost nothing."""
    record = service.job(job)
    assert (record.losses, record.retries) == (0, 0)
    return (record.state, record.reason) == (JobState.QUEUED, StateReason.DRAINED)


@pytest.mark.slow
def test_at_the_deadline_of_a_drain_what_still_runs_goes_to_another_node(service: Service) -> None:
    job, short = service.long("ddp", 2), service.submit("single", steps=100, seconds=0.01)
    eventually(lambda: service.job(short).first_step, "the short job trains")
    with service.another_worker(SHARDYARD_NODE="n2"):
        eventually(lambda: "n2" in nodes(service), "the other node registers", WARM_SECONDS)
        service.run(store.drain_node(NODE, deadline_seconds=600))
        waiting = service.submit("single")
        assert service.finished(short).attempt == 1, "what ends before the deadline is left alone"
        began = time.monotonic()
        service.run(store.drain_node(NODE, deadline_seconds=4))
        moved = service.reaches(job, JobState.RUNNING, attempt=2)
        assert time.monotonic() - began > 4
        first, second = service.attempts(job)
        assert (first.node, first.reason, second.node) == (NODE, StateReason.DRAINED, "n2")
        assert (moved.losses, moved.retries) == (0, 0)
        assert service.finished(waiting).node == "n2"
        assert nodes(service)[NODE].moving
        assert service.held_by(job) == []
        service.cancel(job)
        service.finished(job)
        eventually(lambda: not nodes(service)["n2"].held, "its devices are free")
        service.run(store.undrain_node(NODE))
        service.run(store.take_down_node("n2", None))
    assert service.node().takes_work
    assert service.ended(service.submit("single")).node == NODE


def test_a_job_that_is_moved_saves_a_checkpoint_first_and_goes_on_from_there(service: Service) -> None:
    body = service.spec("ddp", 2, steps=5_000, rows=2, seconds=0.02).model_dump(mode="json")
    body["program"]["checkpoint"] = {"every_steps": 4_000}  # so that the only one is that of the stop
    job = service.run(store.submit(TENANT, uuid.uuid4().hex, parse_spec(json.dumps(body)))).job
    service.dispatch_jobs()
    eventually(lambda: service.job(job).first_step, "first step")
    service.run(store.drain_node(NODE, deadline_seconds=0))
    eventually(lambda: is_sent_back(service, job), "the job is sent back")
    saved = service.job(job).checkpoint
    assert saved is not None
    assert saved["step"] > 0
    service.dispatch_jobs()
    assert service.job(job).state is JobState.QUEUED, "not to the same node while it drains"
    eventually(lambda: not service.held_by(job), "its devices are free")  # before they are leased again
    service.run(store.undrain_node(NODE))
    service.dispatch_jobs()
    service.reaches(job, JobState.RUNNING, attempt=2)
    assert service.attempts(job)[1].resumed == {"step": saved["step"], "attempt": 1}
    service.cancel(job)
    service.ended(job)


@pytest.mark.slow
def test_a_worker_that_comes_back_goes_on_with_what_was_left_of_the_deadline(service: Service) -> None:
    job = service.long()
    before = len(service.events("node_drains"))
    service.run(store.drain_node(NODE, deadline_seconds=600))
    eventually(lambda: len(service.events("node_drains")) > before, "the node knows")
    service.kill_worker()
    service.server.client().hset(f"sy:node:{NODE}", "drain_left", "3")  # as its last beat would have, minutes later
    service.start_worker()
    eventually(lambda: is_sent_back(service, job), "the job is sent back")
    service.run(store.undrain_node(NODE))
    service.dispatch_jobs()
    service.reaches(job, JobState.RUNNING, attempt=2)
    service.cancel(job)
    service.ended(job)


@pytest.mark.slow
def test_a_worker_that_drains_waits_for_its_attempts_takes_none_and_ends_well(service: Service) -> None:
    service.stop_worker()
    service.start_worker([*KEEPER, "--drain"])
    assert service.worker is not None
    job = service.long(steps=150, seconds=0.02)
    service.worker.terminate()
    eventually(lambda: not service.node().takes_work, "it takes no more")
    waiting = service.submit("single")
    assert service.finished(job).attempt == 1
    assert service.worker.wait(PATIENCE_SECONDS) == 0
    assert service.held_by(job) == []
    assert (service.job(waiting).state, service.node().alive) == (JobState.QUEUED, False)
    service.start_worker()
    service.dispatch_jobs()
    assert service.ended(waiting).state is JobState.SUCCEEDED


@pytest.mark.slow
def test_a_worker_that_drains_until_a_deadline_sends_back_what_still_runs(service: Service) -> None:
    service.stop_worker()
    service.start_worker([*MODULE, "--drain", "1"])
    job = service.long("ddp", 2)
    assert service.stop_worker() == 0
    assert is_sent_back(service, job)
    assert service.living() == []
    service.start_worker()
    service.dispatch_jobs()
    service.reaches(job, JobState.RUNNING, attempt=2)
    service.cancel(job)
    service.ended(job)


@pytest.mark.slow
def test_a_second_sigterm_ends_a_drain_and_the_next_worker_adopts_what_goes_on(service: Service) -> None:
    service.stop_worker()
    service.start_worker([*KEEPER, "--drain"])
    assert service.worker is not None
    job = service.long("single", talks=True)
    before = len(service.events("worker_drains"))
    service.worker.terminate()
    eventually(lambda: len(service.events("worker_drains")) > before, "it drains")
    service.worker.terminate()
    assert service.worker.wait(PATIENCE_SECONDS) == 0
    steps = service.steps_done(job)
    eventually(lambda: service.steps_done(job) > steps + 10, "more steps")
    service.start_worker()
    assert service.node().takes_work
    supervisor = service.supervisor(service.attempt(job))
    os.kill(supervisor, signal.SIGKILL)
    service.reaches(job, JobState.RUNNING, attempt=2)  # the new worker looks after it
    service.cancel(job)
    service.ended(job)
