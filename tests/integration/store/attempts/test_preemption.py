"""Jobs of a higher priority take the devices of others, where the pool's policy says so."""

from collections.abc import Iterator

import pytest

from jobs import store
from jobs.model.pool_policy import PoolPolicy
from jobs.model.state import JobState, StateReason, SupervisorCommand
from jobs.store import AttemptId
from tests.integration.store.world import NEVER, World

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def preempting(world: World) -> Iterator[None]:
    world.run(store.set_policy("default", PoolPolicy(preempt=True)))
    yield
    world.run(store.set_policy("default", PoolPolicy()))


def running(world: World, devices: int = 1, priority: int = 0, nodes: int = 1) -> AttemptId:
    job = world.submit(devices, priority=priority, nodes=nodes)
    assert job in world.dispatch()
    attempt = world.attempt(job)
    for node in [str(world.job(job).node), *(place.node for place in world.job(job).followers)]:
        assert world.run(store.claim(attempt, "c", node)).granted
    assert world.mark(attempt)
    return attempt


def is_asked(world: World, attempt: AttemptId) -> bool:
    return world.run(store.read_command(attempt, "c")) is SupervisorCommand.STOP


def leaves(world: World, attempt: AttemptId) -> None:
    """As its supervisor does when it is told to stop."""
    assert is_asked(world, attempt)
    assert world.finish(attempt, StateReason.SERVICE_STOPPED)
    assert world.release(attempt, node=str(world.history(attempt.job)[attempt.number - 1].node)) > 0


def test_a_job_of_a_higher_priority_takes_the_devices_of_the_lowest(world: World) -> None:
    world.node(devices=3)
    middle, low, other = running(world, priority=1), running(world, priority=-5), running(world, priority=1)
    urgent = world.submit(priority=10)
    assert world.dispatch() == []
    assert [is_asked(world, attempt) for attempt in (middle, low, other)] == [False, True, False]
    assert "higher priority" in world.job(low.job).message
    leaves(world, low)
    assert world.dispatch() == [urgent]
    job = world.job(low.job)
    assert (job.state, job.reason, job.retries, job.losses) == (JobState.QUEUED, StateReason.PREEMPTED, 0, 0)
    assert job.preemptions == 1
    (ended,) = world.history(low.job)
    assert (ended.reason, ended.message) == (StateReason.PREEMPTED, "a job of a higher priority took its devices")
    world.finish_and_release(world.claim(urgent))
    assert world.dispatch() == [low.job]


def test_of_equal_priority_whoever_has_the_least_work_at_stake_leaves(world: World) -> None:
    world.node(devices=2)
    old, new = running(world), running(world)
    world.redis.hincrby(f"sy:attempt:{old}", "created", -3600 * 10**6)
    world.submit(priority=1)
    world.dispatch()
    assert (is_asked(world, old), is_asked(world, new)) == (False, True)


def test_work_that_was_saved_is_not_at_stake(world: World) -> None:
    world.node(devices=2)
    saved, new = running(world), running(world)
    for attempt, seconds in ((saved, 3600), (new, 60)):
        world.redis.hincrby(f"sy:attempt:{attempt}", "created", -seconds * 10**6)
    assert world.run(store.commit_checkpoint(saved, "c", step=5, epoch=0, sha256="0" * 64)) == "ok"
    world.submit(priority=1)
    world.dispatch()
    assert (is_asked(world, saved), is_asked(world, new)) == (True, False)


def test_no_more_leave_than_are_needed_however_often_it_is_asked(world: World) -> None:
    world.node(devices=6)
    ones = [running(world) for _ in range(2)]
    four = running(world, 4)
    world.redis.hincrby(f"sy:attempt:{four}", "created", -(10**9))
    world.submit(4, priority=1)
    for _ in range(3):
        assert world.dispatch() == []
    assert ([is_asked(world, attempt) for attempt in ones], is_asked(world, four)) == ([False, False], True)


def test_devices_that_become_free_are_kept_until_all_have_left(world: World) -> None:
    world.node(devices=2)
    victims = [running(world), running(world)]
    urgent = world.submit(2, priority=1)
    world.dispatch()
    leaves(world, victims[0])
    world.submit()
    assert world.dispatch() == []
    leaves(world, victims[1])
    assert world.dispatch() == [urgent]


@pytest.mark.parametrize("priority", [0, -1])
def test_jobs_of_the_same_or_a_higher_priority_are_left_alone(world: World, priority: int) -> None:
    world.node(devices=1)
    attempt = running(world)
    world.submit(priority=priority)
    assert world.dispatch() == []
    assert not is_asked(world, attempt)


def test_a_pool_without_the_policy_takes_nothing_from_anybody(world: World) -> None:
    world.run(store.set_policy("default", PoolPolicy()))
    world.node(devices=1)
    attempt = running(world)
    world.submit(priority=100)
    assert world.dispatch() == []
    assert not is_asked(world, attempt)


def test_a_job_that_was_preempted_three_times_is_left_alone(world: World) -> None:
    world.node(devices=1)
    job = world.submit()
    for _ in range(3):
        assert world.dispatch() == [job]
        attempt = world.claim(job)
        urgent = world.submit(priority=1)
        world.dispatch()
        leaves(world, attempt)
        assert world.dispatch() == [urgent]
        world.finish_and_release(world.claim(urgent))
    assert world.dispatch() == [job]
    attempt = world.claim(job)
    world.submit(priority=100)
    assert world.dispatch() == []
    assert not is_asked(world, attempt)


def test_an_attempt_that_nobody_has_claimed_leaves_at_once(world: World) -> None:
    world.node(devices=1)
    low = world.submit()
    assert world.dispatch() == [low]
    urgent = world.submit(priority=1)
    assert world.dispatch() == []
    assert world.dispatch() == [urgent]
    assert world.job(low).reason is StateReason.PREEMPTED


def test_nobody_leaves_where_that_would_not_be_enough(world: World) -> None:
    world.node("n1", devices=2)
    world.node("n2", devices=2)
    low = running(world)
    high = running(world, priority=5)
    attempts = [low, high, running(world, 2, priority=5)]
    world.submit(2, priority=3)
    assert world.dispatch(hold=NEVER) == []
    assert [is_asked(world, attempt) for attempt in attempts] == [False] * 3


def test_a_job_on_two_nodes_takes_the_devices_of_both(world: World) -> None:
    world.node("n1", devices=1)
    world.node("n2", devices=1)
    victims = [running(world), running(world)]
    gang = world.submit(nodes=2, priority=1)
    assert world.dispatch() == []
    for victim in victims:
        leaves(world, victim)
    assert world.dispatch() == [gang]


def test_a_job_that_runs_on_two_nodes_is_asked_once_and_leaves_both(world: World) -> None:
    world.node("n1", devices=1)
    world.node("n2", devices=1)
    gang = running(world, nodes=2)
    urgent = world.submit(priority=1)
    world.dispatch()
    assert world.job(gang.job).preemptions == 1
    assert world.finish(gang, StateReason.SERVICE_STOPPED)
    for node in ("n1", "n2"):
        world.release(gang, node=node)
    assert world.dispatch() == [urgent]
