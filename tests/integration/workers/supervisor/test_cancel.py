"""Cancelling, from every state that has processes."""

import time

import pytest

from jobs import store
from jobs.model.state import AttemptState, JobState, StateReason
from tests.integration.workers.service import TENANT, Service, eventually
from tests.support.timing import once_below

pytestmark = pytest.mark.integration

#: After the grace, which some of these ranks let pass.
CANCEL_SECONDS = 5.0


@pytest.mark.parametrize(
    ("strategy", "devices", "fault"),
    [
        ("single", 1, ""),
        ("ddp", 2, ""),
        ("ddp", 2, "sleep_forever"),
        ("ddp", 3, "ignore_sigterm"),
        ("single", 1, "fork_daemons_and_sleep"),
    ],
)
def test_a_running_job_is_cancelled_in_seconds_with_all_its_processes(
    service: Service, strategy: str, devices: int, fault: str
) -> None:
    processes = devices if strategy == "ddp" else 1
    if fault == "fork_daemons_and_sleep":
        processes += 2

    def cancelled() -> float:
        job = service.long(strategy, devices, fault=fault)
        eventually(lambda: len(service.living()) >= processes, "all have noted themselves")
        began = time.monotonic()
        service.cancel(job)
        record = service.ended(job)
        took = time.monotonic() - began
        assert service.living() == []
        assert (record.state, record.reason) == (JobState.CANCELLED, StateReason.CANCELLED_BY_USER)
        return took

    once_below(service.settings.grace_seconds + CANCEL_SECONDS, cancelled)


def test_ranks_that_heed_sigterm_do_not_wait_for_the_grace_to_pass(service: Service) -> None:
    def cancelled() -> float:
        job = service.long("ddp", 2)
        began = time.monotonic()
        service.cancel(job)
        service.ended(job)
        return time.monotonic() - began

    once_below(service.settings.grace_seconds, cancelled)


@pytest.mark.parametrize("turn", range(6))
def test_a_starting_job_is_cancelled_wherever_it_is(service: Service, turn: int) -> None:
    job = service.submit("ddp", 2, steps=10_000, seconds=0.02, rows=2)
    attempt = service.attempt(job)
    moments = [
        lambda: True,
        lambda: service.marks(attempt).directory.exists(),
        lambda: service.marks(attempt).ranks_lock.exists(),
        lambda: service.attempts(job)[0].state is AttemptState.CLAIMED,
        lambda: service.attempts(job)[0].started,
        lambda: service.job(job).first_step,
    ]
    eventually(moments[turn], "the moment to cancel")
    service.cancel(job)
    assert service.ended(job).state is JobState.CANCELLED


def test_nothing_starts_again_after_a_cancel(service: Service) -> None:
    job = service.long("single", limits={"max_retries": 3})
    service.cancel(job)
    service.ended(job)
    service.dispatch_jobs()
    assert service.job(job).state is JobState.CANCELLED
    assert len(service.attempts(job)) == 1


def test_a_hint_that_comes_a_hundred_times_starts_one_attempt(service: Service) -> None:
    job = service.submit("single", steps=30, seconds=0.02)
    hint = store.Hint(service.settings.node, service.attempt(job))
    for _ in range(99):
        service.send(hint)
    assert service.ended(job).state is JobState.SUCCEEDED
    assert len(service.attempts(job)) == 1
    assert len(service.noted()) == 1


def test_a_hint_that_was_lost_is_sent_again_by_the_reconciler(service: Service) -> None:
    job = service.enqueue("single")
    dispatched = service.run(store.dispatch(service.settings.hold_seconds, 2.0))
    assert len(dispatched.hints) == 1  # taken, and never sent
    assert service.job(job).state is JobState.STARTING
    assert service.ended(job).state is JobState.SUCCEEDED
    assert len(service.attempts(job)) == 1


def test_a_hint_of_a_finished_job_or_of_none_is_ignored(service: Service) -> None:
    job = service.submit("single")
    service.ended(job)
    before = len(service.events("supervisor_started"))
    for stale in (service.attempt(job), store.AttemptId(TENANT, job, 7), store.AttemptId(TENANT, "none", 1)):
        service.send(store.Hint(service.settings.node, stale))
    service.ended(service.submit("single"))  # it came after them
    assert len(service.events("supervisor_started")) == before + 1
    assert service.job(job).attempt == 1
