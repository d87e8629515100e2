"""The pointer to the newest checkpoint of a job, and which attempt may move it."""

import pytest

from jobs import store
from jobs.model.state import StateReason
from jobs.store import AttemptId
from tests.integration.store.world import World

pytestmark = pytest.mark.integration

A, B = "a" * 64, "b" * 64


def commit(world: World, attempt: AttemptId, step: int, sha256: str = A, *, by: str = "c") -> str:
    return world.run(store.commit_checkpoint(attempt, by, step=step, epoch=1, sha256=sha256))


def pointed(world: World, attempt: AttemptId) -> tuple[int, int, str] | None:
    found = world.job(attempt.job).checkpoint
    return None if found is None else (found["step"], found["attempt"], found["sha256"])


@pytest.fixture
def attempt(world: World) -> AttemptId:
    world.node()
    return world.running()


def test_a_job_has_no_checkpoint_until_one_is_committed(world: World, attempt: AttemptId) -> None:
    assert world.job(attempt.job).checkpoint is None
    version = world.job(attempt.job).version
    assert commit(world, attempt, 10) == "ok"
    found = world.job(attempt.job).checkpoint
    assert found is not None
    seconds, micros = world.redis.time()
    assert 0 <= seconds * 1_000_000 + micros - found.pop("at") < 10_000_000
    assert found == {"step": 10, "epoch": 1, "attempt": 1, "sha256": A}
    assert world.job(attempt.job).version == version + 1


def test_a_commit_whose_reply_was_lost_may_be_repeated(world: World, attempt: AttemptId) -> None:
    assert commit(world, attempt, 10) == "ok"
    before = world.job(attempt.job)
    assert commit(world, attempt, 10) == "ok"
    assert world.job(attempt.job) == before


def test_the_pointer_only_goes_up(world: World, attempt: AttemptId) -> None:
    assert commit(world, attempt, 10) == "ok"
    assert commit(world, attempt, 10, B) == "stale"
    assert commit(world, attempt, 9) == "stale"
    assert pointed(world, attempt) == (10, 1, A)
    assert commit(world, attempt, 999_999_999_999, B) == "ok"
    assert pointed(world, attempt) == (999_999_999_999, 1, B)


def test_only_the_claimant_of_the_newest_attempt_moves_it(world: World, attempt: AttemptId) -> None:
    assert commit(world, attempt, 10, by="another") == "lost"
    assert commit(world, attempt, 10) == "ok"
    second = world.again(attempt, StateReason.SERVICE_STOPPED)
    assert commit(world, attempt, 20) == "lost"  # a supervisor that was frozen, and comes back
    assert not world.run(store.record_resume(attempt, "c", step=None))
    assert pointed(world, second) == (10, 1, A)
    assert commit(world, second, 20) == "ok"
    world.finish_and_release(second)
    assert commit(world, second, 30) == "lost"
    assert pointed(world, second) == (20, 2, A)


def test_an_attempt_says_what_it_goes_on_from(world: World, attempt: AttemptId) -> None:
    assert commit(world, attempt, 10) == "ok"
    second = world.again(attempt, StateReason.SERVICE_STOPPED)
    before = world.job(attempt.job).checkpoint
    assert world.run(store.record_resume(second, "c", step=10, epoch=1, saved_by=1, sha256=A))
    assert [one.resumed for one in world.history(attempt.job)] == [None, {"step": 10, "attempt": 1}]
    assert world.job(attempt.job).checkpoint == before


def test_the_pointer_goes_back_to_the_checkpoint_that_could_be_used(world: World, attempt: AttemptId) -> None:
    assert commit(world, attempt, 10, A) == "ok"
    assert commit(world, attempt, 20, B) == "ok"
    second = world.again(attempt, StateReason.SERVICE_STOPPED)
    assert world.run(store.record_resume(second, "c", step=10, epoch=1, saved_by=1, sha256=A))  # 20 is damaged
    assert pointed(world, second) == (10, 1, A)
    assert commit(world, second, 20, A) == "ok"  # so that the same step counts again


def test_the_pointer_goes_when_nothing_could_be_used(world: World, attempt: AttemptId) -> None:
    assert commit(world, attempt, 10) == "ok"
    second = world.again(attempt, StateReason.SERVICE_STOPPED)
    assert world.run(store.record_resume(second, "c", step=None))
    assert world.job(attempt.job).checkpoint is None
    assert world.history(attempt.job)[-1].resumed is None
    assert commit(world, second, 5) == "ok"
