"""One scenario for each arrow of the diagram, and what a repeated call does."""

import json
from typing import Any

import pytest
import redis
import zstandard

from jobs import store
from jobs.model.state import AttemptState, JobState, StateReason, SupervisorCommand
from jobs.store import MAX_LOSSES, AttemptId, Hint, NodeStanding, PartId
from shardyard.contract.errors import (
    IdempotencyConflict,
    JobFinished,
    JobNotFinished,
    NodeInUse,
    NotFound,
    TooLargeForPool,
    Unavailable,
    UnknownPool,
    UnreadableSpec,
)
from tests.integration.store.world import NEVER, TENANT, World, a_spec, node_info

pytestmark = pytest.mark.integration


# -- a: submit -------------------------------------------------------------------------------------


def test_a_submitted_job_is_queued_with_its_spec_and_its_place_in_the_queue(world: World) -> None:
    world.node(devices=2)
    first, second = world.submit(2), world.submit(1, labels={"team": "vision"})
    view = world.run(store.read_job(TENANT, second))
    assert (view.record.state, view.record.reason) == (JobState.QUEUED, StateReason.WAITING_FOR_DEVICES)
    assert view.record.labels == {"team": "vision"}
    assert view.spec == a_spec(1, labels={"team": "vision"}, limits={"max_retries": 0})
    assert view.queue is not None
    assert (view.queue.ahead, view.queue.free, view.queue.largest_gap, view.queue.live_nodes) == (1, 2, 2, 1)
    assert world.run(store.read_job(TENANT, first)).queue is not None


def test_a_submit_whose_reply_was_lost_says_created_again(world: World) -> None:
    world.node()
    for key in ("", "key"):
        call = store.submit(TENANT, f"job{key}", a_spec(), idempotency_key=key, digest="d")
        assert [world.run(call).created for _ in range(3)] == [True, True, True]
    assert world.run(store.read_fleet()).queued == {"default": 2}


def test_an_idempotency_key_gives_the_same_job_and_refuses_another_body(world: World) -> None:
    world.node()
    made = world.run(store.submit(TENANT, "a", a_spec(), idempotency_key="k", digest="d"))
    again = world.run(store.submit(TENANT, "b", a_spec(), idempotency_key="k", digest="d"))
    assert (made.job, made.created, again.job, again.created) == ("a", True, "a", False)
    with pytest.raises(IdempotencyConflict, match="job a"):
        world.run(store.submit(TENANT, "c", a_spec(), idempotency_key="k", digest="other"))
    assert world.run(store.submit("other-tenant", "d", a_spec(), idempotency_key="k", digest="d")).created


def test_a_submit_tells_the_job_as_it_was_stored(world: World) -> None:
    world.node(devices=4)
    world.submit()
    wanted = a_spec(2, name="named", labels={"team": "vision"}, priority=5, limits={"max_retries": 3})
    told = world.run(store.submit(TENANT, "b", wanted, parent="000000001", idempotency_key="k", digest="d"))
    assert told.view == world.run(store.read_job(TENANT, "b"))


def test_a_job_that_is_known_is_read_again_only_when_something_of_it_has_changed(world: World) -> None:
    world.node(devices=4)
    first, second = world.submit(), world.submit()
    seen = world.run(store.read_job(TENANT, second))
    assert world.run(store.read_job(TENANT, second, seen)) is seen
    world.run(store.cancel(TENANT, first))
    ahead = world.run(store.read_job(TENANT, second, seen))
    assert ahead.record is seen.record
    assert (seen.queue and seen.queue.ahead, ahead.queue and ahead.queue.ahead) == (1, 0)
    world.run(store.cancel(TENANT, second))
    ended = world.run(store.read_job(TENANT, second, ahead))
    assert (ended.record.state, ended.queue) == (JobState.CANCELLED, None)
    assert world.run(store.read_job(TENANT, second, ended)) is ended
    world.run(store.delete_job(TENANT, second))
    with pytest.raises(NotFound):
        world.run(store.read_job(TENANT, second, ended))


def test_a_key_without_a_digest_is_remembered_too(world: World) -> None:
    world.node()
    world.run(store.submit(TENANT, "a", a_spec(), idempotency_key="k"))
    assert world.run(store.submit(TENANT, "b", a_spec(), idempotency_key="k")).job == "a"


def test_the_key_of_a_deleted_job_may_be_used_again(world: World) -> None:
    world.node()
    world.run(store.submit(TENANT, "a", a_spec(), idempotency_key="k", digest="d"))
    world.run(store.cancel(TENANT, "a"))
    world.run(store.delete_job(TENANT, "a"))
    assert world.run(store.submit(TENANT, "b", a_spec(), idempotency_key="k", digest="d")).created
    assert world.state("b") is JobState.QUEUED


