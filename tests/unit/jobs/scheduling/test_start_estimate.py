"""Estimates of starts, held to what then happens in pools whose lengths are drawn from heavy tails."""

import random
from collections.abc import Callable
from statistics import median

import pytest

from jobs.scheduling.start_estimate import PoolModel, StartEstimate, estimate_start
from jobs.store.queue_facts import NodeRoom, PastRun, QueueFacts, RunningLease, TenantAccount, TenantQueue, WaitingJob

Lengths = Callable[[random.Random], float]
#: Shapes of the lengths of jobs: those of clusters have a long tail.
SHAPES: dict[str, Lengths] = {
    "lognormal": lambda chance: chance.lognormvariate(6.0, 1.5),
    "exponential": lambda chance: chance.expovariate(1 / 600),
    "short and long": lambda chance: chance.uniform(20, 40) if chance.random() < 0.7 else chance.uniform(3000, 4000),
}


class FixedLengths(PoolModel):
    """What happens: the lengths are those that were drawn, and no estimate."""

    def __init__(self, facts: QueueFacts, draw: Lengths, chance: random.Random) -> None:
        self._draw = draw
        super().__init__(facts, None, chance)

    def _remaining(self, seconds: float, wall: float | None) -> float:
        while (length := self._draw(self._chance)) <= seconds:
            pass
        return length - seconds


def a_pool(draw: Lengths, chance: random.Random) -> QueueFacts:
    """A full pool of four nodes, and three tenants that wait."""
    running = tuple(
        RunningLease(f"t{chance.randrange(3)}", draw(chance) * chance.random(), 1e6, ((node, 1),))
        for node in range(4)
        for _ in range(2)
    )
    queues = tuple(
        TenantQueue(
            tenant,
            devices,
            1,
            4,
            tuple(WaitingJob(f"{tenant}/{devices}-{n}", 100, 8 * n + devices, 1e6) for n in range(4)),
        )
        for tenant in ("t0", "t1", "t2")
        for devices in (1, 2)
    )
    accounts = {f"t{n}": TenantAccount(chance.uniform(0, 5000), 0, 1.0) for n in range(3)}
    past = tuple(PastRun("t0", 1, draw(chance)) for _ in range(60))
    return QueueFacts("t1/2-2", 4, 24, (NodeRoom(0, 2, 0),) * 4, running, queues, accounts, past_runs=past)


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_most_jobs_start_within_the_band_of_their_estimate(shape: str) -> None:
    chance, within, early = random.Random(shape), 0, 0
    trials = 80
    for _ in range(trials):
        facts = a_pool(SHAPES[shape], chance)
        estimate = estimate_start(facts)
        assert estimate is not None
        assert estimate.earliest <= estimate.expected <= estimate.latest
        start = FixedLengths(facts, SHAPES[shape], chance).run_until(facts.ref)
        assert start is not None
        within += estimate.earliest <= start <= estimate.latest
        early += start < estimate.expected
    assert within >= 0.65 * trials, "a band of four fifths, from sixty past runs"
    assert 0.3 * trials <= early <= 0.7 * trials


def test_a_job_that_fits_now_starts_at_once() -> None:
    queue = TenantQueue("t", 1, 1, 1, (WaitingJob("t/a", 100, 1, 10.0),))
    facts = QueueFacts("t/a", 1, 1, (NodeRoom(1, 1, 0),), (), (queue,), {"t": TenantAccount(0, 0, 1)})
    assert estimate_start(facts) == StartEstimate(0.0, 0.0, 0.0, 0)


def test_a_job_that_no_node_can_take_has_no_estimate() -> None:
    queue = TenantQueue("t", 2, 1, 1, (WaitingJob("t/a", 100, 1, 10.0),))
    facts = QueueFacts("t/a", 1, 1, (NodeRoom(1, 1, 0),), (), (queue,), {"t": TenantAccount(0, 0, 1)})
    assert estimate_start(facts) is None


def test_jobs_that_were_not_looked_at_delay_as_the_others_do() -> None:
    first = tuple(WaitingJob(f"a/{n}", 99, n, 10.0) for n in range(4))
    mine = TenantQueue("t", 1, 1, 1, (WaitingJob("t/a", 100, 100, 10.0),))
    accounts = {"a": TenantAccount(0, 0, 1), "t": TenantAccount(0, 0, 1)}

    def latest(count: int) -> float:
        queues = (TenantQueue("a", 1, 1, count, first), mine)
        found = estimate_start(QueueFacts("t/a", 1, 5, (NodeRoom(1, 1, 0),), (), queues, accounts))
        assert found is not None
        return found.latest

    assert (latest(4), latest(24)) == (40.0, 240.0)


def test_a_large_pool_is_estimated_from_a_part_of_it() -> None:
    chance = random.Random(1)

    def expected(nodes: int) -> float:
        jobs = tuple(WaitingJob(f"t/{n}", 100, n, None) for n in range(120))
        queue = TenantQueue("t", 1, 1, 120, jobs)
        running = tuple(RunningLease("t", 0.0, None, ((node, 1),)) for node in range(4))
        rooms, accounts = (NodeRoom(0, 1, 0),) * 4, {"t": TenantAccount(0, 0, 1)}
        past = tuple(PastRun("t", 1, chance.uniform(90, 110)) for _ in range(30))
        found = estimate_start(QueueFacts("t/119", nodes, 120, rooms, running, (queue,), accounts, past_runs=past))
        assert found is not None
        return found.expected

    assert median((expected(8) / expected(4), 0.5)) == pytest.approx(0.5, abs=0.1)
