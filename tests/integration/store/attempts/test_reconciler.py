"""The scheduler against a real server: dispatch, hints, reaping, and a server that goes away."""

from pathlib import Path
from queue import SimpleQueue
from time import monotonic

import pytest

from jobs import store
from jobs.model.settings import Settings
from jobs.model.state import JobState, SupervisorCommand
from jobs.scheduling.hints import HintSender, MemoryHintSender
from jobs.scheduling.scheduler import JobScheduler
from jobs.store import Hint
from jobs.store.client import RedisStore
from shardyard.contract.errors import Unavailable
from tests.integration.store.world import NEVER, World
from tests.support.servers.redis_server import redis_server

pytestmark = pytest.mark.integration

#: A lease of a few looks: the tick below is called as fast as it goes, and each look counts at most 30 ms.
QUICK = Settings(lease_seconds=0.1, node_seconds=0.1, reconcile_seconds=0.01)
CALM = Settings(reconcile_seconds=0.01)
TICKS = 10_000


class BrokenHintSender:
    def send(self, hint: Hint) -> None:
        raise OSError(f"no route to {hint.node}")


class QueueHintSender:
    def __init__(self) -> None:
        self.sent: SimpleQueue[str] = SimpleQueue()

    def send(self, hint: Hint) -> None:
        self.sent.put(hint.attempt.job)

    def wait_for(self, job: str) -> None:
        """Returns when a hint of `job` was sent. Raises queue.Empty after a minute without any."""
        while self.sent.get(timeout=60) != job:
            pass


def scheduler(world: World, courier: HintSender) -> JobScheduler:
    return JobScheduler(world.store, courier, QUICK, listen=False)


def test_a_tick_starts_what_fits_and_sends_each_hint_once(world: World) -> None:
    world.node(devices=40)
    jobs = [world.submit() for _ in range(50)]
    courier = MemoryHintSender()
    reconciler = scheduler(world, courier)
    reconciler.dispatch_jobs()
    reconciler.dispatch_jobs()
    assert sorted(hint.attempt.job for hint in courier.sent) == jobs[:40]


def test_a_courier_that_fails_stops_nothing_and_its_hint_stays_due(world: World) -> None:
    world.node()
    job = world.submit()
    scheduler(world, BrokenHintSender()).tick()
    assert world.state(job) is JobState.STARTING
    (hint,) = world.run(store.dispatch(NEVER, 0.000_001)).hints
    assert hint.attempt.job == job


def test_an_attempt_that_does_not_beat_is_reaped_and_one_that_beats_is_not(world: World) -> None:
    world.node()
    silent, alive = world.running(), world.running()
    reconciler = scheduler(world, MemoryHintSender())
    for _ in range(TICKS):
        assert world.run(store.renew_lease(alive, "c")) is SupervisorCommand.GO
        world.run(store.renew_node("n1", "i1"))
        reconciler.tick()
        if world.state(silent.job) is not JobState.RUNNING:
            break
    assert world.state(silent.job) is JobState.QUEUED
    assert world.state(alive.job) is JobState.RUNNING


@pytest.mark.parametrize("claimed", ["n1", "n2"])
def test_a_part_that_nobody_claims_is_not_waited_for_as_long_as_a_lease(world: World, claimed: str) -> None:
    for node in ("n1", "n2"):
        world.node(node, 1)
    gang = world.submit(1, nodes=2)
    assert world.dispatch() == [gang]
    assert world.run(store.claim(world.attempt(gang), "c", claimed)).granted
    world.node("n3", 1)
    alone = world.submit(1)
    assert world.dispatch() == [alone]
    settings = Settings(join_seconds=0.1, reconcile_seconds=0.01)
    reconciler = JobScheduler(world.store, MemoryHintSender(), settings, listen=False)
    for _ in range(TICKS):
        reconciler.tick()
        if world.state(gang) is not JobState.STARTING:
            break
    missing = {"n1", "n2"} - {claimed}
    assert f"no supervisor took it on node {missing.pop()} in time" in world.job(gang).message
    assert world.job(gang).losses == 0
    assert world.state(alone) is JobState.STARTING, "nobody waits for it"


def test_a_node_that_does_not_beat_takes_no_more_work(world: World) -> None:
    world.node()
    reconciler = scheduler(world, MemoryHintSender())
    for _ in range(TICKS):
        reconciler.tick()
        if not world.run(store.read_fleet()).nodes[0].alive:
            break
    assert not world.run(store.read_fleet()).nodes[0].alive


def test_who_does_not_lead_reaps_nothing(world: World) -> None:
    world.node()
    attempt = world.running()
    assert world.run(store.acquire_lead("somebody else", 600)) == 0
    reconciler = scheduler(world, MemoryHintSender())
    for _ in range(300):
        reconciler.tick()
    assert world.state(attempt.job) is JobState.RUNNING


def test_a_node_that_does_not_lead_asks_once_and_comes_back_when_the_lead_may_be_free(world: World) -> None:
    world.node()
    job = world.submit()
    assert world.run(store.acquire_lead("somebody else", 600)) == 0
    world.redis.config_resetstat()
    assert 590 < scheduler(world, MemoryHintSender()).tick() <= 600
    assert world.redis.info("commandstats")["cmdstat_fcall"]["calls"] == 1
    assert world.state(job) is JobState.QUEUED


def test_a_scheduler_that_listens_starts_jobs_also_while_another_one_leads(world: World) -> None:
    world.node()
    assert world.run(store.acquire_lead("somebody else", 600)) == 0
    courier = QueueHintSender()
    reconciler = JobScheduler(world.store, courier, CALM, listen=True)
    reconciler.start()
    try:
        courier.wait_for(world.submit())
    finally:
        reconciler.stop()


@pytest.mark.parametrize("listen", [False, True])
def test_the_thread_starts_a_job_soon_after_it_was_queued_and_ends_when_told(world: World, listen: bool) -> None:
    world.node()
    courier = QueueHintSender()
    reconciler = JobScheduler(world.store, courier, CALM, listen=listen)
    reconciler.start()
    try:
        courier.wait_for(world.submit())
        assert reconciler.alive
    finally:
        reconciler.stop()
    assert not reconciler.alive


def test_a_thread_that_listens_ends_at_once_though_nothing_is_due(world: World) -> None:
    world.node()
    reconciler = JobScheduler(world.store, MemoryHintSender(), Settings(reconcile_seconds=600), listen=True)
    reconciler.start()
    deadline = monotonic() + 60
    while not any(int(each["idle"]) for each in world.store.client.client_list(_type="pubsub")):
        assert monotonic() < deadline  # it listens, and has heard nothing for a second
    reconciler.stop()
    assert not reconciler.alive


def test_the_thread_outlives_a_server_that_is_killed(tmp_path: Path) -> None:
    with redis_server(tmp_path, appendonly="yes", appendfsync="always") as server:
        world, courier = World(server.url), QueueHintSender()
        world.node()
        reconciler = JobScheduler(RedisStore.from_url(server.url), courier, CALM, listen=True)
        reconciler.start()
        try:
            courier.wait_for(world.submit())
            server.kill()
            with pytest.raises(Unavailable):
                world.submit()
            server.start()
            courier.wait_for(world.submit())
        finally:
            reconciler.stop()
            world.store.close()
