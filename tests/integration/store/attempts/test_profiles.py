"""Profiles of running jobs: when one may be asked for, and what the supervisor hears of it."""

import pytest

from jobs import store
from jobs.model.state import SupervisorCommand
from jobs.protocol import profiles as limits
from jobs.store import AttemptId
from shardyard.contract.errors import Conflict, JobNotRunning, NotFound, ProfileRunning
from tests.integration.store.world import TENANT, World

pytestmark = pytest.mark.integration


@pytest.fixture
def attempt(world: World) -> AttemptId:
    world.node()
    return world.running()


def ask(world: World, job: str, steps: int = 10) -> tuple[int, int]:
    return world.run(store.request_profile(TENANT, job, steps))


def command(world: World, attempt: AttemptId) -> SupervisorCommand:
    read, renewed = world.run(store.read_command(attempt, "c")), world.run(store.renew_lease(attempt, "c"))
    assert read is renewed
    return read


def test_a_profile_is_asked_for_recorded_and_done_before_the_next(world: World, attempt: AttemptId) -> None:
    assert world.run(store.read_profile(attempt)) is None
    assert ask(world, attempt.job, 7) == (1, 1)
    assert command(world, attempt) is SupervisorCommand.PROFILE
    found = world.run(store.read_profile(attempt))
    assert found is not None
    assert (found.state, found.number, found.steps) == ("asked", 1, 7)
    with pytest.raises(ProfileRunning):
        ask(world, attempt.job)
    assert world.run(store.record_profile(attempt, "c", 1, "recording"))
    assert command(world, attempt) is SupervisorCommand.GO
    with pytest.raises(ProfileRunning):
        ask(world, attempt.job)
    assert world.run(store.record_profile(attempt, "c", 1, "done"))
    assert ask(world, attempt.job) == (1, 2)
    assert world.run(store.record_profile(attempt, "c", 1, "done")), "a late repeat does not end the next one"
    assert command(world, attempt) is SupervisorCommand.PROFILE
    assert not world.run(store.record_profile(attempt, "another", 2, "done"))


def test_a_cancel_and_a_stop_come_before_a_profile(world: World, attempt: AttemptId) -> None:
    ask(world, attempt.job)
    world.run(store.cancel(TENANT, attempt.job))
    assert command(world, attempt) is SupervisorCommand.CANCEL
    with pytest.raises(JobNotRunning, match="cancelling"):
        ask(world, attempt.job)


def test_only_a_running_job_can_be_profiled(world: World) -> None:
    with pytest.raises(NotFound):
        ask(world, "nowhere")
    world.node()
    with pytest.raises(JobNotRunning, match="queued"):
        ask(world, world.submit())
    ended = world.running()
    world.finish_and_release(ended)
    with pytest.raises(JobNotRunning, match="succeeded"):
        ask(world, ended.job)


def test_a_profile_that_nothing_answers_does_not_stay_in_the_way(
    world: World, attempt: AttemptId, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(world, attempt.job)
    monkeypatch.setattr("jobs.store.profiles.ANSWER_SECONDS", 0.0)
    assert ask(world, attempt.job) == (1, 2)


def test_an_attempt_has_so_many_profiles(world: World, attempt: AttemptId, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.store.profiles.MAX_PROFILES", 1)
    ask(world, attempt.job)
    world.run(store.record_profile(attempt, "c", 1, "done"))
    with pytest.raises(Conflict, match="limit"):
        ask(world, attempt.job)
    assert limits.MAX_PROFILES < 256, "a number is one byte of the request that ranks see"
