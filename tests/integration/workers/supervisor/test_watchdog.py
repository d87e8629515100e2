"""Runs that come to a stand, and ranks that the kernel kills for want of memory."""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from jobs.model.state import JobState, StateReason
from tests.integration.workers.service import MODULE, Service, eventually, running_service

pytestmark = pytest.mark.integration

STANDS_STILL = """
import time, torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(3):
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()

def waits_for_ever():
    time.sleep(600)

waits_for_ever()
"""


def test_a_run_without_steps_shows_its_stacks_and_ends(service: Service) -> None:
    job = service.run_script({"train.py": STANDS_STILL}, limits={"stall_seconds": 2.5})
    record = service.ended(job)
    assert (record.state, record.reason) == (JobState.FAILED, StateReason.STALLED)
    assert "limits.stall_seconds" in record.message
    assert "in waits_for_ever" in service.text(job, stream="stderr")


def test_ranks_that_wait_for_a_frozen_one_show_where(service: Service) -> None:
    job = service.long("ddp", 2, limits={"stall_seconds": 3})
    frozen = service.ranks(service.attempt(job))[0]
    os.kill(frozen, signal.SIGSTOP)
    record = service.ended(job)
    assert (record.state, record.reason) == (JobState.FAILED, StateReason.STALLED)
    said = [service.text(job, device, stream) for device in (0, 1) for stream in ("stderr", "service")]
    assert any("most recent call first" in text for text in said)
    assert any("is stopped (SIGSTOP)" in text for text in said)


LEAVES_OTHERS_WAITING = """
import time, torch, torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)

def prepares_for_ever():
    time.sleep(600)

for step in range(5):
    if step == 3 and dist.get_rank() == 1:
        prepares_for_ever()
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
"""


def test_a_rank_that_others_wait_for_is_named_with_the_line_at_which_it_is(service: Service) -> None:
    job = service.run_script(
        {"train.py": LEAVES_OTHERS_WAITING}, strategy="ddp", devices=2, limits={"stall_seconds": 2}
    )
    record = service.ended(job)
    waits = r"rank 0 waits in all_reduce, collective number \d+ \(train\.py, line 14, in <module>\), "
    missing = r"which rank 1 has not called: rank 1 is at train\.py, line 9, in prepares_for_ever"

    assert record.reason == StateReason.STALLED
    assert re.search(f"limits.stall_seconds: {waits}{missing}; the stacks", record.message), record.message
    assert record.error is not None
    assert record.error["rank"] == 1
    assert "same collectives in the same order" in record.error["advice"]
    said = service.text(job, stream="service")
    assert re.search(waits + missing, said)
    assert f"what to do: {record.error['advice']}" in said


@pytest.mark.slow
def test_three_ranks_that_wait_for_the_fourth_are_named_together(service: Service) -> None:
    script = {"train.py": LEAVES_OTHERS_WAITING}
    record = service.ended(service.run_script(script, strategy="ddp", devices=4, limits={"stall_seconds": 4}), 90)
    assert re.search("ranks 0, 2 and 3 wait in all_reduce, .* which rank 1 has not called", record.message), record


DISAGREES = """
import torch, torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank():
    dist.broadcast(torch.ones(4), 0)
else:
    dist.all_gather([torch.ones(4), torch.ones(4)], torch.ones(4))
"""


@pytest.mark.slow
def test_ranks_that_call_different_collectives_are_told_apart(service: Service) -> None:
    job = service.run_script({"train.py": DISAGREES}, strategy="ddp", devices=2, limits={"stall_seconds": 2})
    record = service.ended(job)
    assert record.reason == StateReason.STALLED, record
    assert re.search(
        "the ranks call different collectives as number .*: rank 0 all_?gather.*, rank 1 broadcast", record.message
    )


GIVES_UP = """
import datetime, time, torch, torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=2))
if dist.get_rank() == 1:
    time.sleep(600)
dist.all_reduce(torch.ones(4))
"""


def test_a_collective_that_times_out_names_the_rank_that_was_not_there(service: Service) -> None:
    job = service.run_script({"train.py": GIVES_UP}, strategy="ddp", devices=2)
    record = service.ended(job)
    assert record.reason == StateReason.CODE_ERROR
    assert record.error is not None
    assert re.search(
        "Timed out waiting .* rank 1 has not called: rank 1 is at train.py, line 6", record.error["message"]
    )
    assert record.error["advice"].startswith("A collective was given up")
    assert "Timed out waiting" in record.error["traceback"]


def test_slow_steps_are_no_stall(service: Service) -> None:
    job = service.submit(steps=8, seconds=0.5, limits={"stall_seconds": 3.5})  # less than all of them take
    assert service.ended(job).state is JobState.SUCCEEDED


# -- memory ----------------------------------------------------------------------------------------

LIMIT = 3 << 30
ROOT = Path("/sys/fs/cgroup/memory")

EATS = """
eaten = []
while True:
    eaten.append(bytearray(64 << 20))
"""


@contextmanager
def memory_cgroup() -> Iterator[Path]:
    """A memory cgroup (version 1) with a limit; skips where none can be made."""
    try:
        own = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if ":memory:" in line)
        place = ROOT / own.split(":", 2)[2].lstrip("/") / f"shardyard-test-{os.getpid()}"
        place.mkdir()
        (place / "memory.limit_in_bytes").write_text(str(LIMIT))
    except (OSError, StopIteration) as error:
        pytest.skip(f"no memory cgroup can be made here: {error!r}")
    try:
        yield place
    finally:
        with suppress(OSError):
            place.rmdir()


@pytest.mark.slow
def test_a_rank_that_the_kernel_kills_for_memory_ran_out_of_it(tmp_path: Path) -> None:
    with memory_cgroup() as place:
        enter = ["/bin/sh", "-c", f'echo $$ > {place}/cgroup.procs && exec "$@"', "sh", *MODULE]
        with running_service(tmp_path / "service", enter, job_memory_bytes=1 << 40) as service:
            record = service.ended(service.run_script({"train.py": EATS}), 60)
            assert (record.state, record.reason) == (JobState.FAILED, StateReason.OUT_OF_MEMORY)
            assert "the kernel" in record.message
            service.stop_worker()
        # Its forkserver ends with the worker; until then the cgroup is in use.
        eventually(lambda: not (place / "cgroup.procs").read_text(), "the cgroup is empty")
