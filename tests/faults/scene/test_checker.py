"""The checker finds what is broken on purpose, and nothing where all is well."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobs.files import paths
from jobs.model.state import StateReason
from jobs.store import AttemptId
from tests.faults.scene.checker import Evidence, violations
from tests.faults.scene.journal import SERVER_OPTIONS
from tests.faults.scene.recorder import Exchange
from tests.integration.store.world import TENANT, World
from tests.support.servers.redis_server import redis_server

pytestmark = [pytest.mark.integration, pytest.mark.faults]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with redis_server(tmp_path / "redis", **SERVER_OPTIONS) as server:
        world = World(server.url)
        world.node()
        yield world
        world.store.close()


def look(world: World, directory: Path, **fields: object) -> list[str]:
    return violations(Evidence(world.redis, directory / "redis", directory, directory / "state", **fields))  # type: ignore[arg-type]


def ended(world: World) -> AttemptId:
    """A job that has run well."""
    attempt = world.running()
    world.finish_and_release(attempt)
    return attempt


def test_a_job_that_has_run_well_breaks_nothing(world: World, tmp_path: Path) -> None:
    attempt = ended(world)
    assert look(world, tmp_path, acked=(attempt.job,)) == []


def test_a_job_that_still_waits_and_one_that_is_gone_are_found(world: World, tmp_path: Path) -> None:
    world.submit(4)
    found = look(world, tmp_path, acked=("another",))
    assert any("is still queued" in words for words in found)
    assert any("default/another was accepted and is not there" in words for words in found)


def test_a_loss_is_found_unless_the_test_explains_it(world: World, tmp_path: Path) -> None:
    attempt = world.running()
    assert world.reap(attempt, heartbeat=None, reason=StateReason.SUPERVISOR_LOST)
    world.release(attempt)
    world.dispatch()
    world.claim(attempt.job)
    world.mark(world.attempt(attempt.job))
    world.finish_and_release(world.attempt(attempt.job))
    assert [words[:2] for words in look(world, tmp_path)] == ["I8"]
    assert look(world, tmp_path, losses=frozenset({StateReason.SUPERVISOR_LOST})) == []


WRITES: dict[str, tuple[str, Callable[[World, AttemptId], object]]] = {
    "a second end": ("I6", lambda world, it: _set(world, f"sy:job:{it.job_ref}", "state", "running")),
    "a second claimant": ("I2", lambda world, it: _set(world, f"sy:attempt:{it}", "claimant", "another")),
    "a second claimant of a part": ("I2", lambda world, it: _claim_part_twice(world, it)),
    "a second reason": ("I2", lambda world, it: _set(world, f"sy:attempt:{it}", "reason", "stalled")),
    "a lease that is left": ("I4", lambda world, it: world.redis.sadd("sy:leases", str(it))),
    "a device that is held": ("I4", lambda world, it: _set(world, "sy:held:n1", "0", str(it))),
}


def _set(world: World, key: str, field: str, value: str) -> None:
    world.redis.hset(key, field, value)


def _claim_part_twice(world: World, attempt: AttemptId) -> None:
    for claimant in ("one", "another"):
        _set(world, f"sy:attempt:{attempt}", "claimant.1", claimant)


@pytest.mark.parametrize("what", WRITES)
def test_a_write_that_nobody_may_make_is_found(world: World, tmp_path: Path, what: str) -> None:
    attempt = ended(world)
    invariant, write = WRITES[what]
    write(world, attempt)
    assert any(words.startswith(invariant) for words in look(world, tmp_path))


def test_a_log_without_a_seal_is_found(world: World, tmp_path: Path) -> None:
    attempt = ended(world)
    directory = paths.attempt_dir(tmp_path, TENANT, attempt.job, attempt.number)
    paths.logs_dir(directory).mkdir(parents=True)
    paths.log_file(directory, 0).touch()
    assert any("has no seal" in words for words in look(world, tmp_path))


def test_what_http_says_of_a_job_must_fit_together(world: World, tmp_path: Path) -> None:
    job = ended(world).job
    told = [
        Exchange(0, "POST", "/v1/jobs", "key", 201, job, "queued"),
        Exchange(1, "POST", "/v1/jobs", "key", 201, "second", "queued"),
        Exchange(2, "GET", f"/v1/jobs/{job}", "", 200, job, "succeeded"),
        Exchange(3, "GET", f"/v1/jobs/{job}", "", 200, job, "running"),
    ]
    found = look(world, tmp_path, exchanges=tuple(told))
    assert any("Idempotency-Key key made 2 jobs" in words for words in found)
    assert any("was succeeded, and running afterwards" in words for words in found)
