"""Jobs on several nodes: which nodes they get, and how each part is claimed, lost and given back."""

import pytest

from jobs import store
from jobs.model.pool_policy import PoolPolicy
from jobs.model.records import BoxRights, Placement
from jobs.model.state import AttemptState, JobState, StateReason, SupervisorCommand
from jobs.store import AttemptId, Hint, PartId
from shardyard.contract.errors import TooLargeForPool
from tests.integration.store.invariants import violations
from tests.integration.store.world import NEVER, TENANT, World

pytestmark = pytest.mark.integration

SECRET = "5ec4e7"
LINK = f"10.0.0.1:4711 {SECRET}"


def nodes_of(world: World, job: str) -> list[str]:
    record = world.job(job)
    return [record.node or "", *(placed.node for placed in record.followers)]


def start_gang(world: World, nodes: int = 2, devices: int = 1, *, claimed: int = 0) -> AttemptId:
    """A job on nodes n1 and so on, of which the first `claimed` parts are claimed."""
    for number in range(1, nodes + 1):
        world.node(f"n{number}", devices)
    job = world.submit(devices, nodes=nodes)
    assert world.dispatch() == [job]
    attempt = world.attempt(job)
    for node in nodes_of(world, job)[:claimed]:
        assert world.run(store.claim(attempt, f"c-{node}", node)).granted
    return attempt


def keys_with(world: World, text: str) -> list[str]:
    """Names of the hashes that have a text in a value."""
    hashes = [key.decode() for key in world.redis.scan_iter(_type="hash")]
    return [key for key in hashes if any(text in str(value) for value in world.redis.hvals(key))]


def held(world: World, node: str) -> int:
    return len(next(found for found in world.run(store.read_fleet()).nodes if found.id == node).held)


# -- where a job goes ------------------------------------------------------------------------------


def test_a_gang_has_devices_of_each_node_and_a_hint_goes_to_each(world: World) -> None:
    world.node("n1", 4)
    world.node("n2", 3)
    job = world.submit(3, nodes=2)
    dispatched = world.run(store.dispatch(NEVER))
    attempt = AttemptId(TENANT, job, 1)
    assert dispatched.created == (attempt,)
    assert set(dispatched.hints) == {Hint("n1", attempt), Hint("n2", attempt)}
    record = world.job(job)
    assert (record.node, record.leased, record.nodes) == ("n2", (0, 1, 2), 2)
    assert record.followers == (Placement("n1", (0, 1, 2)),)
    assert record.network == "host"


def test_a_gang_starts_on_all_its_nodes_or_on_none(world: World) -> None:
    world.node("n1", 2)
    world.node("n2", 2)
    blocker = world.running(1)
    gang = world.submit(2, nodes=2)
    small = world.submit(1)
    assert world.dispatch() == [small]
    world.finish_and_release(blocker)
    world.finish_and_release(world.claim(small))
    assert world.dispatch() == [gang]


def test_nodes_of_one_topology_come_before_those_that_fit_most_tightly(world: World) -> None:
    for name, devices, topology in (("n1", 1, "a"), ("n2", 2, "b"), ("n3", 3, ""), ("n4", 4, "b")):
        world.node(name, devices, topology=topology)
    assert world.dispatch() == []
    job = world.submit(1, nodes=2)
    assert world.dispatch() == [job]
    assert nodes_of(world, job) == ["n2", "n4"]
    three = world.submit(1, nodes=3)  # no topology has so many
    assert world.dispatch() == [three]
    assert nodes_of(world, three) == ["n1", "n2", "n3"]


@pytest.mark.parametrize("others", [("loopback:other", "loopback:this"), ("", "")])
def test_a_gang_waits_while_no_nodes_reach_each_other(world: World, others: tuple[str, str]) -> None:
    world.node("n1", 1, reach="network")
    for name, reach in zip(("n2", "n3"), others, strict=True):
        world.node(name, 1, reach=reach)
    job = world.submit(1, nodes=2)
    assert world.dispatch() == []
    world.node("n2", 1, instance="i2", reach="network")
    assert world.dispatch() == [job]
    assert nodes_of(world, job) == ["n1", "n2"]


