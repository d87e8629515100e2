"""Rows 41 and 42: what Slurm does to blocks, and what happens to their provider. Every job ends as it should."""

import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from jobs import store
from jobs.model.state import JobState, StateReason
from jobs.store.pools import read_demand
from tests.faults.scene.slurm_service import BLOCK_SECONDS, POOL, SlurmService
from tests.integration.workers.service import TENANT, eventually

pytestmark = [pytest.mark.integration, pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(900)]

HOSTS = 3
#: Some seconds of training, which is long enough to be interrupted, and saves often.
TRAINING: dict[str, Any] = {"steps": 400, "rows": 2, "seconds": 0.03, "checkpoint": {"every_steps": 20}}
#: What an engine takes in good order, and what it takes by force.
SENT_BACK = {StateReason.DRAINED, StateReason.SERVICE_STOPPED}
LOST = {StateReason.NODE_LOST, StateReason.LINK_LOST, StateReason.SUPERVISOR_LOST}


@pytest.fixture(scope="module")
def undisturbed(shared: SlurmService) -> dict[int, Any]:
    """Results of jobs of one and two nodes that nothing happens to."""
    jobs = {nodes: train(shared, nodes) for nodes in (1, 2)}
    for job in jobs.values():
        assert len(shared.succeeds(job)) == 1
    return {nodes: shared.job(job).result for nodes, job in jobs.items()}


def train(slurm: SlurmService, nodes: int = 1, **options: Any) -> str:
    strategy = "ddp" if nodes > 1 else "single"
    return slurm.submit(strategy, 1, nodes=nodes, **TRAINING | options)


def saved(slurm: SlurmService, job: str) -> None:
    eventually(lambda: slurm.job(job).checkpoint, f"{job} has saved; {slurm.block_output()}", BLOCK_SECONDS)


def resumes(slurm: SlurmService, job: str, result: Any, reasons: set[StateReason]) -> None:
    """Check that the first attempt of a job ended so, and that its last one has gone on to the same result."""
    attempts = slurm.succeeds(job)
    record = slurm.job(job)
    assert attempts[0].reason in reasons, attempts[0]
    assert len(attempts) > 1
    assert attempts[-1].resumed is not None
    assert (record.result, record.retries) == (result, 0)


@pytest.mark.parametrize("nodes", [1, 2])
def test_row_41_a_job_whose_block_is_pre_empted_saves_and_goes_on_in_the_next(
    slurm: SlurmService, undisturbed: dict[int, Any], nodes: int
) -> None:
    job = train(slurm, nodes)
    saved(slurm, job)
    urgent = slurm.cluster.submit_urgent(HOSTS, 3)
    resumes(slurm, job, undisturbed[nodes], SENT_BACK)
    assert slurm.job(job).losses == 0
    eventually(lambda: slurm.cluster.jobs()[urgent] == "COMPLETED", "the urgent job has run")


def test_row_41_a_job_goes_on_in_the_next_block_when_the_time_limit_of_its_partition_comes(
    slurm: SlurmService,
) -> None:
    slurm.restart_provider(partition="short", time_limit="00:01:00", grace_seconds=15)
    job = train(slurm, fault="wait_for_the_test", at_step=35, steps=60)
    eventually(lambda: slurm.attempts(job) and slurm.attempts(job)[-1].resumed, "it goes on", 2 * BLOCK_SECONDS)
    slurm.let_go(job)
    attempts = slurm.succeeds(job, 2 * BLOCK_SECONDS)
    assert {attempt.reason for attempt in attempts[:-1]} <= SENT_BACK
    assert len({attempt.node for attempt in attempts}) == len(attempts) > 1
    assert (slurm.job(job).losses, slurm.job(job).retries) == (0, 0)
    slurm.restart_provider()


@pytest.mark.parametrize("nodes", [1, 2])
def test_row_41_a_job_whose_block_is_cancelled_saves_and_goes_on_in_the_next(
    slurm: SlurmService, undisturbed: dict[int, Any], nodes: int
) -> None:
    job = train(slurm, nodes)
    saved(slurm, job)
    slurm.cluster.run("scancel", slurm.block_of(job))
    resumes(slurm, job, undisturbed[nodes], SENT_BACK)


def test_row_41_a_job_whose_block_is_killed_without_notice_goes_on_as_soon_as_slurm_says_that_it_is_over(
    slurm: SlurmService, undisturbed: dict[int, Any]
) -> None:
    job = train(slurm)
    saved(slurm, job)
    block, began = slurm.block_of(job), time.monotonic()
    slurm.kill_host(slurm.host_of(job))
    eventually(lambda: slurm.attempts(job)[0].reason, "the attempt has ended")
    assert time.monotonic() - began < slurm.settings.lease_seconds, "which its lease alone would have taken"
    resumes(slurm, job, undisturbed[1], LOST)
    assert f"block {block} is over: " in slurm.attempts(job)[0].message