def test_what_could_never_run_is_refused_at_submit(world: World) -> None:
    with pytest.raises(UnknownPool, match="no worker has registered"):
        world.submit()
    world.node(devices=2)
    world.node("n2", devices=3)
    with pytest.raises(UnknownPool, match="pools: default"):
        world.submit(pool="a100")
    with pytest.raises(TooLargeForPool, match="has 3"):
        world.submit(4)
    assert world.run(store.read_fleet()).queued == {"default": 0}


def test_a_server_without_memory_refuses_new_jobs_and_lets_running_ones_go_on(world: World) -> None:
    world.node()
    attempt, waiting = world.running(), world.submit()
    world.redis.config_set("maxmemory", "1")
    try:
        with pytest.raises(Unavailable):
            world.submit()
        assert world.run(store.renew_lease(attempt, "c")) is not SupervisorCommand.LOST
        assert world.run(store.renew_node("n1", "i1")).standing is NodeStanding.OK
        assert world.dispatch() == [waiting]
        assert world.finish(attempt)
        assert world.release(attempt) == 1
        assert world.run(store.cancel(TENANT, waiting)) == "cancelled"
    finally:
        world.redis.config_set("maxmemory", "0")
    assert len(world.run(store.list_jobs(TENANT, store.JobFilter())).jobs) == 2


def test_a_server_that_takes_no_writes_can_be_read(world: World) -> None:
    world.node()
    job = world.submit()
    world.redis.config_set("min-replicas-to-write", "1")  # as with a disk that is full
    try:
        with pytest.raises(Unavailable):
            world.submit()
        assert len(world.run(store.list_jobs(TENANT, store.JobFilter())).jobs) == 1
        assert world.run(store.read_job(TENANT, job)).record.id == job
        assert world.run(store.read_records([(TENANT, job)]))[0] is not None
        assert world.run(store.read_changes("0-0", 10)).entries
        assert world.run(store.list_attempts(TENANT, job)) == ()
    finally:
        world.redis.config_set("min-replicas-to-write", "0")


# -- b: dispatch and claim -------------------------------------------------------------------------


def test_dispatch_leases_named_devices_and_hints_the_node(world: World) -> None:
    world.node(devices=4)
    job = world.submit(3)
    dispatched = world.run(store.dispatch(NEVER))
    assert dispatched.created == (AttemptId(TENANT, job, 1),)
    record = world.job(job)
    assert (record.state, record.attempt, record.node, record.leased) == (JobState.STARTING, 1, "n1", (0, 1, 2))
    (hint,) = dispatched.hints
    assert (hint.node, hint.attempt) == ("n1", AttemptId(TENANT, job, 1))
    assert world.dispatch() == []


def test_a_hint_is_taken_once_per_interval_until_it_is_claimed(world: World) -> None:
    world.node()
    job = world.submit()
    assert len(hints(world, 3600)) == 1
    assert hints(world, 3600) == ()
    assert len(hints(world, 5)) == 1, "due in an hour means that the clock was set back"
    assert hints(world, 5) == ()
    assert len(hints(world, 0.000_001)) == 1
    world.claim(job)
    assert hints(world, 0.000_001) == ()


def hints(world: World, resend_seconds: float) -> tuple[Hint, ...]:
    return world.run(store.dispatch(NEVER, resend_seconds)).hints


def test_a_claim_succeeds_once_and_again_only_for_its_claimant(world: World) -> None:
    world.node()
    job = world.submit()
    world.dispatch()
    attempt = world.attempt(job)
    assert "node n1" in world.run(store.claim(attempt, "c", "n2")).refused
    for _ in range(3):
        assert world.run(store.claim(attempt, "c", "n1")).granted
    assert "claimed" in world.run(store.claim(attempt, "thief", "n1")).refused
    assert "no such attempt" in world.run(store.claim(AttemptId(TENANT, job, 2), "c", "n1")).refused
    assert world.finish(attempt)
    assert "ended" in world.run(store.claim(attempt, "c", "n1")).refused


# -- c: mark, renew, orders ------------------------------------------------------------------------


def test_marks_set_each_time_once(world: World) -> None:
    world.node()
    attempt = world.claimed()
    assert world.mark(attempt)
    first = world.job(attempt.job)
    assert (first.state, first.reason, first.first_step) == (JobState.RUNNING, StateReason.RUNNING, None)
    assert first.started is not None
    assert world.mark(attempt, "first_step")
    marked = world.job(attempt.job)
    assert marked.first_step is not None
    assert world.mark(attempt)
    assert world.mark(attempt, "first_step")
    assert world.job(attempt.job) == marked