def test_what_an_earlier_worker_said_of_its_reach_does_not_count_for_one_that_says_nothing(world: World) -> None:
    world.node("n1", 1)
    world.node("n2", 1)
    world.redis.hset("sy:node:n2", "instance", "earlier version")  # which registers without it
    world.submit(1, nodes=2)
    assert world.dispatch() == []


def test_every_node_of_a_gang_has_the_box_that_the_pool_demands(world: World) -> None:
    world.run(store.set_policy("default", PoolPolicy("full", "none")))
    world.node("n1", 1, box=BoxRights("full", {}))
    world.node("n2", 1, box=BoxRights("none", {}))
    job = world.submit(1, nodes=2)
    assert world.dispatch() == []
    world.node("n3", 1, box=BoxRights("full", {}))
    assert world.dispatch() == [job]
    assert nodes_of(world, job) == ["n1", "n3"]


def test_more_nodes_than_a_pool_has_of_that_size_are_refused(world: World) -> None:
    world.node("n1", 4)
    world.node("n2", 2)
    world.submit(2, nodes=2)
    with pytest.raises(TooLargeForPool, match="3 devices on each of 2 nodes, but 1 of pool 'default'"):
        world.submit(3, nodes=2)


# -- holding nodes ---------------------------------------------------------------------------------


def test_a_set_of_nodes_is_kept_for_a_gang_that_has_waited(world: World) -> None:
    blockers = []
    for node in ("n1", "n2"):
        world.node(node, 3)
        blockers.append(world.running(2))
    gang = world.submit(3, nodes=2)
    small = world.submit(1)
    assert world.dispatch(hold=0) == []
    world.finish_and_release(blockers[0])
    assert world.dispatch(hold=0) == [], "one of its nodes is free, and kept"
    world.finish_and_release(blockers[1])
    assert world.dispatch(hold=0) == [gang]
    assert world.state(small) is JobState.QUEUED


@pytest.mark.parametrize("change", ["down", "reach"])
def test_nodes_that_can_serve_a_gang_no_more_are_not_kept(world: World, change: str) -> None:
    blockers = []
    for node in ("n1", "n2"):
        world.node(node, 3)
        blockers.append(world.running(2))
    world.submit(3, nodes=2)
    small = world.submit(1)
    assert world.dispatch(hold=0) == []
    if change == "down":
        world.run(store.take_down_node("n2", None))
    else:
        world.node("n2", 3, instance="i2", reach="")
    assert world.dispatch(hold=0) == [small]


# -- parts -----------------------------------------------------------------------------------------


def test_each_part_is_claimed_once_and_beats_by_itself(world: World) -> None:
    attempt = start_gang(world)
    follower = world.run(store.claim(attempt, "f", "n2"))
    assert (follower.granted, follower.part) == (True, 1)
    assert not world.run(store.claim(attempt, "thief", "n2")).granted
    assert world.run(store.claim(attempt, "f", "n2")).granted, "a claim whose reply was lost"
    leader = world.run(store.claim(attempt, "l", "n1"))
    assert (leader.granted, leader.part) == (True, 0)
    assert "belongs to node" in world.run(store.claim(attempt, "x", "n3")).refused
    before = world.run(store.read_heartbeats()).leases
    assert world.run(store.renew_lease(attempt, "f", 1)) is SupervisorCommand.GO
    after = world.run(store.read_heartbeats()).leases
    assert after == before | {PartId(attempt, "n2"): before[PartId(attempt, "n2")] + 1}
    assert world.run(store.renew_lease(attempt, "f")) is SupervisorCommand.LOST, "it does not lead"
    assert world.redis.zcard("sy:outbox") == 0


