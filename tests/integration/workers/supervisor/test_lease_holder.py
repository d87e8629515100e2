"""A supervisor's line to a real control Redis: beats, orders as soon as they are told, and a server that goes away."""

import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest

from jobs import store
from jobs.model.device_history import DeviceMark
from jobs.model.state import JobState, StateReason, SupervisorCommand
from jobs.protocol.names import commands_channel
from jobs.store.accounts import webhooks
from jobs.store.accounts.webhooks import PostedFinding, WebhookRecord
from jobs.store.client import RedisStore
from shardyard.contract.errors import Unavailable
from tests.integration.store.world import World
from tests.support.servers.redis_server import RedisServer, redis_server
from workers.node.janitor import Janitor, clear_orphan
from workers.runtime.launch import AttemptDirectory
from workers.supervisor import lease
from workers.supervisor.ending import pending_end
from workers.supervisor.ending.pending_end import PendingEnd, divide_marks
from workers.supervisor.lease import LeaseHolder

pytestmark = pytest.mark.integration

DEADLINE_SECONDS = 60.0
#: Nothing happens by the clock within a test.
NEVER = 3600.0
#: No end of these tests is left untold.
NOWHERE = Path("/nowhere/untold.json")
#: Whose threads are to end with the test: they would say in others' output that their server is away.
_beating: list[LeaseHolder] = []


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path, appendonly="yes", appendfsync="always") as server:
        yield server


@pytest.fixture
def world(server: RedisServer) -> Iterator[World]:
    world = World(server.url)
    world.node()
    yield world
    while _beating:
        end_threads(_beating.pop())
    world.store.close()


def end_threads(line: LeaseHolder) -> None:
    line._closed.set()
    line._requests.put(None)


@pytest.fixture(autouse=True)
def hears_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "SUBSCRIBE_AFTER_SECONDS", 0.0)


def until(met: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not met():
        assert time.monotonic() < deadline, f"not within {DEADLINE_SECONDS:g} s: {what}"
        time.sleep(0.005)


def listeners(world: World) -> int:
    ((_, number),) = world.redis.pubsub_numsub(commands_channel("n1"))
    return int(number)


def claimed(world: World, server: RedisServer, heartbeat_seconds: float = NEVER) -> tuple[LeaseHolder, store.AttemptId]:
    """A lifeline that hears, and will not ask by itself before its next beat."""
    job = world.submit()
    assert job in world.dispatch()
    attempt = world.attempt(job)
    line = LeaseHolder(RedisStore.from_url(server.url), attempt, "n1", heartbeat_seconds)
    _beating.append(line)
    assert line.claim().granted
    until(lambda: line._is_subscribed and listeners(world), "it hears")
    if heartbeat_seconds == NEVER:
        until(lambda: rests(world), "it has looked, as it does when it begins to hear")
    return line, attempt


def rests(world: World) -> bool:
    asked = calls(world)
    time.sleep(0.1)
    return calls(world) == asked


def calls(world: World) -> int:
    return int(world.redis.info("commandstats").get("cmdstat_fcall", {}).get("calls", 0))


@pytest.mark.parametrize(
    ("give", "order"),
    [
        (lambda world, attempt: world.run(store.cancel(attempt.tenant, attempt.job)), SupervisorCommand.CANCEL),
        (lambda world, _: world.run(store.stop_node("n1")), SupervisorCommand.STOP),
        (lambda world, _: world.run(store.drain_node("n1", deadline_seconds=0)), SupervisorCommand.STOP),
        (lambda world, attempt: world.reap(attempt, heartbeat=None), SupervisorCommand.LOST),
    ],
    ids=["cancel", "stop", "drain", "reap"],
)
def test_an_order_is_heard_long_before_the_next_beat(
    world: World, server: RedisServer, give: Callable[[World, store.AttemptId], object], order: SupervisorCommand
) -> None:
    line, attempt = claimed(world, server)
    assert line.command is SupervisorCommand.GO
    give(world, attempt)
    until(lambda: line.command is order, f"the order {order}")
    line.finish(StateReason.CANCELLED_BY_USER, "over", None, None, 0.0, pending_file=NOWHERE)


def test_while_it_hears_it_asks_for_nothing_but_beats(
    world: World, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "POLL_SECONDS", 0.001)
    line, attempt = claimed(world, server, heartbeat_seconds=0.1)

    def beats() -> int:
        return int(world.redis.hget(f"sy:attempt:{attempt}", "beat") or 0)

    before, asked = beats(), calls(world)
    until(lambda: beats() >= before + 5, "five beats")
    asked_since = calls(world) - asked
    assert asked_since <= beats() - before + 2
    assert line.finish(StateReason.COMPLETED, "over", None, None, 0.0, pending_file=NOWHERE)


def test_a_beat_brings_an_order_that_nobody_told(world: World, server: RedisServer) -> None:
    line, attempt = claimed(world, server, heartbeat_seconds=0.2)
    world.redis.hset(f"sy:job:{attempt.job_ref}", "cancel", "1")
    until(lambda: line.command is SupervisorCommand.CANCEL, "the order that came with a beat")
    line.finish(StateReason.CANCELLED_BY_USER, "over", None, None, 0.0, pending_file=NOWHERE)


def test_an_order_that_was_given_while_redis_restarted_is_found(world: World, server: RedisServer) -> None:
    line, attempt = claimed(world, server)
    server.kill()
    server.start()
    world.run(store.cancel(attempt.tenant, attempt.job))
    until(lambda: line.command is SupervisorCommand.CANCEL, "the order")
    until(lambda: listeners(world), "it hears again")
    line.finish(StateReason.CANCELLED_BY_USER, "over", None, None, 0.0, pending_file=NOWHERE)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "SAVE_END_AFTER_SECONDS", 0.1)
    monkeypatch.setattr(lease, "FINISH_SECONDS", 1.0)


