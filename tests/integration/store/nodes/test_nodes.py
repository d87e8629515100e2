"""Nodes come, go, change, and lose devices."""

import pytest

from jobs import store
from jobs.model.records import NodeRecord
from jobs.model.state import AttemptState, JobState, StateReason, SupervisorCommand
from jobs.store import AttemptId, NodeStanding
from shardyard.contract.errors import NotFound
from tests.integration.store.world import TENANT, World, node_info

pytestmark = pytest.mark.integration


def free(world: World) -> dict[str, int]:
    return {node.id: node.free for node in world.run(store.read_fleet()).nodes}


def test_a_node_registers_with_what_it_says_of_itself(world: World) -> None:
    world.node("n1", 3, pool="a100")
    (node,) = world.run(store.read_fleet()).nodes
    assert (node.id, node.pool, node.address, node.alive, node.free) == ("n1", "a100", "127.0.0.1", True, 3)
    assert node.info == node_info(3)


def test_registering_again_keeps_what_is_held(world: World) -> None:
    world.node(devices=4)
    attempt = world.running(2)
    for _ in range(2):
        world.node(devices=4, instance="i2")
        assert free(world) == {"n1": 2}
    assert world.run(store.renew_node("n1", "i2")).holding == {attempt: AttemptState.CLAIMED}
    assert world.run(store.renew_node("n1", "i1")).standing is NodeStanding.REPLACED
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
    assert world.run(store.read_fleet()).queued == {"new": 0}
    world.finish_and_release(attempt)
    assert world.dispatch() == []
    moved = world.submit(1, pool="new")
    assert world.dispatch() == [moved]
    world.node("n2", 1, pool="old")
    assert world.dispatch() == [still]


def test_a_node_whose_beat_stands_still_takes_no_work_until_it_beats_again(world: World) -> None:
    world.node()
    beat = world.run(store.read_heartbeats()).nodes["n1"]
    assert world.run(store.renew_node("n1", "i1")).standing is NodeStanding.OK
    assert not world.run(store.take_down_node("n1", beat))
    assert [world.run(store.take_down_node("n1", beat + 1)) for _ in range(2)] == [True, True]
    assert world.run(store.read_heartbeats()).nodes == {}
    job = world.submit()
    assert world.dispatch() == []
    view = world.run(store.read_job(TENANT, job)).queue
    assert view is not None
    assert (view.live_nodes, view.free, view.total) == (0, 0, 0)
    world.run(store.renew_node("n1", "i1"))
    assert world.dispatch() == [job]


def test_leases_outlive_their_node_s_beat(world: World) -> None:
    world.node()
    attempt = world.running()
    world.run(store.take_down_node("n1", None))
    assert world.run(store.renew_lease(attempt, "c")) is SupervisorCommand.GO
    assert world.run(store.read_command(attempt, "c")) is SupervisorCommand.GO
    world.finish_and_release(attempt)


def test_a_device_in_quarantine_is_never_leased_again_not_even_after_a_restart(world: World) -> None:
    world.node(devices=2)
    attempt = world.running(2)
    world.finish(attempt)
    assert [world.release(attempt, {1: "pid 7 would not die"}), world.release(attempt)] == [2, 0]
    (node,) = world.run(store.read_fleet()).nodes
    assert (list(node.quarantine), node.held, node.free) == ([1], {}, 1)
    why = node.quarantine[1]
    assert (why.reason, why.by, why.attempt, why.checked) == ("pid 7 would not die", "sweep", str(attempt), None)
    assert why.since is not None
    world.node(devices=2, instance="i2")
    pair, one = world.submit(2), world.submit(1)
    assert world.dispatch() == [one]
    assert (world.job(one).leased, world.state(pair)) == ((0,), JobState.QUEUED)


def test_quarantine_takes_only_devices_that_the_attempt_held(world: World) -> None:
    world.node(devices=2)
    first, second = world.running(1), world.running(1)
    world.finish(first)
    assert world.release(first, {1: "not its own"}) == 1
    (node,) = world.run(store.read_fleet()).nodes
    assert (node.quarantine, node.held) == ({}, {1: str(second)})


