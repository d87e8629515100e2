"""An end that gives the devices back: one call, for a supervisor whose processes are proven dead."""

from typing import Any

import pytest

from jobs import store
from jobs.model.state import JobState, StateReason
from tests.integration.store.world import World

pytestmark = pytest.mark.integration


def finish(
    world: World, attempt: store.AttemptId, claimant: str = "c", quarantine: dict[int, str] | None = None
) -> bool:
    return world.run(store.finish(attempt, claimant, StateReason.COMPLETED, "", node="n1", quarantine=quarantine))


def held(world: World) -> dict[Any, Any]:
    return dict(world.redis.hgetall("sy:held:n1"))


def test_devices_are_free_as_soon_as_the_job_has_ended(world: World) -> None:
    world.node(devices=2)
    attempt, waiting = world.running(2), world.submit(2)
    assert finish(world, attempt)
    assert world.state(attempt.job) is JobState.SUCCEEDED
    assert held(world) == {}
    assert world.dispatch() == [waiting]


def test_a_device_whose_process_would_not_die_is_kept_apart(world: World) -> None:
    world.node(devices=2)
    attempt = world.running(2)
    assert finish(world, attempt, quarantine={1: "process 7 would not die"})
    assert held(world) == {}
    assert world.redis.zrange("sy:free:n1", 0, -1) == [b"0"]
    assert world.redis.hkeys("sy:quarantine:n1") == [b"1"]


def test_who_has_lost_the_lease_gives_nothing_back(world: World) -> None:
    world.node(devices=1)
    attempt = world.running()
    assert not finish(world, attempt, "a stranger")
    assert set(held(world)) == {b"0"}
    assert world.state(attempt.job) is JobState.RUNNING


def test_an_end_that_is_told_twice_takes_no_device_from_the_next_attempt(world: World) -> None:
    world.node(devices=1)
    attempt = world.running()
    assert finish(world, attempt)
    following = world.running()
    assert finish(world, attempt)
    assert held(world) == {b"0": str(following).encode()}


def test_what_a_job_keeps_of_its_end_is_of_bounded_size(world: World) -> None:
    """Supervisors cut it; one that does not must not fill Redis with what a program says."""
    world.node(devices=1)
    attempt = world.running()
    error = {"message": "é" * 10**6, "traceback": "t" * 10**6}
    world.run(
        store.finish(
            attempt, "c", StateReason.CODE_ERROR, "é" * 10**6, error=error, result={"metrics": {"m" * 10**6: 1}}
        )
    )
    record = world.job(attempt.job)
    assert (record.state, record.reason) == (JobState.FAILED, StateReason.CODE_ERROR)
    assert record.message == "é" * (16 * 1024 // 2)
    assert record.error is not None
    assert record.error["message"] == record.message
    assert record.result is None
    assert sum(len(value) for value in world.redis.hvals(f"sy:job:{attempt.job_ref}")) < 100_000
    assert sum(len(value) for value in world.redis.hvals(f"sy:attempt:{attempt}")) < 100_000


def test_a_long_traceback_is_kept(world: World) -> None:
    world.node(devices=1)
    attempt = world.running()
    error = {"message": "no", "traceback": '"\\\n' * 20_000}
    world.run(store.finish(attempt, "c", StateReason.CODE_ERROR, "no", error=error))
    assert world.job(attempt.job).error == error
