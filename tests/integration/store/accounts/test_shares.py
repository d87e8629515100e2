"""Whose turn it is among tenants that share a pool."""

import random
from collections import Counter

import pytest

from jobs import store
from jobs.store import shares
from tests.integration.store.world import NEVER, TENANT, World

pytestmark = pytest.mark.integration

DAY_US = 86_400 * 10**6


def used(world: World, tenant: str, pool: str = "default") -> float:
    """Device-seconds, as they count now."""
    found = world.run(shares.read_shares()).usage
    return next((each.device_seconds for each in found if (each.pool, each.tenant) == (pool, tenant)), 0.0)


def has_used(world: World, tenant: str, seconds: float, *, age_us: int = 0, pool: str = "default") -> None:
    """As if the tenant had used so much some time ago."""
    now, micros = world.redis.time()
    at = now * 10**6 + micros - age_us
    world.redis.hset(f"sy:use:{pool}", tenant, f"{seconds:.6f} {at} 0")


def tenants_started(world: World, hold: float = NEVER) -> list[str]:
    return [attempt.tenant for attempt in world.run(store.dispatch(hold)).created]


def test_the_tenant_that_has_used_less_goes_first(world: World) -> None:
    world.node(devices=1)
    has_used(world, "acme", 1000.0)
    has_used(world, "globex", 900.0)
    world.submit(tenant="acme")
    world.submit(tenant="globex")
    assert tenants_started(world) == ["globex"]


def test_a_weight_multiplies_what_a_tenant_may_use(world: World) -> None:
    world.node(devices=1)
    has_used(world, "acme", 1000.0)
    has_used(world, "globex", 900.0)
    world.submit(tenant="globex")
    world.submit(tenant="acme")
    world.run(shares.set_share("acme", 2.0))
    assert world.run(shares.read_shares()).weights == {"acme": 2.0}
    assert tenants_started(world) == ["acme"]
    world.run(shares.set_share("acme", None))
    assert world.run(shares.read_shares()).weights == {}


def test_a_higher_priority_goes_before_any_share(world: World) -> None:
    world.node(devices=1)
    has_used(world, "acme", 1_000_000.0)
    world.submit(tenant="globex")
    world.submit(tenant="acme", priority=1)
    assert tenants_started(world) == ["acme"]


def test_use_of_a_day_ago_counts_half(world: World) -> None:
    world.node(devices=1)
    has_used(world, "acme", 1000.0, age_us=DAY_US)
    has_used(world, "globex", 510.0)
    assert used(world, "acme") == pytest.approx(500.0, abs=0.1)
    world.submit(tenant="globex")
    world.submit(tenant="acme")
    assert tenants_started(world) == ["acme"]


def test_many_devices_that_become_free_at_once_go_to_all_tenants(world: World) -> None:
    world.node(devices=8)
    for tenant in ("acme", "globex"):
        for _ in range(8):
            world.submit(tenant=tenant)
    assert Counter(tenants_started(world)) == {"acme": 4, "globex": 4}


def test_tenants_that_have_used_nothing_go_by_arrival(world: World) -> None:
    world.node(devices=3)
    for tenant in ("globex", "acme", "default"):
        world.submit(tenant=tenant)
    assert tenants_started(world) == ["globex", "acme", "default"]


def test_what_was_used_of_one_pool_is_not_charged_in_another(world: World) -> None:
    world.node("n1", devices=1, pool="a")
    world.node("n2", devices=1, pool="b")
    has_used(world, "acme", 1000.0, pool="b")
    has_used(world, "globex", 10.0, pool="a")
    for pool in ("a", "b"):
        for tenant in ("globex", "acme"):
            world.submit(pool=pool, tenant=tenant)
    started = world.run(store.dispatch(NEVER)).created
    assert {(world.job(attempt.job).pool, attempt.tenant) for attempt in started} == {("a", "acme"), ("b", "globex")}


def test_a_lease_is_charged_until_its_attempt_ends(world: World) -> None:
    world.node(devices=4)
    attempt = world.running(3)
    (account,) = world.run(shares.read_shares()).usage
    assert (account.tenant, account.devices) == (TENANT, 3)
    now, _ = world.redis.time()
    world.redis.hset("sy:use:default", TENANT, f"0.0 {(now - 100) * 10**6} 3")
    assert used(world, TENANT) == pytest.approx(300.0, abs=6.0)
    world.finish(attempt)
    (account,) = world.run(shares.read_shares()).usage
    assert account.devices == 0
    assert account.device_seconds == pytest.approx(300.0, abs=6.0)
    world.release(attempt)


def test_a_clock_that_is_set_back_charges_nothing_and_keeps_what_was_used(world: World) -> None:
    world.node(devices=1)
    has_used(world, TENANT, 1000.0, age_us=-DAY_US)
    world.finish_and_release(world.running())
    assert used(world, TENANT) == pytest.approx(1000.0, abs=5.0)


def test_what_is_forgotten_is_less_than_a_second(world: World) -> None:
    world.node(devices=1)
    has_used(world, "acme", 2.0, age_us=2 * DAY_US)
    has_used(world, "globex", 1000.0, age_us=2 * DAY_US)
    world.run(shares.settle_shares())
    assert {account.tenant for account in world.run(shares.read_shares()).usage} == {"globex"}