def test_stopping_a_node_tells_supervisors_and_takes_back_what_nobody_claimed(world: World) -> None:
    world.node(devices=3)
    attempt = world.running(1)
    unclaimed = world.submit(2)
    assert world.dispatch() == [unclaimed]
    lost = world.attempt(unclaimed)
    assert [world.run(store.stop_node("n1")), world.run(store.stop_node("n1"))] == [1, 1]
    record = world.job(unclaimed)
    assert (record.state, record.reason, record.retries) == (JobState.QUEUED, StateReason.SERVICE_STOPPED, 0)
    assert "ended" in world.run(store.claim(lost, "late", "n1")).refused
    assert world.run(store.read_command(attempt, "c")) is SupervisorCommand.STOP
    assert world.finish(attempt, StateReason.SERVICE_STOPPED)
    world.release(attempt)
    assert world.run(store.stop_node("n1")) == 0
    assert world.dispatch() == []
    world.node(devices=3, instance="i2")
    assert sorted(world.dispatch()) == sorted([attempt.job, unclaimed])


# -- draining --------------------------------------------------------------------------------------


def beat(world: World, deadline: store.DrainDeadline | None = None, instance: str = "i1") -> store.HeartbeatReply:
    return world.run(store.renew_node("n1", instance, deadline))


def record(world: World) -> NodeRecord:
    (node,) = world.run(store.read_fleet()).nodes
    return node


def test_a_node_that_drains_takes_nothing_new_and_what_runs_there_goes_on_until_it_is_undrained(world: World) -> None:
    world.node()
    attempt = world.running()
    world.run(store.drain_node("n1"))
    waiting = world.submit()
    assert world.dispatch() == []
    assert world.run(store.read_command(attempt, "c")) is SupervisorCommand.GO
    assert (record(world).draining, record(world).takes_work, beat(world).deadline) == (True, False, None)
    world.node(instance="i2")
    assert world.dispatch() == [], "it stays so when its worker comes back"
    world.run(store.undrain_node("n1"))
    assert world.dispatch() == [waiting]


def test_what_nobody_has_claimed_leaves_a_node_that_drains_at_once_and_at_nobodys_cost(world: World) -> None:
    world.node()
    job = world.submit()
    world.dispatch()
    lost = world.attempt(job)
    world.run(store.drain_node("n1", deadline_seconds=600))
    found = world.job(job)
    assert (found.state, found.reason, found.losses, found.retries) == (JobState.QUEUED, StateReason.DRAINED, 0, 0)
    assert world.history(job)[0].reason is StateReason.DRAINED
    assert "ended" in world.run(store.claim(lost, "late", "n1")).refused
    assert (world.dispatch(), record(world).held) == ([], {})


def test_a_deadline_goes_to_the_node_which_says_how_much_of_it_is_left(world: World) -> None:
    world.node()
    attempt = world.running()
    world.run(store.drain_node("n1", deadline_seconds=600))
    told = beat(world).deadline
    assert told is not None
    assert told.seconds_left == 600
    until = record(world).drain_until
    assert until is not None
    assert world.run(store.read_command(attempt, "c")) is SupervisorCommand.GO
    left = store.DrainDeadline(told.drain, 250.5)
    assert beat(world, left).deadline == left
    world.node(instance="i2")
    assert beat(world, instance="i2").deadline == left, "a worker that comes back goes on from there"
    assert (record(world).drain_until or 0) < until

    world.run(store.drain_node("n1", deadline_seconds=30))
    newer = beat(world, left, "i2").deadline
    assert newer is not None
    assert newer.drain > told.drain
    assert newer.seconds_left == 30
    assert not world.run(store.evict_node("n1", told.drain)), "that deadline has been replaced"
    assert world.run(store.read_command(attempt, "c")) is SupervisorCommand.GO


