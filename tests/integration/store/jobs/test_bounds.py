"""What is left in the control Redis of jobs that are gone: nothing that grows with their number."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from api.background import retention
from jobs import store
from jobs.model.state import StateReason
from tests.integration.store.world import TENANT, World, script

pytestmark = pytest.mark.integration

JOBS = 300
#: Entries that the list of changes may have; Redis trims it by nodes of a hundred.
MOST_CHANGES = 10_200


def succeeds(world: World) -> str:
    attempt = world.running()
    world.mark(attempt, "first_step")
    world.finish_and_release(attempt)
    return attempt.job


def fails_after_a_retry(world: World) -> str:
    attempt = world.claimed(2, retries=1)
    world.finish(attempt, StateReason.RANK_FAILED)
    world.release(attempt)
    world.redis.zadd("sy:backoff", {attempt.job_ref: 0})  # the wait is over
    world.dispatch()
    again = world.claim(attempt.job)
    world.finish(again, StateReason.RANK_FAILED)
    world.release(again)
    return attempt.job


def is_cancelled_while_it_waits(world: World) -> str:
    job = world.submit(4)
    world.run(store.cancel(TENANT, job))
    return job


def is_cancelled_while_it_runs(world: World) -> str:
    attempt = world.running()
    world.run(store.cancel(TENANT, attempt.job))
    world.finish(attempt, StateReason.CANCELLED_BY_USER)
    world.release(attempt)
    return attempt.job


def saves_and_is_lost(world: World) -> str:
    attempt = world.running()
    world.run(store.commit_checkpoint(attempt, "c", step=10, epoch=0, sha256="0" * 64))
    world.reap(attempt, heartbeat=None, reason=StateReason.SUPERVISOR_LOST)
    world.release(attempt)
    world.run(store.cancel(TENANT, attempt.job))
    return attempt.job


def comes_from_a_bundle(world: World) -> str:
    world.put_bundle(1)
    job = world.submit(program=script(1))
    world.dispatch()
    world.finish_and_release(world.claim(job))
    return job


LIVES: tuple[Callable[[World], str], ...] = (
    succeeds,
    fails_after_a_retry,
    is_cancelled_while_it_waits,
    is_cancelled_while_it_runs,
    saves_and_is_lost,
    comes_from_a_bundle,
)


def live_and_go(world: World, storage: Path, lives: Iterator[Callable[[World], str]], jobs: int) -> None:
    """Have jobs end in every way; half of them are deleted, the others archived."""
    for number in range(jobs):
        job = next(lives)(world)
        if number % 2:
            world.run(store.delete_job(TENANT, job))
        if number % 50 == 0:
            while retention.sweep_finished_jobs(world.store, storage, 1e-6, 0):
                pass
    while retention.sweep_finished_jobs(world.store, storage, 1e-6, 0):
        pass


def sizes(world: World) -> dict[bytes, int]:
    """Bytes of every key but the list of changes and the history of devices, whose bounds are their own, and of what is
    remembered for two minutes."""
    found: dict[bytes, int] = {}
    for key in world.redis.scan_iter("*", count=1000):
        if key.startswith(b"sy:archived:"):
            assert 0 < world.redis.ttl(key) <= store.ARCHIVED_SECONDS
        elif key.startswith(b"sy:history:"):
            assert world.redis.zcard(key) <= store.MAX_HISTORY_LINES
        elif key != b"sy:changes":
            found[key] = int(world.redis.memory_usage(key, samples=0) or 0)
    return found


def test_hundreds_of_jobs_that_came_and_went_leave_no_key_and_no_memory(world: World, tmp_path: Path) -> None:
    world.node()
    lives = itertools.cycle(LIVES)
    live_and_go(world, tmp_path, lives, 2 * len(LIVES))
    before = sizes(world)
    live_and_go(world, tmp_path, lives, JOBS)
    after = sizes(world)
    assert after.keys() == before.keys()
    assert sum(after.values()) - sum(before.values()) < 1000  # numbers have more digits


def test_the_list_of_changes_is_trimmed(world: World) -> None:
    world.node()
    for _ in range(2):
        pipe = world.redis.pipeline(transaction=False)
        for _ in range(6000):
            pipe.xadd("sy:changes", {"job": "default/earlier"})
        pipe.execute()
    succeeds(world)
    assert world.redis.xlen("sy:changes") <= MOST_CHANGES
