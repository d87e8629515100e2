"""Nodes whose disks have less free space than the service keeps for itself."""

import pytest

from jobs import store
from jobs.model.records import LowDisk
from jobs.model.state import AttemptState, JobState, StateReason, SupervisorCommand
from jobs.store import AttemptId
from tests.integration.store.world import TENANT, World

pytestmark = pytest.mark.integration

LOW = LowDisk("storage", free_bytes=300, reserve_bytes=1000)


def beat(world: World, low: LowDisk | None, node: str = "n1") -> dict[AttemptId, AttemptState]:
    return world.run(store.renew_node(node, "i1", low=low)).holding


def low_nodes(world: World, job: str) -> tuple[int, int]:
    """How many nodes take work, and how many take none because of a disk, as a waiting job sees it."""
    view = world.run(store.read_job(TENANT, job)).queue
    assert view is not None
    return view.live_nodes, view.low_nodes


def test_a_node_with_a_low_disk_gets_no_work_until_there_is_room(world: World) -> None:
    world.node()
    beat(world, LOW)
    (node,) = world.run(store.read_fleet()).nodes
    assert (node.low, node.takes_work, node.free) == (LOW, False, 0)
    job = world.submit()
    assert world.dispatch() == []
    assert low_nodes(world, job) == (0, 1)
    beat(world, LOW)
    assert world.dispatch() == []
    beat(world, None)
    assert low_nodes(world, job) == (1, 0)
    assert world.dispatch() == [job]


def test_what_a_worker_has_said_of_its_disks_does_not_count_for_the_one_that_comes_after_it(world: World) -> None:
    world.node()
    beat(world, LOW)
    world.node(instance="i1")  # it has found its forkserver dead, perhaps
    job = world.submit()
    assert world.dispatch() == []
    assert low_nodes(world, job) == (0, 1)
    world.node(instance="i2")
    (node,) = world.run(store.read_fleet()).nodes
    assert (node.low, node.takes_work) == (None, True)
    assert world.dispatch() == [job]


def test_a_node_that_is_down_is_not_counted_as_low(world: World) -> None:
    world.node()
    beat(world, LOW)
    world.run(store.take_down_node("n1", None))
    assert low_nodes(world, world.submit()) == (0, 0)


def test_a_low_disk_gives_attempts_back_that_nobody_has_claimed_and_leaves_the_others(world: World) -> None:
    world.node(devices=2)
    running, waiting = world.running(), world.submit()
    assert world.dispatch() == [waiting]
    assert list(beat(world, LOW)) == [running]
    record = world.job(waiting)
    assert (record.state, record.reason, record.losses) == (JobState.QUEUED, StateReason.STORAGE_LOW, 0)
    assert world.state(running.job) is JobState.RUNNING
    assert world.run(store.read_command(running, "c")) is SupervisorCommand.GO


def test_attempts_of_a_disk_that_is_nearly_full_go_back_at_no_cost_and_start_when_there_is_room(world: World) -> None:
    world.node()
    attempt = world.running(retries=1)
    beat(world, LOW)
    assert world.run(store.relieve_node("n1", "i1", LOW)) == 1
    assert world.run(store.relieve_node("n1", "i1", LOW)) == 0
    assert world.run(store.renew_lease(attempt, "c")) is SupervisorCommand.STOP
    assert world.finish(attempt, StateReason.SERVICE_STOPPED)
    assert world.finish(attempt, StateReason.SERVICE_STOPPED)  # the reply to the first was lost
    assert world.release(attempt) == 1
    record = world.job(attempt.job)
    assert (record.state, record.reason) == (JobState.QUEUED, StateReason.STORAGE_LOW)
    assert (record.retries, record.losses) == (0, 0)
    (ended,) = world.history(attempt.job)
    assert (ended.reason, ended.message) == (StateReason.STORAGE_LOW, "a disk of node n1 had too little free space")
    assert world.dispatch() == []
    beat(world, None)
    assert world.dispatch() == [attempt.job]
    assert world.run(store.read_command(world.claim(attempt.job), "c")) is SupervisorCommand.GO


def test_attempts_of_a_nearly_full_disk_do_not_start_there_again_before_the_next_heartbeat(world: World) -> None:
    world.node()
    attempt = world.running()
    assert world.run(store.relieve_node("n1", "i1", LOW)) == 1
    assert world.finish(attempt, StateReason.SERVICE_STOPPED)
    assert world.release(attempt) == 1
    assert world.dispatch() == []
    assert low_nodes(world, attempt.job) == (0, 1)
    beat(world, None)
    assert world.dispatch() == [attempt.job]


def test_a_worker_that_was_replaced_sends_nothing_back(world: World) -> None:
    world.node(instance="i2")
    attempt = world.running()
    assert world.run(store.relieve_node("n1", "i1", LOW)) == 0
    (node,) = world.run(store.read_fleet()).nodes
    assert node.low is None
    assert world.run(store.read_command(attempt, "c")) is SupervisorCommand.GO


def test_a_stop_of_the_service_counts_more_than_a_low_disk(world: World) -> None:
    world.node()
    attempt = world.running()
    world.run(store.relieve_node("n1", "i1", LOW))
    world.run(store.stop_node("n1"))
    assert world.finish(attempt, StateReason.SERVICE_STOPPED)
    assert world.job(attempt.job).reason is StateReason.SERVICE_STOPPED


def test_an_attempt_that_is_to_go_back_may_still_succeed_or_fail(world: World) -> None:
    world.node()
    done, failed = world.running(), world.running()
    world.run(store.relieve_node("n1", "i1", LOW))
    assert world.finish(done)
    assert world.finish(failed, StateReason.RESOURCE_LIMIT)
    assert world.state(done.job) is JobState.SUCCEEDED
    assert world.job(failed.job).reason is StateReason.RESOURCE_LIMIT