def test_a_kept_node_goes_to_whoever_comes_before_by_share(world: World) -> None:
    world.node(devices=4)
    blocker = world.running(1)
    has_used(world, "acme", 1000.0)
    big = world.submit(4, tenant="acme")
    assert tenants_started(world, hold=0) == []
    world.submit(1, tenant="acme")
    assert tenants_started(world, hold=0) == [], "it came later, and its tenant has used as much"
    world.submit(1, tenant="globex")
    assert tenants_started(world, hold=0) == ["globex"]
    assert world.redis.hget("sy:hold:default", "ref") == f"acme/{big}".encode()
    world.run(store.cancel("acme", big))
    world.finish_and_release(blocker)


def test_the_place_in_the_queue_counts_what_starts_before_in_any_case(world: World) -> None:
    world.node(devices=4)
    for _ in range(3):
        world.submit(tenant="greedy")
    urgent = world.submit(2, tenant="greedy", priority=1)
    first, second = world.submit(2, tenant="small"), world.submit(1, tenant="small")
    last = world.submit(2, tenant="greedy")

    def ahead(job: str) -> int:
        queue = world.run(store.read_job(world.tenant(job), job)).queue
        assert queue is not None
        return queue.ahead

    assert [ahead(job) for job in (urgent, first, second, last)] == [0, 1, 2, 4]
    listed = world.run(store.list_jobs("small", store.JobFilter(), max_queues=10)).queues
    assert {job: queue.ahead for job, queue in listed.items()} == {first: 1, second: 2}


# -- versions side by side -------------------------------------------------------------------------


def forget_tenants_queues(world: World) -> None:
    """Leave the queues as an earlier version has them, which knows no tenants'."""
    for family in ("waiting", "turns", "use"):
        for key in world.redis.scan_iter(match=f"sy:{family}:*"):
            world.redis.delete(key)


def test_jobs_that_an_earlier_version_has_queued_are_dispatched(world: World) -> None:
    world.node(devices=2)
    jobs = [world.submit(tenant=tenant) for tenant in ("acme", "acme", "globex")]
    forget_tenants_queues(world)
    first = [attempt.job for attempt in world.run(store.dispatch(NEVER)).created]
    assert first == [jobs[0], jobs[2]], "whoever was queued is found, and then shares count"
    for job in first:
        world.finish_and_release(world.claim(job))
    assert [attempt.job for attempt in world.run(store.dispatch(NEVER)).created] == [jobs[1]]


def test_a_job_that_an_earlier_version_queues_beside_others_gets_its_turn(world: World) -> None:
    world.node(devices=1)
    has_used(world, "acme", 1000.0)
    job = world.submit(tenant="globex")
    forget_tenants_queues(world)
    has_used(world, "acme", 1000.0)
    ours = [world.submit(tenant=tenant) for tenant in ("acme", "initech")]
    has_used(world, "initech", 2000.0)
    world.run(shares.settle_shares())
    assert [attempt.job for attempt in world.run(store.dispatch(NEVER)).created] == [job]
    for other in ours:
        world.run(store.cancel(world.tenant(other), other))


def test_what_an_earlier_version_has_cancelled_starts_no_more(world: World) -> None:
    world.node(devices=1)
    gone, job = world.submit(tenant="acme"), world.submit(tenant="globex")
    ref = f"acme/{gone}"
    waiting = world.redis.zscore("sy:waiting:default:1:acme", ref)
    world.run(store.cancel("acme", gone))
    assert waiting is not None
    world.redis.zadd("sy:waiting:default:1:acme", {ref: waiting})  # where it leaves the job
    assert [attempt.job for attempt in world.run(store.dispatch(NEVER)).created] == [job]
    world.submit(tenant="acme")
    world.finish_and_release(world.claim(job))
    assert tenants_started(world) == ["acme"]


def test_what_an_earlier_version_leased_is_charged_as_well(world: World) -> None:
    world.node(devices=2)
    world.running(2)
    world.redis.delete("sy:use:default", "sy:placed:default")
    world.redis.zadd("sy:placed:default", {"default/ended/1": 0})
    world.run(shares.settle_shares())
    assert world.redis.zcard("sy:placed:default") == 1
    (account,) = world.run(shares.read_shares()).usage
    assert (account.tenant, account.devices) == (TENANT, 2)


# -- a model ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_every_job_that_starts_is_of_the_tenant_that_has_used_least_for_its_weight(world: World, seed: int) -> None:
    """All want one device of a node that has enough: each start is compared with all that wait."""
    dice = random.Random(seed)
    tenants = [f"t{number}" for number in range(dice.randint(2, 6))]
    world.node(devices=24)
    weights = {tenant: dice.choice((0.5, 1.0, 4.0)) for tenant in tenants}
    usage = {tenant: dice.choice((0.0, dice.uniform(1, 1000))) for tenant in tenants}
    for tenant in tenants:
        world.run(shares.set_share(tenant, weights[tenant]))
        if usage[tenant]:
            has_used(world, tenant, usage[tenant])
    waiting: dict[str, list[tuple[int, str]]] = {tenant: [] for tenant in tenants}
    for _ in range(40):
        tenant, priority = dice.choice(tenants), dice.choice((0, 0, 0, 5))
        waiting[tenant].append((-priority, world.submit(tenant=tenant, priority=priority)))
    for attempt in world.run(store.dispatch(NEVER)).created:
        top = min(min(jobs) for jobs in waiting.values() if jobs)[0]
        used_for = {
            tenant: usage[tenant] / weights[tenant] for tenant, jobs in waiting.items() if jobs and min(jobs)[0] == top
        }
        assert min(waiting[attempt.tenant]) == (top, attempt.job)
        assert used_for[attempt.tenant] <= min(used_for.values()) + 1.0, (attempt, used_for)
        waiting[attempt.tenant].remove((top, attempt.job))
        usage[attempt.tenant] += 60
