"""Jobs that wait for a time, and jobs that users suspend and resume."""

import time
from datetime import UTC, datetime, timedelta

import pytest

from jobs import store
from jobs.model.state import AttemptState, JobState, StateReason, SupervisorCommand
from shardyard.contract.errors import JobFinished, NotFound
from tests.integration.store.world import NEVER, TENANT, World, a_spec

pytestmark = pytest.mark.integration


def suspend(world: World, job: str) -> str:
    return world.run(store.suspend(TENANT, job))


def resume(world: World, job: str) -> None:
    world.run(store.resume(TENANT, job))


def reason(world: World, job: str) -> StateReason:
    return world.job(job).reason


# -- jobs that wait for a time ---------------------------------------------------------------------


def test_a_job_with_a_start_time_is_in_the_queue_from_then_on_at_the_place_of_its_arrival(world: World) -> None:
    world.node(devices=1)
    timed = world.submit(start_after=3600)
    later = world.submit()
    assert reason(world, timed) is StateReason.WAITING_FOR_TIME
    starts = world.job(timed).start_after
    assert starts is not None
    assert starts / 1e6 == pytest.approx(time.time() + 3600, abs=60)
    world.redis.zadd("sy:timed", {f"{TENANT}/{timed}": 1})
    world.redis.hset(f"sy:job:{TENANT}/{timed}", "start_after", 1)
    assert world.dispatch() == [timed]
    assert world.state(later) is JobState.QUEUED


def test_a_start_time_may_be_a_time_and_one_that_is_over_delays_nothing(world: World) -> None:
    world.node(devices=1)
    past, future = (datetime.now(UTC) + timedelta(hours=hours) for hours in (-1, 1))
    waits = world.submit(start_after=future.isoformat())
    starts = world.submit(start_after=past.isoformat())
    assert world.dispatch() == [starts]
    assert world.job(waits).start_after == int(future.timestamp() * 1e6)
    assert world.job(starts).reason is StateReason.STARTING


def test_the_answer_to_a_submit_says_that_the_job_waits_for_its_time(world: World) -> None:
    world.node(devices=1)
    view = world.run(store.submit(TENANT, "timed", a_spec(start_after=60))).view
    assert view is not None
    assert view.record == world.job("timed")


def test_a_job_that_waits_for_its_time_can_be_cancelled_and_suspended(world: World) -> None:
    world.node(devices=1)
    one, other = world.submit(start_after=60), world.submit(start_after=60)
    world.run(store.cancel(TENANT, one))
    assert suspend(world, other) == "suspended"
    assert world.redis.zcard("sy:timed") == 0
    resume(world, other)
    assert reason(world, other) is StateReason.WAITING_FOR_TIME


# -- suspended jobs --------------------------------------------------------------------------------


def test_a_suspended_job_leaves_the_queue_and_keeps_its_place(world: World) -> None:
    world.node(devices=1)
    first, second = world.submit(), world.submit()
    assert suspend(world, first) == suspend(world, first) == "suspended"
    assert (world.state(first), reason(world, first)) == (JobState.QUEUED, StateReason.SUSPENDED)
    assert world.dispatch() == [second]
    third = world.submit()
    resume(world, first)
    resume(world, first)
    assert reason(world, first) is StateReason.WAITING_FOR_DEVICES
    world.finish_and_release(world.claim(second))
    assert world.dispatch() == [first]
    assert world.state(third) is JobState.QUEUED