def test_an_end_that_nobody_takes_is_kept_and_told_by_another_when_redis_is_back(
    world: World, server: RedisServer, tmp_path: Path, impatient: None
) -> None:
    line, attempt = claimed(world, server)
    server.kill()
    kept = tmp_path / "untold.json"
    error, result = {"kind": "none"}, {"loss": 0.25}
    with pytest.raises(Unavailable):
        line.finish(StateReason.COMPLETED, "all went well", error, result, 0.0, pending_file=kept)
    with pytest.raises(Unavailable):
        pending_end.report_pending_end(world.store, attempt, kept)
    server.start()
    pending_end.report_pending_end(world.store, attempt, kept)
    record = world.job(attempt.job)
    assert (record.state, record.message) == (JobState.SUCCEEDED, "all went well")
    assert (record.error, record.result) == (error, result)
    assert not kept.exists()
    assert world.redis.hlen("sy:held:n1") == 1, "who tells it has not proved that all processes are dead"


def test_an_end_is_kept_while_it_is_tried_and_not_longer(
    world: World, server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "SAVE_END_AFTER_SECONDS", 0.1)
    line, attempt = claimed(world, server)
    server.kill()
    kept, told = tmp_path / "untold.json", []
    finish = threading.Thread(
        target=lambda: told.append(line.finish(StateReason.COMPLETED, "over", None, None, 0.0, pending_file=kept)),
        daemon=True,
    )
    finish.start()
    until(kept.exists, "it is kept")
    server.start()
    finish.join(DEADLINE_SECONDS)
    assert told == [True]
    assert not kept.exists()
    assert world.job(attempt.job).state is JobState.SUCCEEDED


def test_an_untold_end_of_an_attempt_that_was_reaped_meanwhile_changes_nothing(world: World, tmp_path: Path) -> None:
    attempt, kept = world.claimed(), tmp_path / "untold.json"
    pending_end.save_pending_end(kept, PendingEnd("c", StateReason.COMPLETED, "too late"))
    world.reap(attempt, heartbeat=None)
    before = world.job(attempt.job)
    pending_end.report_pending_end(world.store, attempt, kept)
    assert world.job(attempt.job) == before
    assert not kept.exists()


def test_an_end_that_was_saved_has_what_is_known_of_the_devices_of_all_nodes(
    world: World, server: RedisServer, tmp_path: Path
) -> None:
    leader, follower = parts_of_a_gang(world, server)
    assert leader.claim("link").granted
    assert follower.claim().granted
    marks = divide_marks({0: {0: DeviceMark(0.9, 0.1)}, 1: {0: DeviceMark(1.1, 0.12)}})
    end = PendingEnd(leader._claimant, StateReason.COMPLETED, "", None, None, 0.0, *marks)
    pending_end.save_pending_end(tmp_path / "end.json", end)
    pending_end.report_pending_end(world.store, leader._attempt, tmp_path / "end.json")
    newest = [world.run(store.read_history(f"{one._node}:cpu:0")).lines[0].relative for one in (leader, follower)]
    assert newest == [0.9, 1.1]


