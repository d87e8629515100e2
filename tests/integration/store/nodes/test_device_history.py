"""What attempts leave about their devices, which devices are suspected for it, and who still gets those."""

from typing import Any

import pytest

from jobs import store
from jobs.model.device_history import DeviceMark, HistoryLine, SlowRecord
from jobs.model.records import DeviceRecord, NodeInfo
from jobs.model.state import StateReason
from jobs.store import AttemptId
from tests.integration.store.invariants import violations
from tests.integration.store.world import NEVER, TENANT, World

pytestmark = pytest.mark.integration

SLOW, FAST = DeviceMark(1.3, 0.13, slow=True), DeviceMark(0.77, 0.1)


def lines(world: World, device: str = "n1:cpu:0", **page: Any) -> tuple[HistoryLine, ...]:
    return world.run(store.read_history(device, **page)).lines


def finish(world: World, attempt: AttemptId, marks: dict[int, DeviceMark], reason: str = "completed") -> bool:
    node = world.job(attempt.job).node or ""
    return world.run(store.finish(attempt, "c", StateReason(reason), "", node=node, measured={0: marks}))


def run(world: World, devices: int, *slow: int, skipped: int = 0) -> AttemptId:
    """An attempt on the first free devices, in which those of the indexes `slow` are slow. `skipped`: so many devices
    are busy meanwhile."""
    busy = world.claimed(skipped) if skipped else None
    attempt = world.claimed(devices)
    leased = world.job(attempt.job).leased
    assert finish(world, attempt, {index: SLOW if index in slow else FAST for index in leased})
    if busy is not None:
        assert finish(world, busy, {})
    return attempt


def suspects(world: World, node: str = "n1") -> dict[int, SlowRecord]:
    (found,) = (each for each in world.run(store.read_fleet()).nodes if each.id == node)
    return dict(found.suspects)


def make_suspected(world: World) -> None:
    """Device 1 of node n1."""
    run(world, 2, 1)
    run(world, 2, 1, skipped=1)
    run(world, 2, 1)
    assert set(suspects(world)) == {1}


def test_an_attempt_leaves_one_line_for_each_device_however_often_its_end_is_written(world: World) -> None:
    world.node()
    attempt = world.claimed(2)
    assert not world.run(store.finish(attempt, "another", StateReason.COMPLETED, "", measured={0: {0: SLOW}}))
    for _ in range(2):
        assert finish(world, attempt, {1: DeviceMark(1.5, 0.3, slow=True, error="the GPU fell off the bus")})
    ((first,), (second,)) = lines(world), lines(world, "n1:cpu:1")
    assert (first.attempt, first.reason, first.peers, first.relative) == (str(attempt), "completed", 1, None)
    assert (second.relative, second.ms_per_row, second.slow) == (1.5, 0.3, True)
    assert second.error == "the GPU fell off the bus"
    assert first.gang == second.gang != ""
    assert 0 <= first.seconds < 60
    assert abs(first.at - world.job(attempt.job).created) < 60e6
    assert lines(world, "n1:cpu:2") == ()
    assert violations(world.redis) == []


def test_a_lost_attempt_leaves_lines_and_a_lost_node_is_a_fault(world: World) -> None:
    world.node()
    attempt = world.claimed(2)
    world.run(store.take_down_node("n1", None))
    call = store.reap(attempt, StateReason.LEASE_EXPIRED, "", heartbeat=1, backoff_seconds=0, node_message="gone")
    assert world.run(call) is StateReason.NODE_LOST
    assert not finish(world, attempt, {0: SLOW})
    (line,) = lines(world)
    assert (line.reason, line.error, line.slow) == ("node_lost", "gone", False)


def test_what_is_known_of_a_followers_devices_is_in_their_history_too(world: World) -> None:
    world.node("n1", 2)
    world.node("n2", 3)
    job = world.submit(1, nodes=2)
    assert world.dispatch() == [job]
    attempt = world.attempt(job)
    leader, follower = (place.node for place in world.job(job).placement)
    for node in (leader, follower):
        assert world.run(store.claim(attempt, f"c-{node}", node)).granted
    marks = {0: {0: FAST}, 1: {0: SLOW}}
    assert world.run(store.finish(attempt, f"c-{leader}", StateReason.COMPLETED, "", node=leader, measured=marks))
    ((own,), (theirs,)) = lines(world, f"{leader}:cpu:0"), lines(world, f"{follower}:cpu:0")
    assert (own.attempt, own.slow, own.relative, own.peers) == (str(attempt), False, FAST.relative, 1)
    assert (theirs.attempt, theirs.slow, theirs.relative, theirs.gang) == (str(attempt), True, 1.3, own.gang)
    assert violations(world.redis) == []


def test_an_attempt_that_was_never_claimed_leaves_nothing(world: World) -> None:
    world.node()
    job = world.submit(2)
    world.dispatch()
    world.run(store.cancel(TENANT, job))
    assert lines(world) == ()


def test_the_history_is_bounded_and_outlives_jobs(world: World) -> None:
    world.node(devices=1)
    for _ in range(store.MAX_HISTORY_LINES + 5):
        attempt = world.claimed()
        finish(world, attempt, {})
    world.run(store.delete_job(TENANT, attempt.job))
    kept = lines(world)
    assert len(kept) == store.MAX_HISTORY_LINES
    assert kept[0].attempt == str(attempt)
    assert world.redis.ttl("sy:history:n1:cpu:0") > 300 * 86_400
    assert (world.redis.memory_usage("sy:history:n1:cpu:0") or 0) < 64_000