def test_the_leader_leaves_its_link_for_the_other_parts(world: World) -> None:
    attempt = start_gang(world, nodes=3)
    assert world.run(store.claim(attempt, "f", "n2")).link == "", "the leader has not claimed"
    leader = world.run(store.claim(attempt, "l", "n1", LINK))
    assert (leader.granted, leader.link) == (True, "")
    for _ in range(2):
        assert world.run(store.claim(attempt, "f", "n2")).link == LINK
    assert world.run(store.claim(attempt, "g", "n3", "a link of its own")).link == LINK
    assert world.run(store.claim(attempt, "l", "n1", "another")).granted, "a claim whose reply was lost"
    assert world.run(store.claim(attempt, "f", "n2")).link == LINK
    thief = world.run(store.claim(attempt, "thief", "n2"))
    assert (thief.granted, thief.link) == (False, "")
    assert SECRET not in repr(world.run(store.claim(attempt, "f", "n2"))), "it would stand in logs"


@pytest.mark.parametrize("end", ["finish", "reap", "abandon", "cancel"])
def test_the_link_goes_when_the_attempt_ends(world: World, end: str) -> None:
    attempt = start_gang(world)
    assert world.run(store.claim(attempt, "l", "n1", LINK)).granted
    assert keys_with(world, SECRET) == [f"sy:attempt:{attempt}"]
    match end:
        case "finish":
            assert world.finish(attempt, StateReason.CODE_ERROR, by="l")
        case "reap":
            assert world.reap(attempt, heartbeat=None)
        case "abandon":
            assert world.run(store.abandon(attempt, "l", "n2", "n2 has not joined"))
        case _:
            world.run(store.cancel(TENANT, attempt.job))
            assert world.finish(attempt, StateReason.CANCELLED_BY_USER, by="l")
    assert keys_with(world, SECRET) == []
    assert world.run(store.claim(attempt, "f", "n2")).link == ""


def test_no_record_of_a_live_attempt_has_its_link(world: World) -> None:
    attempt = start_gang(world)
    assert world.run(store.claim(attempt, "l", "n1", LINK)).granted
    dumped = {entry.key.decode(): entry.values for entry in world.run(store.dump_keys())}
    assert b"claimant" in dumped[f"sy:attempt:{attempt}"]
    assert b"link" not in dumped[f"sy:attempt:{attempt}"]
    for shown in (dumped, world.history(attempt.job), world.run(store.read_job(TENANT, attempt.job))):
        assert SECRET not in repr(shown)


# -- parts that do not join ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("missing", "reason"), [("claimed", "link_lost"), ("unclaimed", "lease_expired"), ("down", "node_lost")]
)
def test_a_part_that_does_not_join_sends_the_job_back_at_no_cost(world: World, missing: str, reason: str) -> None:
    attempt = start_gang(world, nodes=3, claimed=2)
    if missing == "claimed":
        assert world.run(store.claim(attempt, "c-n3", "n3")).granted
    elif missing == "down":
        world.run(store.take_down_node("n3", None))
    world.node("n4", 1)
    said = "node n3 has not joined the leader on node n1"
    assert world.run(store.abandon(attempt, "c-n1", "n3", said))
    record = world.job(attempt.job)
    assert (record.state, record.reason, record.losses) == (JobState.QUEUED, StateReason.BACKING_OFF, 0)
    assert record.message == f"attempt 1 ended: {reason} ({said}); nothing of it ran, so it is not counted"
    assert world.history(attempt.job)[0].reason == reason
    assert world.run(store.read_command(attempt, "c-n2", 1)) is SupervisorCommand.LOST
    assert [held(world, node) for node in ("n1", "n2", "n3")] == [1, 1, int(missing == "claimed")]
    for node in ("n1", "n2", "n3"):
        assert world.release(attempt, node=node) == int(node != "n3" or missing == "claimed")
    assert world.dispatch() == [attempt.job]
    assert nodes_of(world, attempt.job) == ["n1", "n2", "n4"]


