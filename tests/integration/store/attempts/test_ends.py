"""An end that gives the devices back: one call, for a supervisor whose processes are proven dead."""

from typing import Any

import pytest

from jobs import store
from jobs.model.state import JobState, StateReason
from jobs.store import shares
from tests.integration.store.invariants import violations
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


def hand_back(world: World, attempt: store.AttemptId, claimant: str = "c", **quarantine: str) -> bool:
    bad = {int(device.removeprefix("d")): why for device, why in quarantine.items()}
    return world.run(store.hand_back(attempt, claimant, "n1", bad))


def test_devices_are_handed_back_before_an_end_that_waits_for_its_files(world: World) -> None:
    world.node(devices=2)
    attempt, waiting = world.running(2), world.submit(2)
    assert hand_back(world, attempt)
    assert held(world) == {}
    assert world.state(attempt.job) is JobState.RUNNING
    assert world.dispatch() == [waiting]
    assert world.run(store.renew_lease(attempt, "c")) == "go"
    following = held(world)
    assert finish(world, attempt)
    assert world.state(attempt.job) is JobState.SUCCEEDED
    assert held(world) == following


def test_devices_that_are_handed_back_twice_are_free_once(world: World) -> None:
    world.node(devices=1)
    attempt = world.running()
    assert hand_back(world, attempt)
    following = world.running()
    assert hand_back(world, attempt)
    assert held(world) == {b"0": str(following).encode()}


def test_who_has_lost_the_lease_hands_nothing_back(world: World) -> None:
    world.node(devices=1)
    attempt = world.running()
    assert not hand_back(world, attempt, "a stranger")
    assert set(held(world)) == {b"0"}


def test_a_device_that_is_handed_back_with_a_living_process_is_kept_apart(world: World) -> None:
    world.node(devices=2)
    attempt = world.running(2)
    assert hand_back(world, attempt, d1="process 7 would not die")
    assert world.redis.zrange("sy:free:n1", 0, -1) == [b"0"]
    assert world.redis.hkeys("sy:quarantine:n1") == [b"1"]


def test_nobody_is_charged_or_preempted_for_devices_that_were_handed_back(world: World) -> None:
    """`World` checks the accounts after each test: once more when they are counted anew."""
    world.node(devices=2)
    attempt = world.running(2)
    hand_back(world, attempt)
    world.run(shares.settle_shares())
    assert violations(world.redis) == []
    assert world.redis.zrange("sy:placed:default", 0, -1) == []


def test_an_attempt_that_carries_is_lost_with_its_lease(world: World) -> None:
    world.node(devices=1)
    attempt = world.running()
    hand_back(world, attempt)
    reaped = store.reap(attempt, StateReason.LEASE_EXPIRED, "", heartbeat=None, backoff_seconds=0)
    assert world.run(reaped) is StateReason.LEASE_EXPIRED
    assert violations(world.redis) == []
    assert not finish(world, attempt)