def test_pages_of_a_history_follow_each_other_without_a_gap(world: World) -> None:
    world.node(devices=1)
    every = [str(run(world, 1)) for _ in range(5)]
    found, before = [], None
    while True:
        page = world.run(store.read_history("n1:cpu:0", before=before, limit=2))
        found += [line.attempt for line in page.lines]
        before = page.next
        if before is None:
            break
    assert found == every[::-1]


def test_lines_keep_their_order_when_the_clock_is_set_back(world: World) -> None:
    world.node(devices=1)
    first = run(world, 1)
    entry: Any = world.redis.zrange("sy:history:n1:cpu:0", 0, -1)[0]
    world.redis.zadd("sy:history:n1:cpu:0", {entry: 4e15})  # the clock was a century ahead
    second = run(world, 1)
    assert [line.attempt for line in lines(world)] == [str(second), str(first)]


def test_a_device_that_was_slow_in_three_of_five_beside_different_peers_is_suspected(world: World) -> None:
    world.node()
    run(world, 2, 1)
    run(world, 2)
    run(world, 2, 1, skipped=1)
    assert suspects(world) == {}
    run(world, 1, 0)  # alone: nothing is known of it, so it does not count
    run(world, 2, 1)
    assert suspects(world) == {1: SlowRecord(3, 4, 1.3)}
    run(world, 2)
    assert suspects(world) == {1: SlowRecord(3, 5, 1.3)}
    run(world, 2)
    assert suspects(world) == {}


def test_a_device_that_is_slow_beside_the_same_peers_only_is_not_suspected(world: World) -> None:
    world.node()
    for _ in range(5):
        run(world, 2, 1)
    assert suspects(world) == {}


def test_what_an_operator_has_looked_at_is_forgiven(world: World) -> None:
    world.node()
    make_suspected(world)
    for _ in range(2):
        world.run(store.quarantine_device("n1", 1, "slow"))
    assert suspects(world) == {}
    for _ in range(2):
        world.run(store.unquarantine("n1", 1))
    newest = [(line.event, line.by, line.quarantine) for line in lines(world, "n1:cpu:1", limit=2)]
    assert newest == [("released", "operator", ""), ("quarantined", "operator", "slow")]
    run(world, 2, 1, skipped=1)
    run(world, 2, 1)
    assert suspects(world) == {}


def test_a_quarantine_by_the_sweep_is_in_the_history_with_its_attempt(world: World) -> None:
    world.node()
    attempt = world.claimed(2)
    end = store.finish(attempt, "c", StateReason.COMPLETED, "", node="n1", quarantine={0: "would not die"})
    assert world.run(end)
    assert world.run(end)
    told, line = lines(world)
    assert (told.event, told.by, told.quarantine) == ("quarantined", "sweep", "would not die")
    assert line.attempt == str(attempt)


# -- dispatch --------------------------------------------------------------------------------------


def leased(world: World, devices: int, avoid_slow_from: int) -> tuple[str | None, tuple[int, ...]]:
    job = world.submit(devices)
    assert world.run(store.dispatch(NEVER, avoid_slow_from=avoid_slow_from)).created
    record = world.job(job)
    world.finish_and_release(world.claim(job))
    return record.node, record.leased


def test_large_jobs_get_suspected_devices_last_where_the_operator_wants_it(world: World) -> None:
    world.node()
    make_suspected(world)
    assert leased(world, 2, 0) == ("n1", (0, 1))
    assert leased(world, 2, 3) == ("n1", (0, 1))
    assert leased(world, 2, 2) == ("n1", (0, 2))
    assert leased(world, 3, 2) == ("n1", (0, 2, 3))
    assert leased(world, 4, 2) == ("n1", (0, 1, 2, 3))
    world.node("n2", devices=5)
    assert leased(world, 4, 0)[0] == "n1"
    assert leased(world, 4, 2)[0] == "n2"
    assert leased(world, 3, 2)[0] == "n1"
    assert violations(world.redis) == []


# -- names -----------------------------------------------------------------------------------------


def gpus(*ids: str) -> NodeInfo:
    records = (DeviceRecord(n, "cuda", n, uuid, "NVIDIA H100") for n, uuid in enumerate(ids))
    return NodeInfo(host="host", cores=4, version="0", devices=tuple(records))


def register(world: World, node: str, *ids: str) -> None:
    world.run(store.register_node(node, "i", "default", "127.0.0.1", gpus(*ids), home="state-dir"))


def test_a_history_follows_a_gpu_to_another_index_and_to_another_node(world: World) -> None:
    register(world, "n1", "GPU-a", "GPU-b", "GPU-c", "GPU-d")
    make_suspected(world)
    before = lines(world, "GPU-b")
    register(world, "n1", "GPU-b", "GPU-a")
    assert set(suspects(world)) == {0}
    register(world, "n1", "GPU-a")
    assert suspects(world) == {}
    register(world, "n2", "GPU-x", "GPU-b")
    assert set(suspects(world, "n2")) == {1}
    assert lines(world, "GPU-b") == before


def test_a_node_that_is_forgotten_leaves_the_history_alone(world: World) -> None:
    world.node()
    make_suspected(world)
    before = lines(world, "n1:cpu:1")
    world.run(store.take_down_node("n1", None))
    world.run(store.forget_node("n1"))
    assert not world.redis.exists("sy:devices:n1", "sy:suspects:n1")
    assert lines(world, "n1:cpu:1") == before
    world.node()
    assert set(suspects(world)) == {1}


def test_a_backup_has_the_history_and_not_what_follows_from_it(world: World) -> None:
    world.node()
    make_suspected(world)
    families = {entry.key.split(b":")[1] for entry in world.run(store.dump_keys())}
    assert b"history" in families
    assert not families & {b"devices", b"suspects"}