def test_only_the_claimant_beats_marks_and_finishes(world: World) -> None:
    world.node()
    attempt = world.claimed()
    for stranger in ("thief", ""):
        assert world.run(store.renew_lease(attempt, stranger)) is SupervisorCommand.LOST
        assert not world.mark(attempt, by=stranger)
        assert not world.finish(attempt, by=stranger)
        assert world.run(store.read_command(attempt, stranger)) is SupervisorCommand.LOST
    assert world.run(store.read_command(attempt, "c")) is SupervisorCommand.GO
    assert world.state(attempt.job) is JobState.STARTING


def test_an_attempt_that_nobody_claimed_takes_no_finish(world: World) -> None:
    world.node()
    job = world.submit()
    world.dispatch()
    for claimant in ("", "c"):
        assert not world.finish(world.attempt(job), by=claimant)
    assert world.state(job) is JobState.STARTING


# -- d, e: ends ------------------------------------------------------------------------------------


def test_a_completed_job_keeps_its_result_and_its_devices_until_they_are_released(world: World) -> None:
    world.node(devices=1)
    attempt = world.running()
    waiting = world.submit()
    end = store.finish(attempt, "c", StateReason.COMPLETED, "done", result={"loss": 0.5})
    assert [world.run(end), world.run(end)] == [True, True]
    record = world.job(attempt.job)
    assert (record.state, record.reason, record.result) == (JobState.SUCCEEDED, StateReason.COMPLETED, {"loss": 0.5})
    assert record.finished is not None
    assert world.dispatch() == []
    assert [world.release(attempt), world.release(attempt)] == [1, 0]
    assert world.dispatch() == [waiting]


def test_another_end_after_the_end_is_refused(world: World) -> None:
    world.node()
    attempt = world.running()
    assert world.finish(attempt)
    before = world.job(attempt.job)
    assert not world.finish(attempt, StateReason.RANK_FAILED)
    assert not world.reap(attempt, heartbeat=None)
    assert not world.mark(attempt)
    assert world.run(store.renew_lease(attempt, "c")) is SupervisorCommand.LOST
    assert world.run(store.read_command(attempt, "c")) is SupervisorCommand.LOST
    assert world.job(attempt.job) == before


def test_a_job_whose_running_mark_was_lost_still_passes_through_running(world: World) -> None:
    world.node()
    attempt = world.claimed()
    version = world.job(attempt.job).version
    assert world.finish(attempt)
    record = world.job(attempt.job)
    assert (record.state, record.version) == (JobState.SUCCEEDED, version + 2)
    assert record.started is not None


@pytest.mark.parametrize("reason", [StateReason.WALL_LIMIT, StateReason.REJECTED_BY_WORKER])
def test_a_final_failure_is_not_tried_again(world: World, reason: StateReason) -> None:
    world.node()
    attempt = world.running(retries=3)
    assert world.finish(attempt, reason)
    assert (world.state(attempt.job), world.job(attempt.job).reason) == (JobState.FAILED, reason)


def test_a_failure_keeps_its_error(world: World) -> None:
    world.node()
    attempt = world.running()
    world.run(
        store.finish(attempt, "c", StateReason.RANK_FAILED, "rank 1: exit code 3", error={"rank": 1, "exit_code": 3})
    )
    record, (ended,) = world.job(attempt.job), world.history(attempt.job)
    assert (record.state, record.message) == (JobState.FAILED, "rank 1: exit code 3")
    assert record.error == ended.error == {"rank": 1, "exit_code": 3}
    assert (ended.state, ended.reason) == (AttemptState.ENDED, StateReason.RANK_FAILED)


def test_a_node_may_refuse_what_it_cannot_start_but_not_what_is_claimed(world: World) -> None:
    world.node(devices=1)
    job = world.submit()
    world.dispatch()
    attempt = world.attempt(job)
    refusal = store.refuse(attempt, "n1", StateReason.REJECTED_BY_WORKER, "no such module")
    assert not world.run(store.refuse(attempt, "n2", StateReason.REJECTED_BY_WORKER, "not mine"))
    assert [world.run(refusal), world.run(refusal)] == [True, False]
    assert world.state(job) is JobState.FAILED
    other = world.claimed()
    assert not world.run(store.refuse(other, "n1", StateReason.REJECTED_BY_WORKER, "too late"))


# -- f: cancel -------------------------------------------------------------------------------------


def test_a_queued_job_is_cancelled_at_once(world: World) -> None:
    world.node()
    job = world.submit()
    assert world.run(store.cancel(TENANT, job)) == "cancelled"
    assert world.dispatch() == []
    assert (world.state(job), world.job(job).reason) == (JobState.CANCELLED, StateReason.CANCELLED_BY_USER)


def test_a_cancel_whose_answer_was_lost_is_answered_the_same_again(world: World) -> None:
    world.node()
    queued, attempt = world.submit(), world.running()
    assert [world.run(store.cancel(TENANT, queued)) for _ in range(2)] == ["cancelled", "cancelled"]
    assert world.run(store.cancel(TENANT, attempt.job)) == "cancelling"
    assert world.finish(attempt, StateReason.CANCELLED_BY_USER)
    before = world.job(attempt.job)
    assert world.run(store.cancel(TENANT, attempt.job)) == "cancelled"
    assert world.job(attempt.job) == before


