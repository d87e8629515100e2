"""Nodes come, go, change, and lose devices."""

import pytest

from jobs import store
from jobs.state import AttemptState, Order, Reason, State
from jobs.store import AttemptId, NodeStanding
from tests.integration.store.world import TENANT, World, node_info

pytestmark = pytest.mark.integration


def free(world: World) -> dict[str, int]:
    return {node.id: node.free for node in world.run(store.fleet()).nodes}


def test_a_node_registers_with_what_it_says_of_itself(world: World) -> None:
    world.node("n1", 3, pool="a100")
    (node,) = world.run(store.fleet()).nodes
    assert (node.id, node.pool, node.address, node.alive, node.free) == ("n1", "a100", "127.0.0.1", True, 3)
    assert node.info == node_info(3)


def test_registering_again_keeps_what_is_held(world: World) -> None:
    world.node(devices=4)
    attempt = world.running(2)
    for _ in range(2):
        world.node(devices=4, instance="i2")
        assert free(world) == {"n1": 2}
    assert world.run(store.beat_node("n1", "i2")).holding == {attempt: AttemptState.CLAIMED}
    assert world.run(store.beat_node("n1", "i1")).standing is NodeStanding.REPLACED
    world.finish_and_release(attempt)
    assert free(world) == {"n1": 4}


def test_a_node_that_comes_back_smaller_forgets_devices_only_when_they_are_released(world: World) -> None:
    world.node(devices=4)
    attempt = world.running(4)
    world.node(devices=2)
    assert free(world) == {"n1": 0}
    world.finish_and_release(attempt)
    assert free(world) == {"n1": 2}
    world.node(devices=6)
    assert free(world) == {"n1": 6}
    assert len(world.dispatch()) == 0
    assert world.submit(6) in world.dispatch()


def test_a_node_moves_to_another_pool_and_its_old_pool_goes_with_the_last_node(world: World) -> None:
    world.node("n1", 2, pool="old")
    waiting = world.submit(2, pool="old")
    assert world.dispatch() == [waiting]
    attempt = world.claim(waiting)
    still = world.submit(1, pool="old")
    world.node("n1", 2, pool="new")
    assert world.run(store.fleet()).queued == {"new": 0}
    world.finish_and_release(attempt)
    assert world.dispatch() == []
    moved = world.submit(1, pool="new")
    assert world.dispatch() == [moved]
    world.node("n2", 1, pool="old")
    assert world.dispatch() == [still]


def test_a_node_whose_beat_stands_still_takes_no_work_until_it_beats_again(world: World) -> None:
    world.node()
    beat = world.run(store.beats()).nodes["n1"]
    assert world.run(store.beat_node("n1", "i1")).standing is NodeStanding.OK
    assert not world.run(store.node_down("n1", beat))
    assert [world.run(store.node_down("n1", beat + 1)) for _ in range(2)] == [True, True]
    assert world.run(store.beats()).nodes == {}
    job = world.submit()
    assert world.dispatch() == []
    view = world.run(store.read_job(TENANT, job)).queue
    assert view is not None
    assert (view.live_nodes, view.free, view.total) == (0, 0, 0)
    world.run(store.beat_node("n1", "i1"))
    assert world.dispatch() == [job]


def test_leases_outlive_their_node_s_beat(world: World) -> None:
    world.node()
    attempt = world.running()
    world.run(store.node_down("n1", None))
    assert world.run(store.renew(attempt, "c"))
    assert world.run(store.orders(attempt, "c")) is Order.GO
    world.finish_and_release(attempt)


def test_a_device_in_quarantine_is_never_leased_again_not_even_after_a_restart(world: World) -> None:
    world.node(devices=2)
    attempt = world.running(2)
    world.finish(attempt)
    assert [world.release(attempt, {1: "pid 7 would not die"}), world.release(attempt)] == [2, 0]
    (node,) = world.run(store.fleet()).nodes
    assert (node.quarantine, node.held, node.free) == ({1: "pid 7 would not die"}, {}, 1)
    world.node(devices=2, instance="i2")
    pair, one = world.submit(2), world.submit(1)
    assert world.dispatch() == [one]
    assert (world.job(one).leased, world.state(pair)) == ((0,), State.QUEUED)


def test_quarantine_takes_only_devices_that_the_attempt_held(world: World) -> None:
    world.node(devices=2)
    first, second = world.running(1), world.running(1)
    world.finish(first)
    assert world.release(first, {1: "not its own"}) == 1
    (node,) = world.run(store.fleet()).nodes
    assert (node.quarantine, node.held) == ({}, {1: str(second)})


def test_stopping_a_node_tells_supervisors_and_takes_back_what_nobody_claimed(world: World) -> None:
    world.node(devices=3)
    attempt = world.running(1)
    unclaimed = world.submit(2)
    assert world.dispatch() == [unclaimed]
    lost = world.attempt(unclaimed)
    assert [world.run(store.stop_node("n1")), world.run(store.stop_node("n1"))] == [1, 1]
    record = world.job(unclaimed)
    assert (record.state, record.reason, record.retries) == (State.QUEUED, Reason.SERVICE_STOPPED, 0)
    assert "ended" in world.run(store.claim(lost, "late", "n1")).refused
    assert world.run(store.orders(attempt, "c")) is Order.STOP
    assert world.finish(attempt, Reason.SERVICE_STOPPED)
    world.release(attempt)
    assert world.run(store.stop_node("n1")) == 0
    assert world.dispatch() == []
    world.node(devices=3, instance="i2")
    assert sorted(world.dispatch()) == sorted([attempt.job, unclaimed])


def test_calls_that_name_an_unknown_node_change_nothing(world: World) -> None:
    stranger = AttemptId(TENANT, "job", 1)
    assert world.run(store.beat_node("ghost", "i1")).standing is NodeStanding.UNKNOWN
    assert world.run(store.stop_node("ghost")) == 0
    assert world.run(store.node_down("ghost", None))
    assert world.run(store.release("ghost", stranger, {})) == 0
    assert [key for key in world.redis.scan_iter() if b"ghost" in key] == []


def test_only_one_candidate_leads_at_a_time(world: World) -> None:
    assert [world.run(store.lead(name, 60)) for name in ("a", "b", "a", "b")] == [True, False, True, False]
    world.redis.delete("sy:leader")
    assert world.run(store.lead("b", 60))
