"""What a queued job waits for, and the model that plays its pool forward."""

import random

import pytest

from jobs import store
from jobs.scheduling.start_estimate import PoolModel, estimate_start
from jobs.store import shares
from jobs.store.queue_facts import QueueFacts, read_queue
from tests.integration.store.accounts.test_shares import has_used
from tests.integration.store.world import NEVER, TENANT, World

pytestmark = pytest.mark.integration


def facts_of(world: World, job: str) -> QueueFacts:
    found = world.run(read_queue(world.tenant(job), job))
    assert found is not None
    return found


@pytest.mark.parametrize("seed", range(12))
def test_the_model_starts_at_once_what_the_service_starts(world: World, seed: int) -> None:
    dice = random.Random(seed)
    for number in range(3):
        world.node(f"n{number}", dice.randint(2, 6))
    tenants = [f"t{number}" for number in range(dice.randint(1, 4))]
    for tenant in tenants:
        world.run(shares.set_share(tenant, dice.choice((0.5, 1.0, 3.0))))
        has_used(world, tenant, dice.uniform(1, 5000))
    for _ in range(25):
        world.submit(
            dice.choice((1, 1, 2)),
            nodes=dice.choice((1, 1, 1, 2)),
            priority=dice.choice((0, 5)),
            tenant=dice.choice(tenants),
        )
    last = world.submit(2, priority=-5, tenant=tenants[0])
    model = PoolModel(facts_of(world, last), None, random.Random(0))
    model.dispatch()
    started = [str(attempt).rpartition("/")[0] for attempt in world.run(store.dispatch(NEVER)).created]
    assert model.started == started
    assert len(started) > 1


def test_the_facts_of_a_queue_are_those_of_its_pool(world: World) -> None:
    world.node("n1", devices=4)
    world.node("n2", devices=2)
    world.node("other", devices=8, pool="b")
    world.run(store.quarantine_device("n2", 1, "broken"))
    runs = world.running(3)
    has_used(world, "acme", 500.0)
    before = [world.submit(2), world.submit(4, priority=1, tenant="acme"), world.submit(2, tenant="acme")]
    job = world.submit(2, limits={"wall_seconds": 60})
    found = facts_of(world, job)
    assert (found.ref, found.node_count, found.queued) == (f"{TENANT}/{job}", 2, 4)
    assert sorted((node.free, node.usable, node.quarantined) for node in found.nodes) == [(1, 1, 1), (1, 4, 0)]
    (lease,) = found.running
    assert (lease.tenant, [devices for _, devices in lease.placement], lease.wall_seconds) == (TENANT, [3], 86_400)
    assert found.before == {TENANT: 1, "acme": 1}, "acme has used more, so only its job of a higher priority"
    mine = next(queue for queue in found.queues if queue.tenant == TENANT)
    assert [waiting.ref for waiting in mine.jobs] == [f"{TENANT}/{before[0]}", f"{TENANT}/{job}"]
    assert mine.jobs[1].wall_seconds == 60
    assert world.run(read_queue(TENANT, runs.job)) is None


def test_without_past_runs_the_wall_limits_say_when_a_job_starts_at_the_latest(world: World) -> None:
    world.node(devices=1)
    world.run(store.dispatch(NEVER))
    for wall in (100, 50, 10):
        job = world.submit(limits={"wall_seconds": wall})
        world.dispatch()
    estimate = estimate_start(facts_of(world, job))
    assert estimate is not None
    assert (estimate.past_runs, estimate.earliest) == (0, 0.0)
    assert estimate.latest == pytest.approx(150, abs=10)


def test_a_node_that_is_kept_is_named_with_its_job(world: World) -> None:
    world.node(devices=4)
    world.running(1)
    big = world.submit(4)
    world.dispatch(hold=0)
    small = world.submit(1)
    found = facts_of(world, small)
    assert (found.kept_for, found.kept_nodes) == (f"{TENANT}/{big}", ("n1",))