def test_an_attempt_is_given_up_once_and_by_its_leader_alone(world: World) -> None:
    attempt = start_gang(world, nodes=3, claimed=3)
    assert not world.run(store.abandon(attempt, "c-n2", "n3", "it follows"))
    assert not world.run(store.abandon(attempt, "c-n1", "n9", "no node of it"))
    assert world.state(attempt.job) is JobState.STARTING
    for _ in range(2):
        assert world.run(store.abandon(attempt, "c-n1", "n3", "gone")), "also where the reply was lost"
    assert not world.run(store.abandon(attempt, "c-n1", "n2", "another")), "it has ended otherwise"
    assert world.job(attempt.job).attempt == 1


def test_what_has_run_is_not_given_up_at_no_cost(world: World) -> None:
    attempt = start_gang(world, claimed=2)
    assert world.mark(attempt, by="c-n1")
    assert world.run(store.abandon(attempt, "c-n1", "n2", "too late"))
    assert (world.state(attempt.job), world.job(attempt.job).losses) == (JobState.QUEUED, 1)


def test_an_attempt_that_is_given_up_while_its_job_is_cancelled_is_cancelled(world: World) -> None:
    attempt = start_gang(world, claimed=2)
    world.run(store.cancel(TENANT, attempt.job))
    assert world.run(store.abandon(attempt, "c-n1", "n2", "not joined"))
    assert world.state(attempt.job) is JobState.CANCELLED


@pytest.mark.parametrize("reason", [StateReason.NODE_LOST, StateReason.LINK_LOST])
def test_a_leader_that_loses_a_node_ends_the_attempt_at_the_cost_of_the_service(
    world: World, reason: StateReason
) -> None:
    attempt = start_gang(world, claimed=2)
    assert world.mark(attempt, by="c-n1")
    assert world.run(store.finish(attempt, "c-n1", reason, "node n2 does not answer node n1", node="n1"))
    record = world.job(attempt.job)
    assert (record.state, record.losses, record.retries) == (JobState.QUEUED, 1, 0)
    assert f"{reason} (node n2 does not answer node n1)" in record.message
    assert [held(world, node) for node in ("n1", "n2")] == [0, 1]


def test_only_the_leader_is_told_of_a_cancel_and_all_are_told_of_the_end(world: World) -> None:
    attempt = start_gang(world, claimed=2)
    world.run(store.cancel(TENANT, attempt.job))
    assert world.run(store.read_command(attempt, "c-n1")) is SupervisorCommand.CANCEL
    assert world.run(store.read_command(attempt, "c-n2", 1)) is SupervisorCommand.GO
    assert world.finish(attempt, StateReason.CANCELLED_BY_USER, by="c-n1")
    assert world.run(store.read_command(attempt, "c-n2", 1)) is SupervisorCommand.LOST
    assert world.state(attempt.job) is JobState.CANCELLED


def test_a_follower_cannot_write_the_end(world: World) -> None:
    attempt = start_gang(world, claimed=2)
    assert not world.finish(attempt, by="c-n2")
    assert not world.mark(attempt, by="c-n2")
    assert world.finish(attempt, by="c-n1")


def test_devices_of_each_node_come_back_by_its_own_proof(world: World) -> None:
    attempt = start_gang(world, nodes=3, claimed=3)
    assert world.release(attempt, node="n2") == -1, "it is live"
    assert world.finish(attempt, by="c-n1")
    assert [held(world, node) for node in ("n1", "n2", "n3")] == [1, 1, 1]
    assert world.release(attempt, node="n2") == 1
    assert world.release(attempt, {0: "a process would not die"}, node="n3") == 1
    assert [held(world, node) for node in ("n1", "n2", "n3")] == [1, 0, 0]
    assert violations(world.redis) == []