@pytest.mark.parametrize("nodes", [1, 2])
def test_row_41_a_job_whose_node_is_down_goes_on_elsewhere(
    slurm: SlurmService, undisturbed: dict[int, Any], nodes: int
) -> None:
    job = train(slurm, nodes)
    saved(slurm, job)
    host = slurm.host_of(job)
    slurm.cluster.take_down(host)
    try:
        resumes(slurm, job, undisturbed[nodes], SENT_BACK | LOST)
        assert slurm.attempts(job)[-1].node.partition("-")[0] != host
    finally:
        slurm.cluster.bring_back(host)


def test_a_burst_of_jobs_runs_in_as_many_blocks_as_the_pool_may_have(slurm: SlurmService) -> None:
    before = set(slurm.cluster.jobs())
    jobs = [slurm.submit("single", steps=4) for _ in range(20)]
    most = 0
    while any(slurm.job(job).finished is None for job in jobs):
        states = Counter(slurm.cluster.jobs("PENDING", "RUNNING", "COMPLETING").values())
        most = max(most, states["PENDING"] + states["RUNNING"])
        time.sleep(0.2)
    assert [slurm.job(job).state for job in jobs] == [JobState.SUCCEEDED] * 20
    assert most <= HOSTS
    assert len(set(slurm.cluster.jobs()) - before) == HOSTS


def killed_now_and_then(slurm: SlurmService, chance: random.Random, goes_on: Callable[[], bool]) -> int:
    """Kill the provider at random moments and start it again, while something goes on."""
    kills = 0
    while goes_on():
        time.sleep(chance.uniform(0.5, 4.0))
        slurm.kill_provider()
        slurm.start_provider()
        kills += 1
    return kills


def test_row_42_a_provider_that_is_killed_again_and_again_keeps_no_more_blocks_than_it_may(
    slurm: SlurmService,
) -> None:
    jobs = [train(slurm, nodes) for nodes in (1, 2, 1, 1, 2)]
    most: list[int] = []

    def goes_on() -> bool:
        running = slurm.cluster.run("squeue", "-h", "-t", "PENDING,RUNNING", "-o", "%D").split()
        most.append(sum(map(int, running)))
        return any(slurm.job(job).finished is None for job in jobs)

    assert killed_now_and_then(slurm, random.Random(42), goes_on) > 3
    for job in jobs:
        slurm.succeeds(job)
    assert max(most) <= HOSTS


@pytest.mark.parametrize("place", ["block_noted", "block_submitted"])
def test_row_42_a_provider_that_is_killed_about_sbatch_asks_for_one_block(slurm: SlurmService, place: str) -> None:
    before = set(slurm.cluster.jobs())
    slurm.kill_provider()
    slurm.start_provider(SHARDYARD_FAILPOINT=f"{place}:kill@1")
    job = slurm.submit("single", steps=4)
    assert slurm.provider is not None
    assert slurm.provider.wait(BLOCK_SECONDS) == -signal.SIGKILL
    (noted,) = slurm.run(read_demand(POOL)).blocks
    assert noted.id == ""
    slurm.start_provider()
    slurm.succeeds(job)
    assert len(set(slurm.cluster.jobs()) - before) == 1


def test_jobs_go_on_while_the_controller_is_away_and_blocks_are_asked_for_when_it_is_back(
    slurm: SlurmService, undisturbed: dict[int, Any]
) -> None:
    job = train(slurm)
    saved(slurm, job)
    slurm.cluster.stop_controller()
    try:
        waiting = slurm.submit("ddp", 1, nodes=3, steps=4)
        eventually(lambda: "Slurm does not answer" in slurm.reason(waiting).message, "it says so", 120)
        attempts = slurm.succeeds(job)
        time.sleep(20)
        assert slurm.job(waiting).state is JobState.QUEUED
    finally:
        slurm.cluster.start_controller()
    assert (len(attempts), slurm.job(job).result) == (1, undisturbed[1])
    slurm.succeeds(waiting)


def test_the_least_number_of_nodes_stays_while_nothing_waits_and_goes_with_its_pool(slurm: SlurmService) -> None:
    slurm.restart_provider(least=1, most=2)
    eventually(lambda: len(slurm.nodes()) == 1, "a node joins", BLOCK_SECONDS)
    job = slurm.submit("single", steps=4)
    node = slurm.succeeds(job)[0].node
    time.sleep(3 * 4.0)  # of an idle node's patience
    assert list(slurm.nodes()) == [node]
    slurm.restart_provider()
    slurm.cluster.run("scancel", slurm.nodes()[node])


def test_a_job_that_is_cancelled_in_a_block_leaves_the_block_to_others(slurm: SlurmService) -> None:
    job = train(slurm)
    saved(slurm, job)
    block = slurm.block_of(job)
    slurm.run(store.cancel(TENANT, job))
    assert slurm.finished(job).state is JobState.CANCELLED
    other = slurm.submit("single", steps=4)
    assert slurm.succeeds(other)[0].node.endswith(f"-{block}")