def test_a_running_job_saves_and_leaves_its_devices_at_nobodys_cost(world: World) -> None:
    world.node(devices=1)
    attempt = world.running(retries=1)
    assert world.run(store.read_command(attempt, "c")) is SupervisorCommand.GO
    assert suspend(world, attempt.job) == "suspending"
    assert world.run(store.read_command(attempt, "c")) is SupervisorCommand.STOP
    assert (world.state(attempt.job), world.job(attempt.job).suspended) == (JobState.RUNNING, True)
    for _ in range(2):  # the answer to the first may be lost
        assert world.finish(attempt, StateReason.SERVICE_STOPPED)
    world.release(attempt)
    job = world.job(attempt.job)
    assert (job.state, job.reason, job.retries, job.losses) == (JobState.QUEUED, StateReason.SUSPENDED, 0, 0)
    (ended,) = world.history(attempt.job)
    assert (ended.reason, ended.message) == (StateReason.SUSPENDED, "the job was suspended")
    assert world.dispatch() == []
    resume(world, attempt.job)
    assert world.dispatch() == [attempt.job]


def test_an_attempt_that_nobody_has_claimed_is_suspended_at_once(world: World) -> None:
    world.node(devices=1)
    job = world.submit()
    world.dispatch()
    assert suspend(world, job) == "suspended"
    assert world.history(job)[0].state is AttemptState.ENDED
    assert world.dispatch() == []


def test_a_job_that_is_resumed_before_it_has_left_starts_again(world: World) -> None:
    world.node(devices=1)
    attempt = world.running()
    suspend(world, attempt.job)
    resume(world, attempt.job)
    assert world.finish(attempt, StateReason.SERVICE_STOPPED)
    assert reason(world, attempt.job) is StateReason.WAITING_FOR_DEVICES
    world.release(attempt)
    assert world.dispatch() == [attempt.job]


@pytest.mark.parametrize("reason_of_end", [StateReason.RANK_FAILED, StateReason.SUPERVISOR_LOST])
def test_a_job_whose_attempt_fails_before_it_has_left_stays_suspended(world: World, reason_of_end: StateReason) -> None:
    world.node(devices=1)
    attempt = world.running(retries=1)
    suspend(world, attempt.job)
    assert world.finish(attempt, reason_of_end)
    world.release(attempt)
    assert world.dispatch() == []
    world.run(store.dispatch(NEVER))
    assert reason(world, attempt.job) is StateReason.SUSPENDED
    resume(world, attempt.job)
    assert world.dispatch() == [attempt.job]


def test_a_job_that_completes_before_it_has_left_has_succeeded(world: World) -> None:
    world.node(devices=1)
    attempt = world.running()
    suspend(world, attempt.job)
    world.finish_and_release(attempt)
    assert world.state(attempt.job) is JobState.SUCCEEDED
    assert not world.job(attempt.job).suspended
    with pytest.raises(JobFinished, match="has ended"):
        suspend(world, attempt.job)
    with pytest.raises(JobFinished, match="has ended"):
        resume(world, attempt.job)


def test_a_suspended_job_can_be_cancelled_and_one_that_is_being_cancelled_not_suspended(world: World) -> None:
    world.node(devices=2)
    waits, runs = world.submit(), world.running()
    suspend(world, waits)
    world.run(store.cancel(TENANT, waits))
    assert world.state(waits) is JobState.CANCELLED
    world.run(store.cancel(TENANT, runs.job))
    with pytest.raises(JobFinished, match="is being cancelled"):
        suspend(world, runs.job)


def test_what_is_not_there_is_not_suspended(world: World) -> None:
    with pytest.raises(NotFound):
        suspend(world, "none")
    with pytest.raises(NotFound):
        resume(world, "none")


def test_a_suspended_job_that_an_earlier_version_has_queued_does_not_start(world: World) -> None:
    world.node(devices=1)
    job, other = world.submit(), world.submit()
    world.redis.hset(f"sy:job:{TENANT}/{job}", "suspended", "1")
    assert world.dispatch() == [other]
    assert reason(world, job) is StateReason.SUSPENDED
    resume(world, job)
    world.finish_and_release(world.claim(other))
    assert world.dispatch() == [job]


def test_an_earlier_version_is_asked_to_stop_with_a_reason_that_it_knows(world: World) -> None:
    world.node(devices=1)
    attempt = world.running()
    suspend(world, attempt.job)
    assert world.redis.hget(f"sy:attempt:{attempt}", "requeue") == b"service_stopped"
