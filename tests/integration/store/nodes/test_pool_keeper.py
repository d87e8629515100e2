"""What a provider does with its blocks, against an engine that answers as a test wants."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from jobs import store
from jobs.model.state import StateReason
from jobs.scheduling.node_demand import NodeLimits
from jobs.store.pools import list_offers, read_demand
from tests.integration.store.invariants import violations
from tests.integration.store.world import World, node_info
from workers.provider import pool_keeper
from workers.provider.batch_script import BlockRequest
from workers.provider.pool_keeper import PoolKeeper, PoolLimits
from workers.provider.slurm import EngineError, EngineJob

pytestmark = pytest.mark.integration

POOL, PREFIX, ME = "slurm", "shardyard-0-slurm-", "host:file"


@dataclass
class ScriptedEngine:
    """Has the jobs that it was asked for, unless it `fails`."""

    jobs: dict[str, EngineJob] = field(default_factory=dict)  # by name
    cancelled: list[str] = field(default_factory=list)
    fails: EngineError | None = None
    asked: int = 0

    def submit_block(self, request: BlockRequest) -> str:
        self.asked += 1
        job = EngineJob(str(self.asked), request.name, "PENDING", request.nodes, "Priority")
        if self.fails is None or self.fails.unclear:
            self.jobs[job.name] = job
        if self.fails is not None:
            raise self.fails
        return job.id

    def cancel_pending(self, blocks: Sequence[str]) -> None:
        self.cancelled += blocks
        for name, job in list(self.jobs.items()):
            if job.id in blocks:
                self.set(name, "CANCELLED")

    def set(self, name: str, state: str, why: str = "") -> None:
        job = self.jobs[name]
        self.jobs[name] = EngineJob(job.id, job.name, state, job.nodes, why)

    def listed(self) -> list[EngineJob]:
        return list(self.jobs.values())


@dataclass
class Place:
    world: World
    engine: ScriptedEngine
    keeper: PoolKeeper

    def look(self, *, lists: bool = True) -> None:
        self.keeper.look(self.engine.listed() if lists else None)

    def again(self) -> "Place":
        """With another provider process, which knows nothing but what is in Redis."""
        return Place(self.world, self.engine, a_keeper(self.world, self.engine))

    def states(self) -> list[tuple[str, str]]:
        return [(block.id, block.state) for block in self.world.run(read_demand(POOL)).blocks]

    def error(self) -> str:
        return self.world.run(list_offers())[POOL].error

    def join(self, node: str, block: str) -> None:
        info = node_info(2)
        self.world.run(store.register_node(node, "i", POOL, "10.0.0.1", info, home=node, reach="network", block=block))


def a_keeper(world: World, engine: ScriptedEngine, provider: str = ME) -> PoolKeeper:
    keeper = PoolKeeper(POOL, "slurm", PREFIX, provider, world.store, engine)
    keeper.limits = PoolLimits(NodeLimits(2, 3), max_pending=2)
    return keeper


@pytest.fixture
def place(world: World) -> Place:
    engine = ScriptedEngine()
    place = Place(world, engine, a_keeper(world, engine))
    place.look()
    return place


def test_blocks_are_asked_for_while_jobs_wait_and_no_more_than_may_be_pending(place: Place) -> None:
    for _ in range(9):
        place.world.submit(2, pool=POOL)
    place.look()
    assert sorted(place.states()) == [("1", "pending"), ("2", "pending")]
    for name in list(place.engine.jobs):
        place.engine.set(name, "RUNNING")
    place.look()
    assert sorted(place.states()) == [("1", "starting"), ("2", "starting"), ("3", "pending")]
    place.look()
    assert place.engine.asked == 3, "the pool may have no more"


def test_a_block_runs_once_a_node_has_joined_and_is_forgotten_when_it_ends(place: Place) -> None:
    job = place.world.submit(2, pool=POOL)
    place.look()
    (name,) = place.engine.jobs
    place.engine.set(name, "RUNNING")
    place.join("a", "1")
    place.look(lists=False)
    assert place.states() == [("1", "running")]
    assert place.world.dispatch() == [job]
    attempt = place.world.claim(job)
    place.engine.set(name, "NODE_FAIL", "NodeDown")
    place.look()
    assert place.world.run(store.read_fleet()).nodes == ()
    (ended,) = place.world.history(attempt.job)
    assert (ended.reason, ended.message) == (StateReason.NODE_LOST, "block 1 is over: NODE_FAIL, NodeDown")
    assert place.error() == "", "a node of it had joined"
    assert violations(place.world.redis) == []


@pytest.mark.parametrize("kept", [True, False])
def test_a_block_whose_answer_was_not_heard_is_found_by_its_name_or_settles(
    place: Place, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.world.submit(2, pool=POOL)
    place.engine.fails = EngineError("Socket timed out", unclear=True)
    place.look()
    assert place.states() == [("", "submitting")]
    assert place.error() == ""
    place.engine.fails = None
    if not kept:
        place.engine.jobs.clear()
    successor = place.again()
    successor.look()
    assert successor.states() == ([("1", "pending")] if kept else [("", "submitting")])
    assert place.engine.asked == 1
    if not kept:
        monkeypatch.setattr(pool_keeper, "SETTLE_SECONDS", 0.0)
        successor.look()
        assert successor.states() == [("2", "pending")], "it was never made"


def test_a_block_that_nobody_has_noted_is_taken_over(place: Place) -> None:
    place.engine.submit_block(BlockRequest(POOL, f"{PREFIX}lost", 2))
    place.engine.submit_block(BlockRequest("other", "shardyard-0-other-x", 1))
    place.world.submit(2, nodes=2, pool=POOL)
    place.look()
    assert place.states() == [("1", "pending")]
    place.look()
    assert place.engine.asked == 2


def test_a_refusal_is_told_and_tried_again_later_and_later(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.world.submit(2, pool=POOL)
    place.engine.fails = EngineError("sbatch: error: invalid account")
    place.look()
    place.look()
    assert (place.engine.asked, place.states()) == (1, [])
    assert place.error() == "sbatch: error: invalid account"
    now = time.monotonic()
    monkeypatch.setattr("workers.provider.pool_keeper.monotonic", lambda: now + 11)
    place.look()
    place.look()
    assert place.engine.asked == 2
    place.engine.fails = None
    monkeypatch.setattr("workers.provider.pool_keeper.monotonic", lambda: now + 60)
    place.look()
    place.look()
    assert (place.error(), place.states()) == ("", [("3", "pending")])


def test_blocks_that_come_to_nothing_are_not_asked_for_without_end(place: Place) -> None:
    place.world.submit(2, pool=POOL)
    place.look()
    (name,) = place.engine.jobs
    place.engine.set(name, "FAILED", "NonZeroExitCode")
    for _ in range(5):
        place.look()
    assert (place.engine.asked, place.states()) == (1, [])
    assert place.error().startswith("block 1 ended (FAILED, NonZeroExitCode) before a node of it joined")


def test_a_pending_block_that_nobody_needs_is_cancelled_at_the_second_look(place: Place) -> None:
    job = place.world.submit(2, pool=POOL)
    place.look()
    place.world.run(store.cancel("default", job))
    place.look()
    assert place.engine.cancelled == []
    place.look()
    assert place.engine.cancelled == ["1"]
    place.look()
    assert (place.states(), place.error()) == ([], "")


def test_nothing_is_asked_or_concluded_while_the_engine_does_not_answer(place: Place) -> None:
    place.world.submit(2, pool=POOL)
    place.keeper.look(None, "Slurm does not answer: Unable to contact slurm controller")
    assert place.engine.asked == 0
    assert place.error() == "Slurm does not answer: Unable to contact slurm controller"
    place.look()
    place.keeper.look(None, "Slurm does not answer")
    assert place.states() == [("1", "pending")]


def test_of_two_providers_one_keeps_the_pool(place: Place) -> None:
    place.world.submit(2, pool=POOL)
    other = a_keeper(place.world, place.engine, "elsewhere:file")
    other.look(place.engine.listed())
    assert place.engine.asked == 0
    place.look()
    assert place.engine.asked == 1


def test_a_pool_that_is_kept_no_more_goes_when_its_last_block_has_ended(place: Place) -> None:
    place.world.submit(2, pool=POOL)
    place.look()
    place.keeper.limits = None
    place.look()
    assert place.engine.cancelled == ["1"]
    place.look()
    assert place.keeper.is_dropped
    assert place.world.run(list_offers()) == {}


def test_an_end_is_looked_for_as_soon_as_the_last_node_of_a_block_has_left(place: Place) -> None:
    place.world.submit(2, pool=POOL)
    place.look()
    (name,) = place.engine.jobs
    place.engine.set(name, "RUNNING")
    place.join("a", "1")
    place.look()
    assert not place.keeper.wants_listing
    place.world.run(store.leave_block("a", "i"))
    place.look(lists=False)
    assert place.keeper.wants_listing
