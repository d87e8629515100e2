"""Policies of pools decide which nodes take work, and which network their jobs get."""

import pytest

from api.schemas import views
from api.schemas.fleet_facts import FleetFacts
from jobs import store
from jobs.model.pool_policy import DEFAULT_POLICY, PoolPolicy
from jobs.model.records import BoxRights
from jobs.model.state import JobState, StateReason
from jobs.store import FleetRecords
from shardyard.contract.errors import InvalidSpec
from tests.integration.store.world import TENANT, World

pytestmark = pytest.mark.integration

FULL = BoxRights("full", {})
USER = BoxRights("user", {"network": "it cannot be made here"})
NONE = BoxRights("none", {})


def fleet(world: World) -> FleetRecords:
    return world.run(store.read_fleet())


def takes_work(world: World) -> dict[str, bool]:
    return {node.id: node.takes_work for node in fleet(world).nodes}


def networks(world: World, job: str) -> tuple[str | None, list[str | None]]:
    return world.job(job).network, [attempt.network for attempt in world.history(job)]


@pytest.mark.parametrize(
    ("demand", "willing"),
    [("any", {"old", "none", "user", "full"}), ("user", {"user", "full"}), ("full", {"full"})],
)
def test_only_nodes_with_the_box_that_the_pool_demands_take_work(world: World, demand: str, willing: set[str]) -> None:
    for name, box in (("old", None), ("none", NONE), ("user", USER), ("full", FULL)):
        world.node(name, 1, box=box)
    world.run(store.set_policy("default", PoolPolicy(demand)))
    assert {name for name, takes in takes_work(world).items() if takes} == willing
    jobs = [world.submit() for _ in range(4)]
    world.dispatch()
    assert {world.job(job).node for job in jobs if world.state(job) is JobState.STARTING} == willing
    queues = [world.run(store.read_job(TENANT, job)).queue for job in jobs if world.state(job) is JobState.QUEUED]
    assert [(queue.live_nodes, queue.total) for queue in queues if queue] == [(len(willing), len(willing))] * len(
        queues
    )


def test_a_policy_counts_for_nodes_that_come_after_it_and_goes_with_no_node(world: World) -> None:
    world.run(store.set_policy("default", PoolPolicy("full", "host")))
    world.node("n1", 1, box=USER)
    world.node("n2", 1, box=FULL)
    assert takes_work(world) == {"n1": False, "n2": True}
    for node in ("n1", "n2"):
        world.run(store.take_down_node(node, None))
        world.run(store.forget_node(node))
    assert fleet(world).policies == {"default": PoolPolicy("full", "host")}
    world.node("n1", 1, box=USER)
    assert takes_work(world) == {"n1": False}
    world.run(store.set_policy("default", DEFAULT_POLICY))
    assert (fleet(world).policies, takes_work(world)) == ({}, {"n1": True})


def test_a_stricter_policy_leaves_what_runs_and_starts_no_more(world: World) -> None:
    world.node("n1", 2, box=USER)
    attempt = world.running()
    world.run(store.set_policy("default", PoolPolicy("full")))
    waiting = world.submit()
    assert world.dispatch() == []
    world.finish_and_release(attempt)
    assert world.dispatch() == [], "free devices make no box"
    world.run(store.renew_node("n1", "i1"))
    assert world.dispatch() == []
    world.run(store.set_policy("default", PoolPolicy("user")))
    assert world.dispatch() == [waiting]


def test_a_node_that_gets_a_box_takes_work_and_one_that_loses_it_does_not(world: World) -> None:
    world.run(store.set_policy("default", PoolPolicy("user")))
    world.node("n1", 1, box=NONE)
    job = world.submit()
    assert world.dispatch() == []
    world.node("n1", 1, instance="i2", box=USER)
    assert world.dispatch() == [job]
    world.finish_and_release(world.claim(job))
    world.node("n1", 1, instance="i3", box=None)
    world.submit()
    assert world.dispatch() == []