def test_after_the_deadline_what_runs_there_is_told_to_stop_and_goes_to_other_nodes_uncounted(world: World) -> None:
    world.node()
    attempt = world.running()
    world.run(store.drain_node("n1", deadline_seconds=600))
    told = beat(world).deadline
    assert told is not None
    assert [world.run(store.evict_node("n1", told.drain)) for _ in range(2)] == [True, True]
    assert world.run(store.read_command(attempt, "c")) is SupervisorCommand.STOP
    assert beat(world).deadline is None
    end = store.finish(attempt, "c", StateReason.SERVICE_STOPPED, "the service was stopped")
    assert [world.run(end), world.run(end)] == [True, True]
    found, (ended,) = world.job(attempt.job), world.history(attempt.job)
    assert (found.state, found.reason, found.losses, found.retries) == (JobState.QUEUED, StateReason.DRAINED, 0, 0)
    assert (ended.reason, ended.message) == (StateReason.DRAINED, "node n1 is being drained, and its deadline was over")
    world.release(attempt)
    assert world.dispatch() == []
    world.node("n2")
    assert world.dispatch() == [attempt.job]
    assert world.job(attempt.job).node == "n2"


def test_a_drain_without_time_moves_at_once_and_undraining_takes_all_of_it_back(world: World) -> None:
    world.node()
    attempt = world.running()
    world.run(store.drain_node("n1", deadline_seconds=0))
    assert (world.run(store.read_command(attempt, "c")), record(world).moving) == (SupervisorCommand.STOP, True)
    world.run(store.undrain_node("n1"))
    node = record(world)
    assert (node.draining, node.moving, node.drain_until, node.takes_work) == (False, False, None, True)
    assert world.run(store.read_command(attempt, "c")) is SupervisorCommand.GO
    assert beat(world).deadline is None


def test_who_was_told_to_move_and_ends_when_the_drain_is_taken_back_was_drained(world: World) -> None:
    world.node()
    attempt = world.running()
    world.run(store.drain_node("n1", deadline_seconds=0))
    assert world.run(store.read_command(attempt, "c")) is SupervisorCommand.STOP
    world.run(store.undrain_node("n1"))
    assert world.finish(attempt, StateReason.SERVICE_STOPPED)
    assert (world.job(attempt.job).reason, record(world).moving) == (StateReason.DRAINED, False)


def test_a_stop_of_the_service_is_called_so_on_a_node_that_drains_too(world: World) -> None:
    world.node()
    attempt = world.running()
    world.run(store.drain_node("n1", deadline_seconds=0))
    world.run(store.stop_node("n1"))
    assert world.finish(attempt, StateReason.SERVICE_STOPPED)
    assert world.job(attempt.job).reason is StateReason.SERVICE_STOPPED


def test_a_worker_that_leaves_takes_no_new_work_until_another_one_registers(world: World) -> None:
    world.node()
    attempt = world.running()
    world.run(store.leave_node("n1", deadline_seconds=600))
    waiting = world.submit()
    world.node(instance="i1")
    assert (record(world).leaving, record(world).draining, world.dispatch()) == (True, False, [])
    world.node(instance="i2")
    assert (record(world).leaving, record(world).drain_until, world.dispatch()) == (False, None, [waiting])
    assert beat(world, instance="i2").deadline is None
    assert world.run(store.read_command(attempt, "c")) is SupervisorCommand.GO


def test_the_operators_drain_outlives_a_worker_that_leaves(world: World) -> None:
    world.node()
    world.run(store.drain_node("n1", deadline_seconds=600))
    world.run(store.leave_node("n1"))
    world.node(instance="i2")
    told = beat(world, instance="i2").deadline
    assert told is not None
    assert told.seconds_left == 600
    assert record(world).draining
    world.run(store.undrain_node("n1"))
    assert record(world).takes_work


# -- quarantine ------------------------------------------------------------------------------------


def quarantined(world: World) -> dict[int, str]:
    return {found.device: found.why.reason for found in world.run(store.list_quarantined("n1"))}


def spoilt(world: World) -> store.QuarantinedDevice:
    """A device whose attempt left something that would not die."""
    world.node(devices=1)
    attempt = world.running()
    world.finish(attempt)
    world.release(attempt, {0: "pid 7 would not die"})
    (found,) = world.run(store.list_quarantined("n1"))
    return found