@pytest.mark.parametrize("claimed", [0, 1, 2])
def test_a_cancel_before_the_leader_has_claimed_frees_what_nobody_has(world: World, claimed: int) -> None:
    """The parts are claimed from the last to the first: the leader is the last one that is not."""
    attempt = start_gang(world, nodes=3)
    for node in ("n3", "n2")[:claimed]:
        assert world.run(store.claim(attempt, "c", node)).granted
    world.run(store.cancel(TENANT, attempt.job))
    assert world.state(attempt.job) is JobState.CANCELLED
    assert [held(world, node) for node in ("n1", "n2", "n3")] == [0, int(claimed > 1), int(claimed > 0)]
    assert not world.run(store.claim(attempt, "late", "n1")).granted
    assert world.redis.zcard("sy:outbox") == 0


def test_a_part_that_nobody_claims_sends_the_job_back_and_its_node_is_avoided(world: World) -> None:
    attempt = start_gang(world, claimed=1)
    world.node("n3", 1)
    part = PartId(attempt, "n2")
    heartbeat = world.run(store.read_heartbeats()).leases[part]
    assert world.reap(attempt, heartbeat=heartbeat, node="n2")
    record = world.job(attempt.job)
    assert (record.state, record.reason, record.losses) == (JobState.QUEUED, StateReason.BACKING_OFF, 0)
    assert "no supervisor took it on node n2" in record.message
    assert world.run(store.read_command(attempt, "c-n1")) is SupervisorCommand.LOST
    assert [held(world, node) for node in ("n1", "n2")] == [1, 0], "the leader has to prove that its ranks are dead"
    assert world.release(attempt) == 1
    assert world.dispatch() == [attempt.job]
    assert "n2" not in nodes_of(world, attempt.job)


def test_a_lost_follower_ends_the_attempt_as_a_lost_node(world: World) -> None:
    attempt = start_gang(world, claimed=2)
    beats = world.run(store.read_heartbeats())
    call = store.reap(
        attempt,
        StateReason.LEASE_EXPIRED,
        "no beat",
        heartbeat=beats.leases[PartId(attempt, "n2")],
        backoff_seconds=0,
        node="n2",
        node_heartbeat=beats.nodes["n2"],
        node_message="node n2 is lost",
    )
    assert world.run(call) is StateReason.NODE_LOST
    assert "node n2 is lost" in world.job(attempt.job).message
    assert [held(world, node) for node in ("n1", "n2")] == [1, 1]
    assert "n2" not in world.run(store.read_heartbeats()).nodes


def test_a_stop_or_a_drain_of_any_node_reaches_the_leader(world: World) -> None:
    attempt = start_gang(world, claimed=2)
    world.run(store.drain_node("n2", deadline_seconds=0))
    assert world.run(store.read_command(attempt, "c-n1")) is SupervisorCommand.STOP
    assert world.finish(attempt, StateReason.SERVICE_STOPPED, by="c-n1")
    record = world.job(attempt.job)
    assert (record.state, record.reason, record.followers) == (JobState.QUEUED, StateReason.DRAINED, ())
    assert "node n2" in world.history(attempt.job)[0].message


def test_a_node_sees_the_state_of_its_own_part(world: World) -> None:
    attempt = start_gang(world)
    assert world.run(store.claim(attempt, "f", "n2")).granted
    for node, state in (("n1", AttemptState.LEASED), ("n2", AttemptState.CLAIMED)):
        assert world.run(store.renew_node(node, "i1")).holding == {attempt: state}
    world.run(store.cancel(TENANT, attempt.job))
    assert world.run(store.renew_node("n2", "i1")).holding == {attempt: AttemptState.ENDED}


def test_a_node_refuses_its_part_for_the_whole_attempt(world: World) -> None:
    attempt = start_gang(world, claimed=1)
    assert not world.run(store.refuse(attempt, "n1", StateReason.REJECTED_BY_WORKER, "no"))
    assert world.run(store.refuse(attempt, "n2", StateReason.REJECTED_BY_WORKER, "no such device"))
    assert world.run(store.read_command(attempt, "c-n1")) is SupervisorCommand.LOST