def test_a_worker_of_an_earlier_version_inherits_no_box_from_the_one_before_it(world: World) -> None:
    world.run(store.set_policy("default", PoolPolicy("full")))
    world.node("n1", 1, box=FULL)
    job = world.submit()
    # As such a worker registers: it knows no field of the box, and offers its node where it frees devices.
    world.redis.hset(
        "sy:node:n1", mapping={"instance": "earlier", "info": b'{"host":"h","cores":1,"version":"0","devices":[]}'}
    )
    assert world.dispatch() == []
    assert world.state(job) is JobState.QUEUED
    assert world.redis.zscore("sy:pool:default:free", "n1") is None
    world.node("n1", 1, box=FULL)
    assert world.dispatch() == [job]


def test_many_nodes_without_the_box_hide_none_that_has_it(world: World) -> None:
    for number in range(9):
        world.node(f"n{number}", 1, box=NONE)
    world.node("roomy", 4, box=FULL)
    world.run(store.set_policy("default", PoolPolicy("full")))
    for number in range(9):  # as supervisors of an earlier version offer them again
        world.redis.zadd("sy:pool:default:free", {f"n{number}": 1})
    job = world.submit()
    assert world.dispatch() == [job]
    assert world.job(job).node == "roomy"


def test_policies_are_those_of_one_pool(world: World) -> None:
    world.node("n1", 1, box=NONE)
    world.node("n2", 1, pool="open", box=NONE)
    world.run(store.set_policy("default", PoolPolicy("full")))
    shut, taken = world.submit(), world.submit(pool="open")
    assert world.dispatch() == [taken]
    assert world.state(shut) is JobState.QUEUED


@pytest.mark.parametrize(
    ("box", "policy", "network"),
    [
        (FULL, PoolPolicy(), "none"),
        (FULL, PoolPolicy(network="host"), "host"),
        (FULL, PoolPolicy(network="closed"), "none"),
        (USER, PoolPolicy(network="closed"), "host"),
        (USER, PoolPolicy(), "host"),
        (NONE, PoolPolicy(), "host"),
        (None, PoolPolicy(), "host"),
    ],
)
def test_an_attempt_keeps_which_network_it_has(
    world: World, box: BoxRights | None, policy: PoolPolicy, network: str
) -> None:
    world.node("n1", 1, box=box)
    world.run(store.set_policy("default", policy))
    job = world.submit()
    assert networks(world, job) == (None, [])
    world.dispatch()
    assert networks(world, job) == (network, [network])


def test_no_job_runs_on_several_nodes_of_a_pool_whose_network_is_closed(world: World) -> None:
    for name in ("n1", "n2"):
        world.node(name, 1, box=FULL)
    before = world.submit(1, nodes=2)
    world.run(store.set_policy("default", PoolPolicy(network="closed")))
    with pytest.raises(InvalidSpec) as refused:
        world.submit(1, nodes=2)
    assert [(field.field, "--network none" in field.message) for field in refused.value.fields] == [
        ("resources.nodes", True)
    ]
    small = [world.submit() for _ in range(2)]
    assert sorted(world.dispatch()) == sorted(small), "what waits keeps no node from others"
    shown = views.job_status(world.run(store.read_job(TENANT, before)), None, FleetFacts.from_records(fleet(world)))
    assert "never have the network" in shown.reason.message
    for job in small:
        attempt, node = world.claim(job), world.job(job).node
        assert world.finish(attempt)
        assert world.release(attempt, node=node or "") == 1
    world.run(store.set_policy("default", DEFAULT_POLICY))
    assert world.dispatch() == [before]


def test_a_policy_that_changes_leaves_the_network_of_attempts_that_were_dispatched(world: World) -> None:
    world.node("n1", 1, box=FULL)
    attempt = world.running(retries=1)
    world.run(store.set_policy("default", PoolPolicy(network="host")))
    assert networks(world, attempt.job) == ("none", ["none"])
    assert world.run(store.stop_node("n1")) == 1
    assert world.finish(attempt, StateReason.SERVICE_STOPPED)
    world.release(attempt)
    world.node("n1", 1, instance="i2", box=FULL)
    assert world.dispatch() == [attempt.job]
    assert networks(world, attempt.job) == ("host", ["none", "host"])