def test_a_job_that_backs_off_is_cancelled_at_once_and_stays_so(world: World) -> None:
    world.node()
    attempt = world.running(retries=1)
    world.finish(attempt, StateReason.RANK_FAILED)
    assert world.job(attempt.job).reason is StateReason.BACKING_OFF
    assert world.run(store.cancel(TENANT, attempt.job)) == "cancelled"
    assert world.job(attempt.job).retry_at is None
    world.release(attempt)
    assert world.dispatch() == []


def test_a_leased_job_that_nobody_claimed_is_cancelled_at_once_and_gives_its_devices_back(world: World) -> None:
    world.node(devices=1)
    job = world.submit()
    world.dispatch()
    attempt = world.attempt(job)
    assert world.run(store.cancel(TENANT, job)) == "cancelled"
    assert "ended" in world.run(store.claim(attempt, "c", "n1")).refused
    assert hints(world, 0.000_001) == ()
    assert world.submit() in world.dispatch()


@pytest.mark.parametrize("marked", [False, True])
def test_cancelling_a_claimed_job_tells_its_supervisor(world: World, marked: bool) -> None:
    world.node()
    attempt = world.running() if marked else world.claimed()
    before = world.job(attempt.job).version
    assert world.run(store.cancel(TENANT, attempt.job)) == "cancelling"
    told = world.job(attempt.job)
    assert told.cancel_requested
    assert told.version == before + 1
    assert world.run(store.cancel(TENANT, attempt.job)) == "cancelling"
    assert world.job(attempt.job) == told
    assert world.run(store.read_command(attempt, "c")) is SupervisorCommand.CANCEL
    assert world.mark(attempt)
    assert world.job(attempt.job).reason is StateReason.CANCELLING
    assert world.finish(attempt, StateReason.CANCELLED_BY_USER)
    assert world.state(attempt.job) is JobState.CANCELLED


@pytest.mark.parametrize(
    "reason",
    [StateReason.RANK_FAILED, StateReason.SUPERVISOR_LOST, StateReason.SERVICE_STOPPED, StateReason.WALL_LIMIT],
)
def test_whatever_ends_a_job_that_is_being_cancelled_it_does_not_start_again(world: World, reason: StateReason) -> None:
    world.node()
    attempt = world.running(retries=5)
    world.run(store.cancel(TENANT, attempt.job))
    assert world.finish(attempt, reason)
    world.release(attempt)
    assert world.dispatch() == []
    assert world.state(attempt.job) is JobState.CANCELLED


def test_a_lease_that_expires_under_a_cancel_ends_cancelled(world: World) -> None:
    world.node()
    attempt = world.running(retries=5)
    world.run(store.cancel(TENANT, attempt.job))
    assert world.reap(attempt, heartbeat=1)
    assert world.state(attempt.job) is JobState.CANCELLED


def test_a_job_that_completes_before_it_sees_the_cancel_has_succeeded(world: World) -> None:
    world.node()
    attempt = world.running()
    world.run(store.cancel(TENANT, attempt.job))
    assert world.finish(attempt)
    assert world.state(attempt.job) is JobState.SUCCEEDED


@pytest.mark.parametrize("reason", [StateReason.COMPLETED, StateReason.WALL_LIMIT])
def test_a_finished_job_cannot_be_cancelled(world: World, reason: StateReason) -> None:
    world.node()
    attempt = world.running()
    world.finish(attempt, reason)
    before = world.job(attempt.job)
    with pytest.raises(JobFinished):
        world.run(store.cancel(TENANT, attempt.job))
    assert world.job(attempt.job) == before


# -- g: retries, reaping ---------------------------------------------------------------------------


def test_failures_of_the_program_are_retried_as_often_as_the_job_allows(world: World) -> None:
    world.node()
    attempt = world.running(retries=2)
    for retry in (1, 2):
        attempt = world.again(attempt, StateReason.RANK_FAILED)
        assert (world.job(attempt.job).retries, attempt.number) == (retry, retry + 1)
    assert world.finish(attempt, StateReason.OUT_OF_MEMORY)
    assert (world.state(attempt.job), world.job(attempt.job).reason) == (JobState.FAILED, StateReason.OUT_OF_MEMORY)
    assert [ended.number for ended in world.history(attempt.job)] == [1, 2, 3]