def test_a_device_comes_back_on_proof(world: World) -> None:
    found = spoilt(world)
    job = world.submit()
    assert world.dispatch() == []
    assert [world.run(store.unquarantine_proven("n1", found)) for _ in range(2)] == [True, False]
    assert (quarantined(world), world.dispatch()) == ({}, [job])


def test_a_proof_that_fails_leaves_its_reason_and_when(world: World) -> None:
    found = spoilt(world)
    assert world.run(store.retain_quarantine("n1", found, "pid 7 is still there"))
    (now,) = world.run(store.list_quarantined("n1"))
    assert (now.why.reason, now.why.since, now.why.attempt) == (
        "pid 7 is still there",
        found.why.since,
        found.why.attempt,
    )
    assert now.why.checked is not None
    assert not world.run(store.unquarantine_proven("n1", found)), "the entry has changed since"
    assert not world.run(store.retain_quarantine("n1", found, "older news"))
    assert world.dispatch() == []


def test_the_operator_brings_back_any_device(world: World) -> None:
    spoilt(world)
    for _ in range(2):
        world.run(store.unquarantine("n1", 0))
    assert free(world) == {"n1": 1}
    with pytest.raises(NotFound, match="no device 1"):
        world.run(store.unquarantine("n1", 1))
    with pytest.raises(NotFound, match="ghost"):
        world.run(store.unquarantine("ghost", 0))


def test_what_the_operator_sets_apart_no_proof_brings_back(world: World) -> None:
    found = spoilt(world)
    world.run(store.quarantine_device("n1", 0, "falls off the bus"))
    assert not world.run(store.unquarantine_proven("n1", found))
    (now,) = world.run(store.list_quarantined("n1"))
    assert (now.why.by, now.why.reason) == ("operator", "falls off the bus")


def test_a_device_that_is_set_apart_while_it_is_leased_goes_there_when_it_is_given_back(world: World) -> None:
    world.node(devices=2)
    attempt = world.running(2)
    world.run(store.quarantine_device("n1", 1, "hot"))
    assert world.run(store.read_command(attempt, "c")) is SupervisorCommand.GO
    world.finish(attempt)
    world.release(attempt, {0: "undead", 1: "undead"})
    assert quarantined(world) == {0: "undead", 1: "hot"}
    assert free(world) == {"n1": 0}
    with pytest.raises(NotFound):
        world.run(store.quarantine_device("n1", 2, "hot"))


def test_a_device_that_comes_back_while_it_is_leased_stays_leased(world: World) -> None:
    world.node(devices=1)
    attempt = world.running()
    world.run(store.quarantine_device("n1", 0, "hot"))
    world.run(store.unquarantine("n1", 0))
    assert (free(world), world.submit() in world.dispatch()) == ({"n1": 0}, False)
    world.finish_and_release(attempt)
    assert free(world) == {"n1": 1}


def test_an_entry_of_an_earlier_version_is_read_and_left_to_the_operator(world: World) -> None:
    world.node(devices=1)
    world.redis.hset("sy:quarantine:n1", "0", "would not die: process 7")
    world.node(devices=1)
    (found,) = world.run(store.list_quarantined("n1"))
    assert (found.why.reason, found.why.by, found.why.since) == ("would not die: process 7", "", None)


# -- the rest --------------------------------------------------------------------------------------


def test_calls_that_name_an_unknown_node_change_nothing(world: World) -> None:
    stranger = AttemptId(TENANT, "job", 1)
    assert world.run(store.renew_node("ghost", "i1")).standing is NodeStanding.UNKNOWN
    assert world.run(store.stop_node("ghost")) == 0
    assert world.run(store.take_down_node("ghost", None))
    assert world.run(store.release("ghost", stranger, {})) == 0
    assert [key for key in world.redis.scan_iter() if b"ghost" in key] == []


def test_only_one_candidate_leads_at_a_time(world: World) -> None:
    taken = [world.run(store.acquire_lead(name, 60)) for name in ("a", "b", "a", "b")]
    assert [seconds == 0 for seconds in taken] == [True, False, True, False]
    assert 59 < taken[1] <= 60, "when to ask again"
    world.redis.delete("sy:leader")
    assert world.run(store.acquire_lead("b", 60)) == 0
