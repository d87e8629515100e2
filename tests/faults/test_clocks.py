"""Row 17: clocks that are apart, and one that jumps while a job runs."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from jobs import store
from jobs.model.state import JobState
from tests.faults.inject.clock import Clock, clock
from tests.faults.scene.journal import SERVER_OPTIONS
from tests.faults.scene.machine import need
from tests.faults.scene.site import Site
from tests.integration.workers.service import TENANT, eventually
from tests.support.servers.redis_server import redis_server

pytestmark = [pytest.mark.integration, pytest.mark.faults, pytest.mark.slow]

LEASE = 12.0
#: The control Redis is that far ahead of everybody else, in seconds.
APART = 300.0
JUMPS = (3600.0, -3600.0, 0.0)


@pytest.fixture
def redis_clock(tmp_path: Path) -> Clock:
    need("libfaketime")
    return clock(tmp_path, APART)


@pytest.fixture
def apart(redis_clock: Clock, tmp_path: Path) -> Iterator[Site]:
    """A site whose control Redis has a clock of its own. (Python's own sleep does not work under libfaketime.)"""
    with ExitStack() as stack:
        control = stack.enter_context(redis_server(tmp_path / "redis", redis_clock.environment(), **SERVER_OPTIONS))
        telemetry = stack.enter_context(redis_server(tmp_path / "telemetry"))
        site = Site(tmp_path, control, telemetry, lease_seconds=LEASE)
        stack.callback(site.close)
        site.api.start()
        site.start_worker()
        yield site


def is_ahead(site: Site, seconds: float) -> bool:
    """Whether the clock of the control Redis is ahead by so much."""
    now, _ = site.store.client.time()
    return abs(float(now) - time.time() - seconds) < 5


def goes_on(site: Site, job: str) -> None:
    """Check that a job's lease beats, and that it trains."""
    heartbeat, steps = site.attempts(job)[0].heartbeat, site.steps_done(job)
    eventually(lambda: site.attempts(job)[0].heartbeat > heartbeat + 4, "it beats")
    assert site.steps_done(job) > steps


def test_row_17_clocks_that_are_apart_and_jump_expire_nothing_and_keep_the_order(
    apart: Site, redis_clock: Clock
) -> None:
    assert is_ahead(apart, APART)
    job = apart.running("dp", 8, talks=True)
    waiting = [apart.post("dp", 8, steps=1) for _ in range(2)]
    for seconds in JUMPS:
        redis_clock.jump(seconds)
        eventually(partial(is_ahead, apart, seconds), "the clock jumps")
        goes_on(apart, job)
        waiting.append(apart.post("dp", 8, steps=1))
    assert apart.job(job).attempt == 1
    assert apart.node().alive
    views = [apart.run(store.read_job(TENANT, waits)).queue for waits in waiting]
    assert [view.ahead for view in views if view is not None] == list(range(len(waiting)))
    apart.cancel(job)
    apart.all_ended([job, *waiting], 90)
    assert [apart.job(waits).state for waits in waiting] == [JobState.SUCCEEDED] * len(waiting)
    apart.is_sound()
