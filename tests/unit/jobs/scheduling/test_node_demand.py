"""How many nodes a pool should have."""

import time

from hypothesis import given
from hypothesis import strategies as st

from jobs.model.provided_pool import Block
from jobs.scheduling.node_demand import NodeLimits, plan_nodes
from jobs.store.pools import ClassDemand, NodeSupply, PoolDemand

LIMITS = NodeLimits(devices=2, max_nodes=3)


def demand(
    *classes: tuple[int, int, int], nodes: tuple[NodeSupply, ...] = (), blocks: tuple[Block, ...] = ()
) -> PoolDemand:
    return PoolDemand(tuple(ClassDemand(*one) for one in classes), nodes, blocks)


def node(name: str, *, free: int, held: int = 0, block: str = "", takes_work: bool = True) -> NodeSupply:
    return NodeSupply(name, block, takes_work, 2, free, held)


def pending(name: str, nodes: int, **fields: object) -> Block:
    return Block(name, nodes, id=name[1:], state="pending", **fields)  # type: ignore[arg-type]


def test_nothing_waits_and_nothing_is_wanted() -> None:
    plan = plan_nodes(demand(), LIMITS)
    assert (plan.wanted, plan.new_blocks, plan.idle_blocks) == (0, (), frozenset())


def test_jobs_are_packed_into_as_few_nodes_as_they_fit_on() -> None:
    assert plan_nodes(demand((1, 1, 3)), LIMITS).new_blocks == (1, 1)
    assert plan_nodes(demand((2, 1, 1), (1, 1, 2)), LIMITS).new_blocks == (1, 1)


def test_a_burst_wants_no_more_than_the_pool_may_have() -> None:
    plan = plan_nodes(demand((2, 1, 20)), LIMITS)
    assert (plan.wanted, plan.new_blocks) == (3, (1, 1, 1))


def test_a_gang_wants_a_block_of_its_own_where_there_is_room_for_one() -> None:
    assert plan_nodes(demand((2, 2, 1)), LIMITS).new_blocks == (2,)
    idle = (node("a", free=2, block="7"),)
    of_block = (Block("b7", 1, id="7", state="running", registered=1),)
    assert plan_nodes(demand((2, 2, 1), nodes=idle, blocks=of_block), LIMITS).new_blocks == (2,)
    two = (*idle, node("b", free=0, held=2, block="8"))
    of_blocks = (*of_block, Block("b8", 1, id="8", state="running", registered=1))
    assert plan_nodes(demand((2, 2, 1), nodes=two, blocks=of_blocks), LIMITS).new_blocks == (1,)


def test_what_is_free_and_what_is_coming_counts() -> None:
    idle = (node("a", free=1, held=1),)
    assert plan_nodes(demand((1, 1, 1), nodes=idle), LIMITS).new_blocks == ()
    plan = plan_nodes(demand((1, 1, 5), nodes=idle, blocks=(pending("b7", 1),)), LIMITS)
    assert (plan.wanted, plan.new_blocks, plan.idle_blocks) == (3, (1,), frozenset())


def test_blocks_that_are_coming_and_that_nothing_needs_are_named() -> None:
    blocks = (pending("b7", 1), pending("b8", 1))
    assert plan_nodes(demand((1, 1, 1), blocks=blocks), LIMITS).idle_blocks == {"b8"}
    assert plan_nodes(demand(blocks=blocks), LIMITS).idle_blocks == {"b7", "b8"}


def test_a_node_that_leaves_takes_nothing_and_still_counts_against_the_limit() -> None:
    leaving = (node("a", free=2, block="7", takes_work=False),)
    blocks = (Block("b7", 1, id="7", state="running", registered=1),)
    plan = plan_nodes(demand((1, 1, 9), nodes=leaving, blocks=blocks), NodeLimits(2, 2))
    assert plan.new_blocks == (1,)


def test_the_least_number_of_nodes_is_kept_without_demand() -> None:
    plan = plan_nodes(demand(), NodeLimits(2, 3, min_nodes=2))
    assert (plan.wanted, plan.new_blocks) == (2, (1, 1))


def test_a_job_that_no_new_node_could_run_wants_none() -> None:
    assert plan_nodes(demand((4, 1, 2), (3, 2, 1)), LIMITS).new_blocks == ()


def test_a_pool_without_known_size_counts_what_works() -> None:
    busy = (node("a", free=0, held=2), node("b", free=2))
    assert plan_nodes(demand((2, 1, 5), nodes=busy), NodeLimits(0, 0)).wanted == 2


CLASSES = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 10**6)), max_size=8)


@given(CLASSES, st.integers(1, 8), st.integers(0, 40), st.lists(st.integers(1, 4), max_size=6))
def test_the_limit_is_never_passed_however_long_the_queue_is(
    classes: list[tuple[int, int, int]], devices: int, most: int, coming: list[int]
) -> None:
    blocks = tuple(pending(f"b{number}", size) for number, size in enumerate(coming))
    plan = plan_nodes(demand(*classes, blocks=blocks), NodeLimits(devices, most))
    assert sum(plan.new_blocks) <= max(0, most - sum(coming))
    if not classes:
        assert plan.idle_blocks == {block.name for block in blocks}


def test_a_long_queue_takes_no_longer_than_a_short_one() -> None:
    began = time.process_time()
    for _ in range(20):
        plan_nodes(demand((1, 1, 10**9), (2, 4, 10**9)), NodeLimits(8, 128))
    assert time.process_time() - began < 10
