"""Jobs on nodes that a real Slurm gives, when a provider asks for them."""

import signal

import pytest

from jobs import store
from jobs.model.state import JobState
from jobs.store.pools import read_demand
from tests.faults.scene.slurm_service import BLOCK_SECONDS, POOL, SlurmService
from tests.integration.workers.service import TENANT, eventually

pytestmark = [pytest.mark.integration, pytest.mark.faults]

HOSTS = 2


def test_a_provider_that_dies_after_sbatch_finds_its_block_whose_nodes_run_jobs_until_they_are_idle(
    slurm: SlurmService,
) -> None:
    slurm.kill_provider()
    slurm.start_provider(SHARDYARD_FAILPOINT="block_submitted:kill@1")
    gang = slurm.submit("ddp", 1, nodes=2, steps=4)
    assert slurm.provider is not None
    assert slurm.provider.wait(BLOCK_SECONDS) == -signal.SIGKILL
    (noted,) = slurm.run(read_demand(POOL)).blocks
    assert (noted.id, noted.state, noted.nodes) == ("", "submitting", 2)
    assert slurm.reason(gang).code == "waiting_for_nodes"
    (block,) = slurm.cluster.jobs()

    slurm.start_provider()
    (attempt,) = slurm.succeeds(gang)
    nodes = [place.node for place in attempt.placement]
    assert sorted(nodes) == [f"sy1-{block}", f"sy2-{block}"]
    alone = slurm.submit("single", steps=4)
    assert slurm.succeeds(alone)[0].node in nodes, "a warm block is used again"
    assert list(slurm.cluster.jobs()) == [block], "no other was asked for"


def test_a_block_that_waits_says_why_and_is_cancelled_when_nobody_waits_for_it(slurm: SlurmService) -> None:
    urgent = slurm.cluster.submit_urgent(HOSTS, 600)
    eventually(lambda: slurm.cluster.jobs()[urgent] == "RUNNING", "others have all nodes")
    job = slurm.submit("single", steps=4)
    eventually(lambda: "is pending in Slurm: " in slurm.reason(job).message, "it says what Slurm says")
    (block,) = slurm.run(read_demand(POOL)).blocks
    said = slurm.reason(job)
    assert said.code == "waiting_for_nodes"
    assert said.message.startswith(f"block {block.id} is pending in Slurm: "), said
    slurm.run(store.cancel(TENANT, job))
    eventually(lambda: slurm.cluster.jobs().get(block.id) == "CANCELLED", "the block is cancelled")
    slurm.cluster.run("scancel", urgent)


@pytest.mark.slow
def test_an_error_of_sbatch_is_what_jobs_that_wait_say(slurm: SlurmService) -> None:
    slurm.restart_provider(partition="nowhere")
    job = slurm.submit("single", steps=4)
    eventually(lambda: "invalid partition" in slurm.reason(job).message, "it says what sbatch says")
    assert slurm.reason(job).code == "waiting_for_nodes"
    assert slurm.job(job).state is JobState.QUEUED
    assert slurm.run(read_demand(POOL)).blocks == ()
    slurm.run(store.cancel(TENANT, job))
    slurm.restart_provider()
