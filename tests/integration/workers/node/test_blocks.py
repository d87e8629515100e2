"""Nodes of a block, which an engine gives for a time and takes away."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from jobs import store
from jobs.model.state import JobState, StateReason
from jobs.store.pools import end_block
from tests.integration.store.invariants import violations
from tests.integration.workers.service import NODE, PATIENCE_SECONDS, WARM_SECONDS, Service, eventually
from tests.support.servers.redis_server import redis_server

pytestmark = pytest.mark.integration

MONITOR = [sys.executable, "-m", "workers.node.worker_monitor", "--in-block"]
TRAINING: dict[str, Any] = {"steps": 5_000, "rows": 2, "seconds": 0.02, "checkpoint": {"every_steps": 4_000}}


class BlockService(Service):
    """A service whose nodes are in blocks, which have their numbers."""

    def start_block(self, number: int, *options: str) -> None:
        self.worker = self._spawn([*MONITOR, *options], SHARDYARD_BLOCK=str(number), SHARDYARD_NODE=f"n{number}")
        eventually(lambda: f"n{number}" in self.node_ids(), f"n{number} joins; {self.worker_log()}", WARM_SECONDS)

    def node_ids(self) -> list[str]:
        return [node.id for node in self.run(store.read_fleet()).nodes]

    def everything(self) -> list[psutil.Process]:
        """All processes of the node, as an engine finds them that goes by parents and children."""
        assert self.worker is not None
        monitor = psutil.Process(self.worker.pid)
        return [monitor, *monitor.children(recursive=True)]

    def leaves(self, number: int) -> None:
        """Wait until the worker of a block has ended in good order, and check that nothing of its node is left."""
        assert self.worker is not None
        assert self.worker.wait(PATIENCE_SECONDS) == 0
        assert f"n{number}" not in self.node_ids()
        assert not (self.settings.state_dir / f"n{number}").exists()
        assert violations(self.store.client) == []


@contextmanager
def block_service(directory: Path) -> Iterator[BlockService]:
    directory.mkdir(parents=True, exist_ok=True)
    with redis_server(directory / "redis", appendonly="yes", appendfsync="always") as server:
        service = BlockService(directory, server, devices="cpu:2", lease_seconds=60.0)
        try:
            yield service
        finally:
            for process in service.everything() if service.worker and service.worker.poll() is None else ():
                process.kill()
            service.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BlockService]:
    with block_service(tmp_path_factory.mktemp("blocks")) as service:
        yield service


def saved_and_sent_back(service: BlockService, job: str) -> int:
    """The step that a job has saved, once it waits again, at no cost."""
    eventually(lambda: service.job(job).state is JobState.QUEUED, "the job is sent back")
    record = service.job(job)
    assert record.reason in (StateReason.DRAINED, StateReason.SERVICE_STOPPED), record
    assert (record.losses, record.retries) == (0, 0)
    assert record.checkpoint is not None
    return int(record.checkpoint["step"])


def test_signals_of_an_engine_move_what_runs_and_the_node_is_forgotten(shared: BlockService) -> None:
    shared.start_block(1)
    job = shared.submit("ddp", 2, **TRAINING)
    eventually(lambda: shared.job(job).first_step, "first step")
    for number in (signal.SIGUSR2, signal.SIGCONT, signal.SIGTERM, signal.SIGUSR2):
        os.kill(shared.worker.pid, number)  # type: ignore[union-attr]
    step = saved_and_sent_back(shared, job)
    shared.leaves(1)

    shared.start_block(2, "--idle-exit", "2")
    shared.dispatch_jobs()
    shared.reaches(job, JobState.RUNNING, attempt=2)
    assert shared.attempts(job)[1].resumed == {"step": step, "attempt": 1}
    assert shared.attempts(job)[1].node == "n2"
    shared.cancel(job)
    shared.finished(job)
    shared.leaves(2)
    assert shared.events("node_idle")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_a_signal_to_every_process_of_a_node_is_no_failure_of_its_ranks(
    shared: BlockService, number: signal.Signals
) -> None:
    shared.start_block(3)
    job = shared.submit("ddp", 2, **TRAINING)
    eventually(lambda: shared.job(job).first_step, "first step")
    for process in shared.everything():
        process.send_signal(number)
    if number is signal.SIGUSR2:
        shared.worker.terminate()  # type: ignore[union-attr]
    assert saved_and_sent_back(shared, job) > 0
    assert shared.attempts(job)[0].reason in (StateReason.DRAINED, StateReason.SERVICE_STOPPED)
    shared.leaves(3)
    shared.cancel(job)


SCRIPT = """
import time
from shardyard import job
while not job.should_stop():
    time.sleep(0.01)
"""
DIES = "import time\nprint('up', flush=True)\nwhile True: time.sleep(0.01)"


@pytest.mark.slow
@pytest.mark.parametrize("program", [SCRIPT, DIES])
def test_a_script_that_every_process_of_its_node_is_signalled_with_starts_again(
    shared: BlockService, program: str
) -> None:
    shared.start_block(4)
    job = shared.run_script({"train.py": program})
    shared.reaches(job, JobState.RUNNING)
    for process in reversed(shared.everything()):  # ranks first, which is the worst
        process.terminate()
    eventually(lambda: shared.job(job).state is JobState.QUEUED, "it is sent back")
    record = shared.job(job)
    assert (record.losses, record.retries, record.attempt) == (0, 0, 1), record
    shared.leaves(4)
    shared.cancel(job)


@pytest.mark.slow
def test_a_block_that_is_killed_is_over_with_the_word_of_its_engine(shared: BlockService) -> None:
    shared.start_block(6)
    job = shared.submit("single", **TRAINING)
    eventually(lambda: shared.job(job).first_step, "first step")
    for process in shared.everything():
        process.kill()
    shared.worker.wait(10)  # type: ignore[union-attr]
    assert "n6" in shared.node_ids()
    assert shared.run(end_block("default", "6", "block 6 is over: NODE_FAIL", backoff_seconds=0)) == 1
    assert shared.node_ids() == []
    (attempt,) = shared.attempts(job)
    assert (attempt.reason, attempt.message) == (StateReason.NODE_LOST, "block 6 is over: NODE_FAIL")
    assert violations(shared.store.client) == []
    shared.worker = shared._spawn(MONITOR, SHARDYARD_BLOCK="6", SHARDYARD_NODE="n6")
    assert shared.worker.wait(WARM_SECONDS) == 0, "a node of a block that is over ends"
    assert shared.node_ids() == []
    shared.cancel(job)


assert NODE == "n1"  # which the first block has
