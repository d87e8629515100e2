"""Pools that a provider keeps, and the blocks of their nodes."""

import pytest

from jobs import store
from jobs.model.provided_pool import Block, PoolOffer
from jobs.model.state import JobState, StateReason
from jobs.store.pools import (
    ClassDemand,
    drop_pool,
    end_block,
    keep_pool,
    list_offers,
    note_block,
    read_demand,
)
from shardyard.contract.errors import TooLargeForPool, UnknownPool
from tests.integration.store.invariants import violations
from tests.integration.store.world import World, node_info

pytestmark = pytest.mark.integration

OFFER = PoolOffer("slurm", "host:pools.toml", devices=2, nodes=3)
ME = OFFER.provider


@pytest.fixture
def kept(world: World) -> World:
    assert world.run(keep_pool("slurm", ME, 60, OFFER))
    return world


def join(world: World, node: str, block: str, devices: int = 2, instance: str = "i1") -> store.Registration:
    return world.run(
        store.register_node(
            node, instance, "slurm", "10.0.0.1", node_info(devices), home=node, reach="network", block=block
        )
    )


def end(world: World, block: str, name: str = "") -> int:
    return world.run(end_block("slurm", block, f"block {block} is over: NODE_FAIL", backoff_seconds=0, name=name))


def test_a_job_for_a_kept_pool_is_accepted_while_the_pool_has_no_node(kept: World) -> None:
    job = kept.submit(2, pool="slurm")
    gang = kept.submit(2, nodes=3, pool="slurm")
    assert kept.dispatch() == []
    assert [kept.state(one) for one in (job, gang)] == [JobState.QUEUED] * 2
    assert kept.run(store.read_fleet()).queued == {"slurm": 2}
    with pytest.raises(TooLargeForPool, match="has 2"):
        kept.submit(3, pool="slurm")
    with pytest.raises(TooLargeForPool, match="3 of pool"):
        kept.submit(1, nodes=4, pool="slurm")
    assert join(kept, "a", "7") is store.Registration.OK
    assert kept.dispatch() == [job]


def test_a_pool_that_may_have_no_node_takes_no_job(world: World) -> None:
    world.run(keep_pool("slurm", ME, 60, PoolOffer("slurm", ME, devices=2, nodes=0)))
    with pytest.raises(TooLargeForPool):
        world.submit(1, pool="slurm")


def test_a_pool_stays_without_nodes_for_as_long_as_it_is_kept(kept: World) -> None:
    join(kept, "a", "7")
    end(kept, "7")
    kept.submit(1, pool="slurm")
    assert kept.run(list_offers()) == {"slurm": OFFER}
    assert kept.run(drop_pool("slurm", ME))
    assert kept.run(list_offers()) == {}
    with pytest.raises(UnknownPool):
        kept.submit(1, pool="slurm")


def test_no_two_providers_keep_a_pool(kept: World) -> None:
    other = PoolOffer("slurm", "other", devices=8, nodes=9)
    assert not kept.run(keep_pool("slurm", "other", 60, other))
    assert not kept.run(note_block("slurm", "other", Block("b", 1)))
    assert not kept.run(drop_pool("slurm", "other"))
    assert kept.run(list_offers()) == {"slurm": OFFER}
    kept.redis.delete("sy:leader:pool:slurm")  # as when its time is over
    assert kept.run(keep_pool("slurm", "other", 60, other))
    assert not kept.run(note_block("slurm", ME, Block("b", 1)))


def test_the_demand_counts_what_waits_what_is_there_and_what_was_asked_for(kept: World) -> None:
    for _ in range(3):
        kept.submit(1, pool="slurm")
    kept.submit(2, nodes=2, pool="slurm")
    block = Block("sy-1", 2, id="7", state="pending", why="Priority")
    assert kept.run(note_block("slurm", ME, block))
    join(kept, "a", "7")
    kept.dispatch()
    demand = kept.run(read_demand("slurm"))
    assert sorted(demand.classes, key=lambda one: one.nodes) == [ClassDemand(1, 1, 1), ClassDemand(2, 2, 1)]
    (node,) = demand.nodes
    assert (node.node, node.block, node.takes_work, node.devices, node.free, node.held) == ("a", "7", True, 2, 0, 2)
    assert demand.blocks == (block,)
    (provided,) = kept.run(store.read_fleet()).provided.values()
    assert (provided.offer, provided.blocks, provided.silent) == (OFFER, (block,), False)


