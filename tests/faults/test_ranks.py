"""Rows 4 and 5: ranks that hang, and ranks that run out of memory."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.model.state import AttemptState, JobState, StateReason
from tests.faults.inject import processes
from tests.faults.inject.memory import MemoryGroup, memory_group
from tests.faults.scene.machine import need
from tests.faults.scene.site import Site, running_site
from tests.integration.workers.service import eventually, is_dead

pytestmark = [pytest.mark.integration, pytest.mark.faults]

STALL_SECONDS = 3.5
STACK = "most recent call first"

#: Rank 0 sleeps while the others wait for it in a collective.
SLEEPS_IN_A_COLLECTIVE = """
import time, torch, torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(3):
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()

def never_joins():
    time.sleep(600)

def waits_for_the_others():
    dist.barrier()

never_joins() if dist.get_rank() == 0 else waits_for_the_others()
"""


def test_row_04_a_stopped_rank_is_noticed_and_the_job_is_tried_again_and_ends(site: Site) -> None:
    limits = {"stall_seconds": STALL_SECONDS, "max_retries": 1}
    job = site.post("ddp", 3, limits=limits, steps=20, fault="wait_for_the_test", at_step=10)
    site.held(job)
    ranks = processes.ranks_of(site.supervisor(site.attempt(job)))
    os.kill(ranks[1], signal.SIGSTOP)
    site.let_go(job)
    record = site.finished(job, 60)
    assert (record.state, record.attempt, record.retries) == (JobState.SUCCEEDED, 2, 1)
    assert all(is_dead(pid) for pid in ranks.values())
    first, second = site.attempts(job)
    assert (first.reason, second.reason) == (StateReason.STALLED, StateReason.COMPLETED)
    assert "limits.stall_seconds" in first.message
    for moving in (0, 2):
        assert STACK in site.text(job, moving, "stderr")
    assert "rank 1 is stopped (SIGSTOP)" in site.text(job, 0, "service")


@pytest.mark.slow
def test_row_04_a_script_that_hangs_in_a_collective_shows_every_stack_and_is_retried_within_bounds(site: Site) -> None:
    limits = {"stall_seconds": STALL_SECONDS, "max_retries": 1}
    job = site.run_script({"train.py": SLEEPS_IN_A_COLLECTIVE}, strategy="ddp", devices=2, limits=limits)
    record = site.finished(job, 60)
    assert (record.state, record.reason, record.attempt) == (JobState.FAILED, StateReason.STALLED, 2)
    assert [(it.state, it.reason) for it in site.attempts(job)] == [(AttemptState.ENDED, StateReason.STALLED)] * 2
    for number in (1, 2):
        assert "in never_joins" in site.text(job, 0, "stderr", number)
        assert "in waits_for_the_others" in site.text(job, 1, "stderr", number)


@pytest.mark.slow
def test_row_04_a_recipe_that_sleeps_where_its_peers_wait_for_it_is_a_stall(site: Site) -> None:
    job = site.post("ddp", 3, fault="sleep_forever", rank=2, limits={"stall_seconds": STALL_SECONDS})
    record = site.finished(job)
    assert (record.state, record.reason) == (JobState.FAILED, StateReason.STALLED)
    said = [site.text(job, device, "stderr") for device in range(3)]
    assert all(STACK in text for text in said)
    assert "in sleep_forever" in said[2]


def test_row_05_a_rank_beyond_its_limit_ran_out_of_memory_and_is_tried_again_within_bounds(site: Site) -> None:
    job = site.post("ddp", 2, fault="fill_memory_with_a_tensor", rank=1, limits={"max_retries": 1})
    record = site.finished(job, 60)
    assert (record.state, record.reason, record.attempt) == (JobState.FAILED, StateReason.OUT_OF_MEMORY, 2)
    assert [it.reason for it in site.attempts(job)] == [StateReason.OUT_OF_MEMORY] * 2
    assert record.error is not None
    assert record.error["rank"] == 1


# -- by the kernel ---------------------------------------------------------------------------------

#: A worker, its forkserver, a supervisor and two ranks need 1.5 GB of it.
LIMIT_BYTES = 3 << 30

#: Rank 1 takes what there is, while rank 0 waits for it.
EATS = """
import torch.distributed as dist

dist.init_process_group("gloo")
eaten = []
while dist.get_rank() == 1:
    eaten.append(bytearray(64 << 20))
dist.barrier()
"""


@pytest.fixture
def confined(tmp_path: Path) -> Iterator[tuple[Site, MemoryGroup]]:
    """A site whose worker, and all that it starts, have little memory."""
    need("memory cgroups")
    with memory_group(LIMIT_BYTES) as group, running_site(tmp_path, worker=False) as site:
        site.worker_prefix = ["/bin/sh", "-c", f'echo $$ > {group.path}/cgroup.procs && exec "$@"', "sh"]
        site.start_worker()
        yield site, group
        site.stop_worker()
        eventually(lambda: not (group.path / "cgroup.procs").read_text(), "the group is empty")


@pytest.mark.slow
def test_row_05_a_rank_that_the_kernel_kills_for_want_of_memory_says_so_and_the_node_goes_on(
    confined: tuple[Site, MemoryGroup],
) -> None:
    site, group = confined
    job = site.run_script({"train.py": EATS}, strategy="ddp", devices=2, limits={"max_retries": 1})
    record = site.finished(job, 90)
    assert (record.state, record.reason, record.attempt) == (JobState.FAILED, StateReason.OUT_OF_MEMORY, 2)
    assert record.error is not None
    assert (record.error["rank"], record.error["signal"]) == (1, "SIGKILL")
    assert "the kernel" in record.message
    assert group.kills() == 2
    assert site.finished(site.post("ddp", 2, steps=2)).state is JobState.SUCCEEDED
    eventually(lambda: not site.node().held, "every device is free")
    site.is_sound()