def test_losses_of_the_service_have_a_budget_of_their_own_and_then_the_job_is_parked(world: World) -> None:
    world.node()
    attempt = world.running(retries=1)
    for loss in range(1, MAX_LOSSES + 1):
        attempt = world.again(attempt, StateReason.SUPERVISOR_LOST)
        assert world.job(attempt.job).losses == loss
    assert world.job(attempt.job).retries == 0
    assert world.finish(attempt, StateReason.START_FAILED)
    record = world.job(attempt.job)
    assert (record.state, record.reason) == (JobState.FAILED, StateReason.START_FAILED)
    assert record.message == (
        "parked after 6 attempts were lost without progress; last: start_failed (start_failed); "
        "resubmit when the cause is fixed"
    )
    reasons = [ended.reason for ended in world.history(attempt.job)]
    assert reasons == [StateReason.SUPERVISOR_LOST] * MAX_LOSSES + [StateReason.START_FAILED]


def checkpoint(world: World, attempt: AttemptId, step: int) -> None:
    """As the attempt's supervisor commits one."""
    saved = {"step": step, "epoch": 0, "attempt": attempt.number, "sha256": "", "at": 1}
    world.redis.hset(f"sy:job:{attempt.job_ref}", "checkpoint", json.dumps(saved))


def test_the_budget_for_losses_begins_anew_when_an_attempt_has_saved_a_checkpoint(world: World) -> None:
    world.node()
    attempt = world.running()
    for loss in range(1, MAX_LOSSES + 1):
        attempt = world.again(attempt, StateReason.NODE_LOST)
        assert world.job(attempt.job).losses == loss
    checkpoint(world, attempt, 10)
    for loss in range(1, MAX_LOSSES + 1):  # the checkpoint counts for the attempt that saved it only
        attempt = world.again(attempt, StateReason.NODE_LOST)
        assert world.job(attempt.job).losses == loss
    assert world.finish(attempt, StateReason.NODE_LOST)
    assert world.state(attempt.job) is JobState.FAILED


def test_a_script_that_goes_on_from_what_it_saved_has_lost_only_what_came_after(world: World) -> None:
    world.node()
    attempt = world.running()
    for _ in range(3):
        attempt = world.again(attempt, StateReason.SUPERVISOR_LOST)
    assert attempt.number == 4
    assert not world.run(store.record_script_resume(attempt, "thief", saved_by=3))
    for saved_by, losses in ((1, 3), (2, 2), (2, 2), (3, 1)):
        assert world.run(store.record_script_resume(attempt, "c", saved_by=saved_by))
        assert world.job(attempt.job).losses == losses


def test_progress_does_not_bring_back_the_users_own_retries(world: World) -> None:
    world.node()
    attempt = world.running(retries=1)
    checkpoint(world, attempt, 10)
    attempt = world.again(attempt, StateReason.OUT_OF_MEMORY)
    checkpoint(world, attempt, 20)
    assert world.finish(attempt, StateReason.OUT_OF_MEMORY)
    record = world.job(attempt.job)
    assert (record.state, record.reason, record.retries, record.losses) == (
        JobState.FAILED,
        StateReason.OUT_OF_MEMORY,
        1,
        0,
    )


def test_every_attempt_keeps_its_reason_its_message_and_its_error(world: World) -> None:
    world.node()
    attempt = world.running(retries=1)
    told = {"rank": 1, "exit_code": 3, "signal": None, "message": "boom", "traceback": None}
    world.run(store.finish(attempt, "c", StateReason.RANK_FAILED, "rank 1: boom", error=told))
    world.release(attempt)
    world.dispatch()
    attempt = world.claim(attempt.job)
    assert world.reap(attempt, heartbeat=None, reason=StateReason.SUPERVISOR_LOST)
    world.release(attempt)
    world.redis.zadd("sy:backoff", {attempt.job_ref: 0})
    world.dispatch()
    world.finish_and_release(world.claim(attempt.job))
    assert [(ended.reason, ended.message, ended.error) for ended in world.history(attempt.job)] == [
        (StateReason.RANK_FAILED, "rank 1: boom", told),
        (StateReason.SUPERVISOR_LOST, "gone", None),
        (StateReason.COMPLETED, "completed", None),
    ]


def test_a_stop_of_the_service_is_never_counted(world: World) -> None:
    world.node()
    attempt = world.running(retries=0)
    for _ in range(MAX_LOSSES + 2):
        attempt = world.again(attempt, StateReason.SERVICE_STOPPED)
    record = world.job(attempt.job)
    assert (record.retries, record.attempt, record.state) == (0, MAX_LOSSES + 3, JobState.STARTING)