def test_the_end_of_a_block_ends_its_leases_and_forgets_its_nodes_without_quarantine(kept: World) -> None:
    kept.run(note_block("slurm", ME, Block("sy-1", 2, id="7", state="running")))
    for node in ("a", "b"):
        join(kept, node, "7")
    join(kept, "c", "8")
    job = kept.submit(2, nodes=3, pool="slurm")
    assert kept.dispatch() == [job]
    for place in kept.job(job).placement:
        kept.run(store.claim(kept.attempt(job), f"c-{place.node}", place.node))
    waiting = kept.submit(2, pool="slurm")

    assert end(kept, "7", "sy-1") == 2
    assert kept.history(job)[0].reason is StateReason.NODE_LOST
    assert kept.history(job)[0].message == "block 7 is over: NODE_FAIL"
    assert (kept.job(job).losses, kept.job(job).retries) == (1, 0)
    fleet = kept.run(store.read_fleet())
    assert [node.id for node in fleet.nodes] == ["c"]
    assert fleet.provided["slurm"].blocks == ()
    assert kept.redis.keys("sy:*:a") == kept.redis.keys("sy:*:b") == []
    # What runs on the node of another block is ended by its own supervisor, and freed by its proof.
    assert fleet.nodes[0].free == 0
    kept.run(store.release("c", store.AttemptId("default", job, 1), {}))
    assert set(kept.dispatch()) <= {job, waiting}
    assert violations(kept.redis) == []
    assert end(kept, "7") == 0


def test_what_nobody_had_claimed_goes_back_at_no_cost_when_its_block_is_over(kept: World) -> None:
    join(kept, "a", "7")
    job = kept.submit(1, pool="slurm")
    kept.dispatch()
    end(kept, "7")
    assert (kept.state(job), kept.job(job).losses) == (JobState.QUEUED, 0)
    assert violations(kept.redis) == []


def test_a_node_of_a_block_that_is_over_stays_out_and_one_of_a_new_block_joins(kept: World) -> None:
    join(kept, "a", "7")
    end(kept, "7")
    assert kept.run(store.renew_node("a", "i1")).standing is store.NodeStanding.UNKNOWN
    assert join(kept, "a", "7") is store.Registration.OVER
    assert join(kept, "a", "8") is store.Registration.OK
    kept.run(note_block("slurm", ME, Block("sy-2", 1, id="7", state="starting")))  # of an engine that counts anew
    assert join(kept, "b", "7") is store.Registration.OK


def test_a_node_that_leaves_its_block_is_forgotten_once_nothing_holds_its_devices(kept: World) -> None:
    join(kept, "a", "7")
    assert kept.run(store.leave_block("a", "i1"))
    assert kept.run(store.read_fleet()).nodes == ()
    join(kept, "a", "7")
    job = kept.submit(1, pool="slurm")
    kept.dispatch()
    kept.claim(job)
    assert not kept.run(store.leave_idle_node("a"))
    assert not kept.run(store.leave_block("a", "i1"))
    (node,) = kept.run(store.read_fleet()).nodes
    assert (node.alive, node.block, len(node.held)) == (False, "7", 1)
    assert end(kept, "7") == 1
    assert kept.run(store.read_fleet()).nodes == ()


def test_an_idle_node_that_leaves_takes_no_job_that_comes_at_that_moment(kept: World) -> None:
    join(kept, "a", "7")
    assert kept.run(store.leave_idle_node("a"))
    kept.submit(1, pool="slurm")
    assert kept.dispatch() == []