def test_a_file_that_says_nothing_that_can_be_told_is_no_end(world: World, tmp_path: Path) -> None:
    kept, attempt = tmp_path / "untold.json", store.AttemptId("default", "none", 1)
    for body in (b"", b"{", b"[1]", b'{"claimant": "c", "reason": "no such reason", "message": ""}', b"\xff"):
        kept.write_bytes(body)
        pending_end.report_pending_end(world.store, attempt, kept)
        assert not kept.exists()
    pending_end.report_pending_end(world.store, attempt, kept)


# -- attempts on several nodes ---------------------------------------------------------------------


def parts_of_a_gang(world: World, server: RedisServer, heartbeat_seconds: float = NEVER) -> list[LeaseHolder]:
    """Those of the leader and of a follower, neither of which has claimed."""
    world.node("n2")
    job = world.submit(nodes=2)
    assert job in world.dispatch()
    nodes = [place.node for place in world.job(job).placement]
    attempt = world.attempt(job)
    lines = [LeaseHolder(RedisStore.from_url(server.url), attempt, node, heartbeat_seconds) for node in nodes]
    _beating.extend(lines)
    return lines


def never() -> bool:
    return False


def in_a_minute() -> float:
    return time.monotonic() + DEADLINE_SECONDS


def test_a_follower_waits_for_the_link_of_its_leader(world: World, server: RedisServer) -> None:
    leader, follower = parts_of_a_gang(world, server)
    claim = follower.claim()
    assert (claim.part, claim.link) == (1, "")
    assert follower.await_link(time.monotonic(), never) == "", "it asks once, however little time there is"
    found: list[str] = []
    waits = threading.Thread(target=lambda: found.append(follower.await_link(in_a_minute(), never)), daemon=True)
    waits.start()
    assert leader.claim("10.0.0.1:4711 secret").part == 0
    waits.join(DEADLINE_SECONDS)
    assert found == ["10.0.0.1:4711 secret"]
    assert leader.abandon("n2", "enough", 0.0)
    until(lambda: follower.command is SupervisorCommand.LOST, "the follower learns that the attempt has ended")


def test_a_follower_that_waits_for_the_link_stops_when_it_is_interrupted_or_the_attempt_ends(
    world: World, server: RedisServer
) -> None:
    _, follower = parts_of_a_gang(world, server)
    assert follower.claim().granted
    looks = iter((False, False, True))
    assert follower.await_link(in_a_minute(), lambda: next(looks)) == ""
    assert list(looks) == []
    world.reap(follower._attempt, heartbeat=None)
    assert follower.await_link(in_a_minute(), never) == ""
    until(lambda: follower.command is SupervisorCommand.LOST, "it learns of the end")


def test_a_main_thread_that_stands_still_loses_the_lease_and_its_ranks_are_ended(
    world: World, server: RedisServer
) -> None:
    line, attempt = claimed(world, server, heartbeat_seconds=0.05)
    ended = threading.Event()
    line.main_thread.on_overdue = ended.set

    def beats() -> int:
        return world.run(store.read_heartbeats()).leases[store.PartId(attempt, "n1")]

    line.main_thread.expect_within(DEADLINE_SECONDS)
    before = beats()
    until(lambda: beats() > before + 3, "more beats")
    assert not ended.is_set()
    line.main_thread.expect_within(0.0)
    assert ended.wait(DEADLINE_SECONDS)
    line._renewal_thread.join(DEADLINE_SECONDS)
    assert line.command is SupervisorCommand.LOST
    assert not line._renewal_thread.is_alive()
    assert world.attempt(attempt.job) == attempt, "its lease has to expire"
    world.reap(attempt, heartbeat=beats())
    assert world.job(attempt.job).state is JobState.QUEUED


def test_ranks_are_ended_by_the_thread_of_a_lost_lease_only_if_the_main_thread_does_not_go_on(
    world: World, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "LOST_SECONDS", 0.3)
    for goes_on in (True, False):
        line, attempt = claimed(world, server, heartbeat_seconds=0.05)
        ended = threading.Event()
        line.main_thread.on_overdue = ended.set
        world.reap(attempt, heartbeat=None)
        while goes_on and line._renewal_thread.is_alive():
            line.main_thread.expect_within(DEADLINE_SECONDS)
        line._renewal_thread.join(DEADLINE_SECONDS)
        assert line.command is SupervisorCommand.LOST
        assert ended.is_set() is not goes_on


