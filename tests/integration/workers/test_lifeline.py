"""A supervisor's line to a real control Redis: beats, orders as soon as they are told, and a server that goes away."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobs import store
from jobs.redis_store import RedisStore
from jobs.state import Order, Reason
from jobs.wire import orders_channel
from tests.integration.redis_server import RedisServer, redis_server
from tests.integration.store.world import World
from workers import lifeline
from workers.lifeline import Lifeline

pytestmark = pytest.mark.integration

DEADLINE_SECONDS = 10.0
#: Nothing happens by the clock within a test.
NEVER = 3600.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path, appendonly="yes", appendfsync="always") as server:
        yield server


@pytest.fixture
def world(server: RedisServer) -> Iterator[World]:
    world = World(server.url)
    world.node()
    yield world
    world.store.close()


@pytest.fixture(autouse=True)
def hears_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifeline, "HEAR_SECONDS", 0.0)


def until(met: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not met():
        assert time.monotonic() < deadline, f"not within {DEADLINE_SECONDS:g} s: {what}"
        time.sleep(0.005)


def listeners(world: World) -> int:
    ((_, number),) = world.redis.pubsub_numsub(orders_channel("n1"))
    return int(number)


def claimed(world: World, server: RedisServer, beat_seconds: float = NEVER) -> tuple[Lifeline, store.AttemptId]:
    """A lifeline that hears, and will not ask by itself before its next beat."""
    job = world.submit()
    assert job in world.dispatch()
    attempt = world.attempt(job)
    line = Lifeline(RedisStore.from_url(server.url), attempt, "n1", beat_seconds)
    assert line.claim().granted
    until(lambda: line._hears and listeners(world), "it hears")
    if beat_seconds == NEVER:
        until(lambda: rests(world), "it has looked, as it does when it begins to hear")
    return line, attempt


def rests(world: World) -> bool:
    asked = calls(world)
    time.sleep(0.1)
    return calls(world) == asked


def calls(world: World) -> int:
    return int(world.redis.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0))


@pytest.mark.parametrize(
    ("give", "order"),
    [
        (lambda world, attempt: world.run(store.cancel(attempt.tenant, attempt.job)), Order.CANCEL),
        (lambda world, _: world.run(store.stop_node("n1")), Order.STOP),
        (lambda world, _: world.run(store.drain_node("n1", deadline_seconds=0)), Order.STOP),
        (lambda world, attempt: world.reap(attempt, beat=None), Order.LOST),
    ],
    ids=["cancel", "stop", "drain", "reap"],
)
def test_an_order_is_heard_long_before_the_next_beat(
    world: World, server: RedisServer, give: Callable[[World, store.AttemptId], object], order: Order
) -> None:
    line, attempt = claimed(world, server)
    assert line.order is Order.GO
    give(world, attempt)
    until(lambda: line.order is order, f"the order {order}")
    line.finish(Reason.CANCELLED_BY_USER, "over", None, None, 0.0)


def test_while_it_hears_it_asks_for_nothing_but_beats(
    world: World, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifeline, "ORDERS_SECONDS", 0.001)
    line, attempt = claimed(world, server, beat_seconds=0.1)

    def beats() -> int:
        return int(world.redis.hget(f"sy:attempt:{attempt}", "beat") or 0)

    before, asked = beats(), calls(world)
    until(lambda: beats() >= before + 5, "five beats")
    assert calls(world) - asked <= 7
    assert line.finish(Reason.COMPLETED, "over", None, None, 0.0)


def test_a_beat_brings_an_order_that_nobody_told(world: World, server: RedisServer) -> None:
    line, attempt = claimed(world, server, beat_seconds=0.2)
    world.redis.hset(f"sy:job:{attempt.job_ref}", "cancel", "1")
    until(lambda: line.order is Order.CANCEL, "the order that came with a beat")
    line.finish(Reason.CANCELLED_BY_USER, "over", None, None, 0.0)


def test_an_order_that_was_given_while_redis_restarted_is_found(world: World, server: RedisServer) -> None:
    line, attempt = claimed(world, server)
    server.kill()
    server.start()
    world.run(store.cancel(attempt.tenant, attempt.job))
    until(lambda: line.order is Order.CANCEL, "the order")
    until(lambda: listeners(world), "it hears again")
    line.finish(Reason.CANCELLED_BY_USER, "over", None, None, 0.0)