def test_a_retry_waits_for_its_backoff_and_then_says_that_it_waits_for_devices(world: World) -> None:
    world.node(devices=1)
    attempt = world.running(retries=1)
    world.run(store.finish(attempt, "c", StateReason.RANK_FAILED, "exit 1", backoff_seconds=300))
    record = world.job(attempt.job)
    assert (record.state, record.reason) == (JobState.QUEUED, StateReason.BACKING_OFF)
    assert "rank_failed (exit 1); retry 1 of 1" in record.message
    assert record.retry_at == int(world.redis.zscore("sy:backoff", attempt.job_ref) or 0)
    assert (record.node, record.leased, record.started) == (None, (), None)
    world.release(attempt)
    assert world.dispatch() == []
    world.redis.zadd("sy:backoff", {attempt.job_ref: 0})
    blocker = world.submit(priority=1)
    assert world.dispatch() == [blocker]
    record = world.job(attempt.job)
    assert (record.reason, record.retry_at) == (StateReason.WAITING_FOR_DEVICES, None)


def test_a_clock_that_is_set_back_does_not_keep_a_job_in_backoff(world: World) -> None:
    world.node()
    attempt = world.running(retries=1)
    world.run(store.finish(attempt, "c", StateReason.RANK_FAILED, "exit 1", backoff_seconds=1))
    world.redis.zincrby("sy:backoff", 86_400e6, attempt.job_ref)
    assert world.dispatch() == [attempt.job]


def test_only_a_beat_that_stands_still_is_reaped(world: World) -> None:
    world.node()
    attempt = world.running(retries=0)
    heartbeat = world.run(store.read_heartbeats()).leases[PartId(attempt, "n1")]
    assert world.run(store.renew_lease(attempt, "c")) is not SupervisorCommand.LOST
    assert not world.reap(attempt, heartbeat=heartbeat)
    assert world.state(attempt.job) is JobState.RUNNING
    assert [world.reap(attempt, heartbeat=heartbeat + 1), world.reap(attempt, heartbeat=heartbeat + 1)] == [True, False]
    assert (world.state(attempt.job), world.job(attempt.job).reason) == (JobState.QUEUED, StateReason.BACKING_OFF)
    assert world.run(store.renew_lease(attempt, "c")) is SupervisorCommand.LOST
    assert not world.finish(attempt)


def test_devices_of_a_reaped_attempt_stay_held_until_its_death_is_proven(world: World) -> None:
    world.node(devices=1)
    attempt = world.running()
    assert world.release(attempt) == -1
    assert world.reap(attempt, heartbeat=1)
    assert world.dispatch() == []
    assert world.run(store.renew_node("n1", "i1")).holding == {attempt: AttemptState.ENDED}
    assert world.release(attempt) == 1
    assert world.dispatch() == [attempt.job]


def test_a_claim_that_comes_first_saves_an_attempt_from_the_reaper(world: World) -> None:
    world.node(devices=1)
    job = world.submit()
    world.dispatch()
    attempt = world.claim(job)
    assert not world.reap(attempt, heartbeat=0)
    assert world.state(job) is JobState.STARTING


def test_an_unclaimed_attempt_that_is_reaped_gives_its_devices_back_at_once(world: World) -> None:
    world.node(devices=1)
    job = world.submit()
    world.dispatch()
    attempt = world.attempt(job)
    assert world.reap(attempt, heartbeat=0)
    assert world.dispatch() == [job]
    assert "ended" in world.run(store.claim(attempt, "late", "n1")).refused
    assert world.attempt(job).number == 2


def test_the_end_of_an_older_attempt_does_not_touch_the_newer_one(world: World) -> None:
    world.node()
    old = world.running()
    assert world.reap(old, heartbeat=None, reason=StateReason.SUPERVISOR_LOST)
    assert world.dispatch() == [old.job]
    new = world.claim(old.job, "c2")
    assert not world.finish(old)
    assert not world.mark(old)
    assert world.run(store.read_command(old, "c")) is SupervisorCommand.LOST
    assert world.release(old) == 1
    assert world.mark(new, by="c2")
    assert world.state(old.job) is JobState.RUNNING


# -- delete ----------------------------------------------------------------------------------------


def test_only_a_finished_job_is_deleted_and_nothing_of_it_stays(world: World) -> None:
    world.node()
    attempt = world.running()
    with pytest.raises(JobNotFinished):
        world.run(store.delete_job(TENANT, attempt.job))
    world.finish_and_release(attempt)
    world.run(store.delete_job(TENANT, attempt.job))
    gone: tuple[store.Call[Any], ...] = (
        store.delete_job(TENANT, attempt.job),
        store.read_job(TENANT, attempt.job),
        store.cancel(TENANT, attempt.job),
    )
    for call in gone:
        with pytest.raises(NotFound):
            world.run(call)
    with pytest.raises(NotFound):
        world.history(attempt.job)
    assert not [key for key in world.redis.scan_iter() if attempt.job.encode() in key]