def test_a_follower_waits_for_the_link_while_redis_is_away(world: World, server: RedisServer) -> None:
    leader, follower = parts_of_a_gang(world, server)
    assert follower.claim().granted
    assert leader.claim("link").granted
    server.kill()
    found: list[str] = []
    waits = threading.Thread(target=lambda: found.append(follower.await_link(in_a_minute(), never)), daemon=True)
    waits.start()
    server.start()
    waits.join(DEADLINE_SECONDS)
    assert found == ["link"]
    assert leader.abandon("n2", "enough", 0.0)
    until(lambda: follower.command is SupervisorCommand.LOST, "the end")


def test_a_follower_beats_for_its_own_part(world: World, server: RedisServer) -> None:
    leader, follower = parts_of_a_gang(world, server, heartbeat_seconds=0.1)
    assert leader.claim("link").granted
    assert follower.claim().granted
    part = store.PartId(follower._attempt, follower._node)

    def beats() -> int:
        return world.run(store.read_heartbeats()).leases[part]

    before = beats()
    until(lambda: beats() >= before + 5, "five beats")
    assert follower.command is SupervisorCommand.GO
    assert leader.abandon("n2", "enough", 0.0)
    until(lambda: follower.command is SupervisorCommand.LOST, "the end")


def test_a_leader_that_gives_up_gives_its_own_devices_back_and_no_others(world: World, server: RedisServer) -> None:
    leader, follower = parts_of_a_gang(world, server)
    assert leader.claim("link").granted
    assert follower.claim().granted
    assert leader.abandon(follower._node, f"node {follower._node} has not joined", 0.0)
    assert world.redis.hlen(f"sy:held:{leader._node}") == 0
    assert world.redis.hlen(f"sy:held:{follower._node}") == 1
    assert "link_lost" in world.job(leader._attempt.job).message
    assert not follower.abandon(leader._node, "too late, and not its to say", 0.0)


def test_tries_become_rarer_while_redis_is_away(world: World, server: RedisServer) -> None:
    line, _ = claimed(world, server)
    assert list(islice(line._retry_delays(), 5)) == [0.5, 1.0, 2.0, 4.0, 4.0]
    assert max(islice(LeaseHolder(world.store, line._attempt, "n1", 1.0)._retry_delays(), 5)) == 1.0, (
        "a beat must not wait longer"
    )
    line.finish(StateReason.COMPLETED, "over", None, None, 0.0, pending_file=NOWHERE)


def test_an_untold_end_of_an_attempt_that_holds_nothing_is_told_in_the_rounds_and_only_then_cleared_away(
    world: World, server: RedisServer, tmp_path: Path
) -> None:
    attempt = world.claimed()
    marks = AttemptDirectory.of(tmp_path / "state", attempt)
    marks.create()
    marks.supervisor_lock.touch()
    pending_end.save_pending_end(marks.pending_end, PendingEnd("c", StateReason.COMPLETED, "all went well"))
    rounds = Janitor("n1", (), tmp_path / "state", tmp_path / "storage", world.store, tuple)
    rounds.clear_orphans()
    server.kill()
    with pytest.raises(Unavailable):
        rounds.clear_orphans()
    clear_orphan(tmp_path / "state", tmp_path / "storage", attempt)  # as a worker does that has just been started
    assert marks.pending_end.exists()
    server.start()
    rounds.clear_orphans()
    assert world.job(attempt.job).message == "all went well"
    assert not marks.directory.exists()


def test_findings_are_posted_before_the_end_of_the_attempt(world: World, server: RedisServer) -> None:
    webhook = WebhookRecord(
        tenant="default", id="wh_1", name="", url="", format="json", kinds=("finding.*", "job.succeeded"), sealed=b""
    )
    world.run(webhooks.put_webhook(webhook))
    line, attempt = claimed(world, server)
    line.record_milestone("running")
    line.post_findings([PostedFinding("warning", code, None, "why") for code in ("idle-devices", "slow-device")])
    line.finish(StateReason.COMPLETED, "", None, None, 0.0, pending_file=NOWHERE)
    rows = world.run(webhooks.list_deliveries("default", "wh_1", "all")).deliveries[::-1]
    assert [row.event.data.get("code", row.event.kind) for row in rows] == [
        "idle-devices",
        "slow-device",
        "job.succeeded",
    ]
    assert {row.event.subject for row in rows} == {f"job:{attempt.job}"}
