"""Jobs that wait until others have succeeded."""

import pytest

from jobs import store
from jobs.model.state import JobState, StateReason
from shardyard.contract.errors import IdempotencyConflict, InvalidSpec
from tests.integration.store.invariants import violations
from tests.integration.store.world import TENANT, World, a_spec

pytestmark = pytest.mark.integration


def run_to_its_end(world: World, job: str, reason: StateReason = StateReason.COMPLETED) -> None:
    """Of one that is leased."""
    attempt = world.claim(job)
    assert world.mark(attempt)
    assert world.finish(attempt, reason)
    assert world.release(attempt) > 0


def test_a_job_waits_until_all_that_it_depends_on_have_succeeded(world: World) -> None:
    world.node(devices=4)
    first, second = world.submit(), world.submit()
    third = world.submit(depends_on=[first, second])
    assert sorted(world.dispatch()) == [first, second]
    assert world.job(third).reason is StateReason.WAITING_FOR_JOBS
    assert world.job(third).message == f"it waits until 2 jobs have succeeded: {first}, {second}"
    run_to_its_end(world, first)
    assert world.dispatch() == []
    assert world.job(third).message == f"it waits until job {second} has succeeded"
    run_to_its_end(world, second)
    assert world.dispatch() == [third]
    assert violations(world.redis) == []


def test_jobs_that_have_succeeded_before_the_submit_delay_nothing(world: World) -> None:
    world.node()
    first = world.submit()
    world.dispatch()
    run_to_its_end(world, first)
    second = world.submit(depends_on=[first])
    assert world.dispatch() == [second]


def test_an_end_without_success_cancels_all_that_follow_from_it_and_says_why(world: World) -> None:
    world.node()
    first = world.submit()
    second = world.submit(depends_on=[first])
    third = world.submit(depends_on=[second])
    world.dispatch()
    run_to_its_end(world, first, StateReason.RANK_FAILED)
    while world.state(third) is JobState.QUEUED:
        assert world.dispatch() == []
    for job, awaited, how in ((second, first, "has failed"), (third, second, "was cancelled")):
        record = world.job(job)
        assert (record.state, record.reason) == (JobState.CANCELLED, StateReason.DEPENDENCY_FAILED)
        assert record.message == f"job {awaited}, which it depends on, {how}"
        assert record.finished is not None
    assert violations(world.redis) == []


@pytest.mark.parametrize("ended", ["before the submit", "while it was suspended"])
def test_a_job_that_could_never_start_is_cancelled_at_once(world: World, ended: str) -> None:
    world.node()
    first = world.submit()
    if ended == "before the submit":
        world.run(store.cancel(TENANT, first))
        second = world.submit(depends_on=[first])
        assert world.job(second).message.startswith("all jobs that it depends on have ended; ")
    else:
        second = world.submit(depends_on=[first])
        world.run(store.suspend(TENANT, second))
        world.run(store.cancel(TENANT, first))
    world.dispatch()
    assert world.job(second).reason is StateReason.DEPENDENCY_FAILED
    assert violations(world.redis) == []


def test_one_that_is_deleted_after_it_succeeded_has_succeeded(world: World) -> None:
    world.node()
    first = world.submit()
    second = world.submit(depends_on=[first])
    world.dispatch()
    run_to_its_end(world, first)
    world.run(store.delete_job(TENANT, first))
    assert world.dispatch() == [second]


def test_a_waiting_job_can_be_cancelled_suspended_and_resumed(world: World) -> None:
    world.node()
    first = world.submit()
    second, third = world.submit(depends_on=[first]), world.submit(depends_on=[first])
    world.run(store.cancel(TENANT, second))
    world.run(store.suspend(TENANT, third))
    assert world.redis.zcard("sy:awaiting") == 0
    world.dispatch()
    run_to_its_end(world, first)
    assert world.dispatch() == []
    world.run(store.resume(TENANT, third))
    assert world.dispatch() == [third]
    assert world.job(second).reason is StateReason.CANCELLED_BY_USER


def test_a_job_that_waits_for_jobs_and_for_a_time_waits_for_both(world: World) -> None:
    world.node()
    first = world.submit()
    second = world.submit(depends_on=[first], start_after=3600)
    world.dispatch()
    run_to_its_end(world, first)
    assert world.dispatch() == []
    assert world.job(second).reason is StateReason.WAITING_FOR_TIME


def test_jobs_that_are_not_there_or_another_tenants_are_refused_by_name(world: World) -> None:
    world.node()
    mine, theirs = world.submit(), world.submit(tenant="acme")
    with pytest.raises(InvalidSpec) as error:
        world.submit(depends_on=[mine, theirs, "000000999"])
    assert [wrong.field for wrong in error.value.fields] == ["depends_on.1", "depends_on.2"]
    assert world.run(store.count_jobs(TENANT))[JobState.QUEUED] == 1


def test_no_job_can_wait_for_itself(world: World) -> None:
    """Its id is known only when it is stored, and the key of that submit makes no second job."""
    world.node()
    with pytest.raises(InvalidSpec):
        world.run(store.submit(TENANT, "00000000a", a_spec(depends_on=["00000000a"])))
    world.run(store.submit(TENANT, "00000000a", a_spec(), idempotency_key="key", digest="one"))
    again = store.submit(TENANT, "00000000b", a_spec(depends_on=["00000000a"]), idempotency_key="key", digest="other")
    with pytest.raises(IdempotencyConflict):
        world.run(again)


def test_an_end_that_nobody_told_is_found(world: World) -> None:
    """A supervisor of an earlier version ends its job, and knows nothing of those that wait for it."""
    world.node()
    first = world.submit()
    second = world.submit(depends_on=[first])
    world.dispatch()
    world.redis.delete(f"sy:needed:{TENANT}/{first}")
    run_to_its_end(world, first)
    assert world.dispatch() == []
    world.redis.zadd("sy:awaiting", {f"{TENANT}/{second}": 1})  # it is time to look again
    assert world.dispatch() == [second]


def test_so_many_jobs_may_wait_for_one(world: World) -> None:
    world.node()
    first = world.submit()
    world.redis.sadd(f"sy:needed:{TENANT}/{first}", *map(str, range(1000)))
    with pytest.raises(InvalidSpec) as error:
        world.submit(depends_on=[first])
    assert [wrong.field for wrong in error.value.fields] == ["depends_on.0"]
    world.redis.delete(f"sy:needed:{TENANT}/{first}")