def test_devices_of_a_deleted_job_are_released_as_those_of_any_ended_attempt(world: World) -> None:
    world.node(devices=1)
    attempt = world.running()
    world.finish(attempt)
    world.run(store.delete_job(TENANT, attempt.job))
    assert world.run(store.renew_node("n1", "i1")).holding == {attempt: AttemptState.ENDED}
    assert world.release(attempt) == 1
    assert world.submit() in world.dispatch()


def test_another_tenant_sees_nothing(world: World) -> None:
    world.node()
    job = world.submit()
    calls: tuple[store.Call[Any], ...] = (
        store.read_job("other", job),
        store.cancel("other", job),
        store.delete_job("other", job),
    )
    for call in calls:
        with pytest.raises(NotFound):
            world.run(call)
    assert world.run(store.list_jobs("other", store.JobFilter())).jobs == ()


# -- a node's identity, and its end ----------------------------------------------------------------


def register(world: World, home: str) -> store.Registration:
    return world.run(store.register_node("n1", "i2", "default", "127.0.0.1", node_info(4), home=home))


def test_another_state_directory_does_not_take_over_a_node_that_is_alive(world: World) -> None:
    world.node()

    assert register(world, "another") is store.Registration.TAKEN
    assert register(world, "state-dir") is store.Registration.OK


def test_another_state_directory_does_not_take_over_a_node_that_holds_devices(world: World) -> None:
    world.node()
    world.submit(2)
    world.dispatch()
    world.run(store.take_down_node("n1", None))

    assert register(world, "another") is store.Registration.STRANDED


def test_another_state_directory_takes_over_a_node_that_is_down_and_holds_nothing(world: World) -> None:
    world.node()
    world.run(store.take_down_node("n1", None))

    assert register(world, "another") is store.Registration.OK


def test_a_node_is_forgotten_only_when_it_is_down_and_its_leases_have_ended(world: World) -> None:
    with pytest.raises(NotFound):
        world.run(store.forget_node("n1"))
    world.node()
    job = world.submit(2)
    world.dispatch()
    attempt = store.AttemptId(TENANT, job, 1)
    world.run(store.claim(attempt, "me", "n1"))
    with pytest.raises(NodeInUse, match="alive"):
        world.run(store.forget_node("n1"))
    world.run(store.take_down_node("n1", None))
    with pytest.raises(NodeInUse, match="lease"):
        world.run(store.forget_node("n1"))
    world.run(store.reap(attempt, StateReason.LEASE_EXPIRED, "gone", heartbeat=None, backoff_seconds=0))

    world.run(store.forget_node("n1"))

    assert world.run(store.read_fleet()).nodes == ()
    kept = {*world.redis.keys("sy:attempt:*"), *world.redis.keys("sy:history:*")}
    assert set(world.redis.keys("sy:*n1*")) - kept == set()
    with pytest.raises(UnknownPool):
        world.submit(1)


def waits_of(world: World, times: int, reason: StateReason, *, retries: int = 0) -> list[int]:
    """How many seconds a job waits each time that it is refused, for a back-off of ten seconds."""
    job, waits = world.submit(1, retries=retries), []
    for number in range(1, times + 1):
        world.redis.zadd("sy:backoff", {f"{TENANT}/{job}": 0}, xx=True)
        world.dispatch()
        attempt = store.AttemptId(TENANT, job, number)
        world.run(store.refuse(attempt, "n1", reason, "no", backoff_seconds=10))
        due, (seconds, micros) = world.job(job).retry_at, world.redis.time()
        assert due is not None
        waits.append(round((due - (seconds * 1e6 + micros)) / 1e6))
    return waits


def test_each_loss_makes_the_next_wait_longer(world: World) -> None:
    world.node()
    assert waits_of(world, 5, StateReason.START_FAILED) == [10, 30, 90, 270, 600]


def test_each_retry_doubles_the_wait_up_to_ten_minutes(world: World) -> None:
    world.node()
    assert waits_of(world, 8, StateReason.OUT_OF_MEMORY, retries=9) == [10, 20, 40, 80, 160, 320, 600, 600]


def test_an_attempt_that_no_supervisor_takes_costs_nothing_and_waits_longer_each_time(world: World) -> None:
    world.node()
    job, waits = world.submit(), []
    for number in range(1, 2 * MAX_LOSSES + 1):
        world.redis.zadd("sy:backoff", {f"{TENANT}/{job}": 0}, xx=True)
        world.dispatch()
        attempt = AttemptId(TENANT, job, number)
        assert world.run(store.reap(attempt, StateReason.LEASE_EXPIRED, "gone", heartbeat=0, backoff_seconds=10))
        record, (seconds, _) = world.job(job), world.redis.time()
        assert record.retry_at is not None
        waits.append(round(record.retry_at / 1e6 - seconds, -1))
    assert (record.state, record.losses, record.retries) == (JobState.QUEUED, 0, 0)
    assert waits == [10, 20, 40, 80, 160, 320, 600, 600, 600, 600]
    assert "no supervisor took it on node n1 in time" in record.message
    world.redis.zadd("sy:backoff", {f"{TENANT}/{job}": 0})
    world.dispatch()
    attempt = world.claim(job)
    assert world.finish(attempt, StateReason.SUPERVISOR_LOST)
    assert world.job(job).losses == 1


def test_a_job_that_its_node_did_not_take_goes_to_another_one_if_there_is_one(world: World) -> None:
    world.node("n1", devices=1)
    world.node("n2", devices=2)
    job = world.submit()
    places = []
    for _ in range(2):
        world.dispatch()
        places.append(world.job(job).node)
        assert world.reap(world.attempt(job), heartbeat=0)
    assert places == ["n1", "n2"]
    world.run(store.take_down_node("n1", None))
    assert world.dispatch() == [job], "there is no other"
    assert world.job(job).node == "n2"


# -- nodes that are lost ---------------------------------------------------------------------------


def test_a_lease_that_expires_on_a_node_that_is_silent_too_says_that_the_node_is_lost(world: World) -> None:
    world.node()
    attempt = world.running()
    heartbeats = world.run(store.read_heartbeats())
    lost = store.reap(
        attempt,
        StateReason.LEASE_EXPIRED,
        "no beat",
        heartbeat=heartbeats.leases[PartId(attempt, "n1")],
        backoff_seconds=0,
        node_heartbeat=heartbeats.nodes["n1"],
        node_message="node n1 is lost",
    )
    assert world.run(lost) is StateReason.NODE_LOST
    (ended,), record = world.history(attempt.job), world.job(attempt.job)
    assert (ended.reason, ended.message) == (StateReason.NODE_LOST, "node n1 is lost")
    assert (record.state, record.losses) == (JobState.QUEUED, 1)
    assert world.dispatch() == [], "nothing more goes there until it beats again"
    world.run(store.renew_node("n1", "i1"))
    assert world.dispatch() == [attempt.job]


def test_a_lease_that_expires_on_a_node_that_beat_since_or_is_alive_is_only_a_lease(world: World) -> None:
    world.node()
    beat_since, alive = world.running(), world.running()
    heartbeats = world.run(store.read_heartbeats())
    world.run(store.renew_node("n1", "i1"))
    for attempt, node_heartbeat in ((beat_since, heartbeats.nodes["n1"]), (alive, None)):
        call = store.reap(
            attempt,
            StateReason.LEASE_EXPIRED,
            "no beat",
            heartbeat=heartbeats.leases[PartId(attempt, "n1")],
            backoff_seconds=0,
            node_heartbeat=node_heartbeat,
        )
        assert world.run(call) is StateReason.LEASE_EXPIRED
        assert world.history(attempt.job)[0].message == "no beat"


@pytest.mark.parametrize("how", ["down", "unknown"])
def test_a_lease_that_expires_on_a_node_that_is_down_or_not_known_says_that_the_node_is_lost(
    world: World, how: str
) -> None:
    world.node()
    attempt = world.running()
    heartbeat = world.run(store.read_heartbeats()).leases[PartId(attempt, "n1")]
    if how == "down":
        world.run(store.take_down_node("n1", None))
    else:
        world.redis.delete("sy:node:n1")
    call = store.reap(
        attempt, StateReason.LEASE_EXPIRED, "-", heartbeat=heartbeat, backoff_seconds=0, node_message="n1 is lost"
    )
    assert world.run(call) is StateReason.NODE_LOST


def test_proof_of_a_supervisors_death_says_so_also_on_a_node_that_is_down(world: World) -> None:
    world.node()
    attempt = world.running()
    world.run(store.take_down_node("n1", None))
    assert world.reap(attempt, heartbeat=None, reason=StateReason.SUPERVISOR_LOST)
    assert world.history(attempt.job)[0].reason is StateReason.SUPERVISOR_LOST


def test_a_spec_that_another_version_wrote_is_an_error_of_its_own(world: World) -> None:
    world.node()
    job = world.submit(1)
    world.redis.set(f"sy:spec:{TENANT}/{job}", zstandard.compress(b'{"program": {"kind": "teleport"}}'))

    with pytest.raises(UnreadableSpec, match="program"):
        world.run(store.read_job(TENANT, job))


@pytest.mark.parametrize("state", ["cancelled", "queued", "of a later version"])
def test_a_move_that_is_not_in_the_table_is_refused_with_both_states(world: World, state: str) -> None:
    world.node()
    attempt = world.running()
    world.redis.hset(f"sy:job:{attempt.job_ref}", "state", state)
    with pytest.raises(redis.ResponseError, match=f"is {state} and cannot become succeeded"):
        world.finish(attempt)
    assert world.redis.hget(f"sy:job:{attempt.job_ref}", "state") == state.encode()
    world.redis.flushall()
