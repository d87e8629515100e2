"""Rows 31 to 40: jobs over hosts that lose processes, their network, Redis, or each other."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from jobs.model.state import JobState, StateReason
from jobs.scheduling.scheduler import JobScheduler
from jobs.store import Hint
from tests.faults.inject import processes
from tests.faults.inject.disk import small_disk
from tests.faults.scene.host_service import LEASE_SECONDS, HostService, service_over_hosts
from tests.faults.scene.machine import need
from tests.integration.workers.service import WARM_SECONDS, eventually, is_dead
from tests.integration.workers.two_nodes import end_process

pytestmark = [pytest.mark.integration, pytest.mark.faults]

#: All ranks of all hosts are dead so soon after the first one's death, beside the grace that handlers have.
ALL_DEAD_SECONDS = 3.0
#: A link that has been silent for so long counts as broken, with these leases.
SILENCE_SECONDS = 7.0
#: How much later than it should something may happen on a busy machine.
LENIENCY_SECONDS = 5.0
#: Nodes whose own directory is on a disk that a test can fill.
SMALL, SMALL_SIZE = ("n2", "n3"), "192m"
STEPS, EVERY, HELD_AT = 60, 10, 35
TRAINING: dict[str, Any] = {"steps": STEPS, "checkpoint": {"every_steps": EVERY}}
STANDING_STILL = TRAINING | {"fault": "wait_for_the_test", "at_step": HELD_AT}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostService]:
    need("network namespaces", "mounts")
    directory = tmp_path_factory.mktemp("hosts")
    with ExitStack() as stack:
        for node in SMALL:
            stack.enter_context(small_disk(directory / "state" / node, SMALL_SIZE))
        yield stack.enter_context(service_over_hosts(directory, 3))


@pytest.fixture
def hosts(shared: HostService) -> Iterator[HostService]:
    """Three hosts, which tests share. Each leaves them as it found them."""
    yield shared
    try:
        shared.leaves_nothing()
    finally:
        shared.restore()


@pytest.fixture(scope="module")
def undisturbed(shared: HostService) -> Any:
    """The result of a job over two hosts that nothing happens to."""
    return shared.ended(shared.gang("ddp", 1, **TRAINING)).result


def held(hosts: HostService) -> str:
    """A job over two hosts that has saved checkpoints and stands still in a step, until the test lets it go."""
    job = hosts.gang("ddp", 1, **STANDING_STILL)
    hosts.held(job)
    eventually(lambda: (found := hosts.job(job).checkpoint) and found["step"] > HELD_AT - 2 * EVERY, "a checkpoint")
    assert len(hosts.everyone(job)) == 2
    return job


def talking(hosts: HostService) -> str:
    """A job over two hosts that trains for long, and prints its steps."""
    job = hosts.long("ddp", 1, nodes=2, talks=True)
    assert hosts.job(job).attempt == 1
    return job


def resumes(hosts: HostService, job: str, undisturbed: Any, *reasons: StateReason, seconds: float = 60.0) -> None:
    """Check that the first attempt of a job that stood still was lost so, and that its last one has gone on from a
    checkpoint to the same result."""
    record = hosts.ended(job, seconds)
    assert record.state is JobState.SUCCEEDED, record
    assert record.result == undisturbed
    attempts = hosts.attempts(job)
    assert attempts[0].reason in reasons, attempts[0]
    assert attempts[-1].resumed is not None
    assert record.retries == 0


# -- 31, 32: processes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("row", "part"), [(31, 1), (32, 0)])
def test_rows_31_and_32_a_supervisor_that_is_killed_takes_all_ranks_along_and_the_job_resumes(
    hosts: HostService, undisturbed: Any, row: int, part: int
) -> None:
    job = held(hosts)
    everyone = hosts.everyone(job)
    end_process(hosts.supervisor_on(hosts.part_of(job, part), hosts.attempt(job)))
    eventually(lambda: all(map(is_dead, everyone)), "all ranks are dead", ALL_DEAD_SECONDS + LENIENCY_SECONDS)
    hosts.let_go(job)
    resumes(hosts, job, undisturbed, StateReason.SUPERVISOR_LOST)


@pytest.mark.slow
@pytest.mark.parametrize(("row", "part"), [(31, 1), (32, 0)])
def test_rows_31_and_32_a_rank_that_is_killed_ends_all_and_a_retry_resumes(
    hosts: HostService, undisturbed: Any, row: int, part: int
) -> None:
    job = held(hosts)
    everyone, node = hosts.everyone(job), hosts.part_of(job, part)
    (victim,) = hosts.ranks_on(node, hosts.attempt(job))
    end_process(victim)
    patience = ALL_DEAD_SECONDS + hosts.settings.grace_seconds + LENIENCY_SECONDS
    eventually(lambda: all(map(is_dead, everyone)), "all ranks are dead", patience)
    eventually(lambda: hosts.attempts(job)[0].reason, "the attempt has ended")
    first = hosts.attempts(job)[0]
    assert first.reason is StateReason.RANK_FAILED
    assert f"on node {node} was killed by SIGKILL" in first.message
    hosts.let_go(job)
    hosts.ended(job)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["worker", "forkserver"])
def test_rows_31_and_32_workers_and_forkservers_that_are_killed_leave_the_training_alone(
    hosts: HostService, undisturbed: Any, victim: str
) -> None:
    job = held(hosts)
    everyone, warmed = hosts.everyone(job), len(hosts.events("forkserver_warm"))
    for place in hosts.job(job).placement:
        worker = hosts.workers[place.node]
        processes.kill(worker.pid if victim == "worker" else processes.forkserver(worker.pid))
        if victim == "worker":
            worker.wait(10)
    assert hosts.everyone(job) == everyone
    hosts.let_go(job)
    record = hosts.ended(job)
    assert (record.state, record.attempt, record.result) == (JobState.SUCCEEDED, 1, undisturbed)
    hosts.start_workers()
    eventually(lambda: len(hosts.events("forkserver_warm")) >= warmed + 2, "both are warm again", WARM_SECONDS)


# -- 33, 34: the network -----------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_row_33_a_cable_that_is_out_for_five_seconds_costs_no_attempt(hosts: HostService, part: int) -> None:
    job = talking(hosts)
    with hosts.hosts.without(hosts.host(hosts.part_of(job, part))):
        time.sleep(5.0)
        steps = hosts.steps_done(job)
    eventually(lambda: hosts.steps_done(job) > steps + 20, "it trains on")
    assert hosts.attempts(job)[0].reason is None
    hosts.cancel(job)
    assert hosts.ended(job).attempt == 1


@pytest.mark.slow
@pytest.mark.parametrize("part", [0, 1])
def test_row_33_a_host_that_is_cut_off_kills_its_ranks_and_keeps_its_devices_until_it_is_back(
    hosts: HostService, undisturbed: Any, part: int
) -> None:
    job = held(hosts)
    attempt, node, everyone = hosts.attempt(job), hosts.part_of(job, part), hosts.everyone(job)
    spare = hosts.spare_node(job)
    with hosts.hosts.without(hosts.host(node)):
        eventually(lambda: all(map(is_dead, everyone)), "all ranks are dead", SILENCE_SECONDS + LENIENCY_SECONDS)
        hosts.let_go(job)
        record = hosts.finished(job, 4 * LEASE_SECONDS)
        assert hosts.held_on(node, attempt), "its devices are leased until they are proven free"
        assert node not in {place.node for place in record.placement}
        assert spare in {place.node for place in record.placement}
        first = hosts.attempts(job)[0]
        assert first.reason is StateReason.NODE_LOST, first
        assert node in first.message
    eventually(lambda: not hosts.held_on(node, attempt), "its devices are free", 2 * LEASE_SECONDS)
    resumes(hosts, job, undisturbed, StateReason.NODE_LOST)


@pytest.mark.slow
def test_row_34_hosts_that_do_not_reach_each_other_are_named_and_the_job_resumes(
    hosts: HostService, undisturbed: Any
) -> None:
    job = held(hosts)
    nodes, everyone = [place.node for place in hosts.job(job).placement], hosts.everyone(job)
    with hosts.hosts.cut_between(*map(hosts.host, nodes)):
        eventually(lambda: all(map(is_dead, everyone)), "all ranks are dead", SILENCE_SECONDS + LENIENCY_SECONDS)
        hosts.let_go(job)
        eventually(lambda: hosts.attempts(job)[0].reason, "the attempt has ended")
        first = hosts.attempts(job)[0]
        assert first.reason is StateReason.LINK_LOST, first
        assert all(node in first.message for node in nodes)
        resumes(hosts, job, undisturbed, StateReason.LINK_LOST, seconds=90)
        assert sorted(place.node for place in hosts.job(job).placement) != sorted(nodes)


# -- 35 to 37: hosts that freeze, hints, and parts that are not claimed --------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("part", [0, 1])
def test_row_35_nothing_counts_that_a_host_does_which_was_frozen_past_its_lease(
    hosts: HostService, undisturbed: Any, part: int
) -> None:
    job = held(hosts)
    attempt, node = hosts.attempt(job), hosts.part_of(job, part)
    ranks = hosts.ranks_on(node, attempt)
    assert ranks
    with hosts.frozen(node):
        eventually(lambda: hosts.attempts(job)[0].reason, "the attempt is lost", 3 * LEASE_SECONDS)
        hosts.let_go(job)
        record = hosts.finished(job, 2 * LEASE_SECONDS)
        assert not any(map(is_dead, ranks)), "they stand still"
        assert hosts.held_on(node, attempt), "its devices are leased until they are proven free"
    eventually(lambda: all(map(is_dead, ranks)), "its ranks are dead", LENIENCY_SECONDS)
    eventually(lambda: not hosts.held_on(node, attempt), "its devices are free", LEASE_SECONDS)
    assert hosts.job(job) == record
    resumes(hosts, job, undisturbed, StateReason.NODE_LOST)


class LosingHints:
    """Sends no hint to one node."""

    def __init__(self, hosts: HostService) -> None:
        self._hosts = hosts
        self.lost: Hint | None = None

    def send(self, hint: Hint) -> None:
        if self.lost is None:
            self.lost = hint
        else:
            self._hosts.send(hint)


@pytest.mark.slow
def test_row_36_hints_that_are_lost_doubled_or_late_have_no_effect(hosts: HostService, undisturbed: Any) -> None:
    sender = LosingHints(hosts)
    with ExitStack() as stack:
        for worker in hosts.workers.values():  # none of them sends it meanwhile
            stack.enter_context(processes.frozen(worker.pid))
        job = hosts.enqueue("ddp", 1, nodes=2, **STANDING_STILL)
        JobScheduler(hosts.store, sender, hosts.settings, listen=False).dispatch_jobs()
    assert sender.lost is not None
    hosts.held(job)
    attempt, everyone = hosts.attempt(job), hosts.everyone(job)
    hints = [Hint(place.node, attempt) for place in hosts.job(job).placement]
    assert sender.lost in hints
    for hint in hints * 2:
        hosts.send(hint)
    hosts.let_go(job)
    assert hosts.everyone(job) == everyone
    record = hosts.ended(job)
    assert (record.state, record.attempt, record.result) == (JobState.SUCCEEDED, 1, undisturbed)
    for hint in hints:
        hosts.send(hint)
    after = hosts.ended(hosts.gang("ddp", 1, steps=2))  # their workers take hints in the order in which they were sent
    assert after.state is JobState.SUCCEEDED
    assert hosts.job(job) == record


@pytest.mark.slow
def test_row_37_a_part_that_nobody_claims_costs_the_job_nothing_and_its_node_is_avoided(hosts: HostService) -> None:
    other = hosts.submit("single", 1, fault="wait_for_the_test")
    hosts.held(other)
    (busy,) = (place.node for place in hosts.job(other).placement)
    absent = next(node for node in hosts.nodes if node != busy)
    with processes.frozen(hosts.workers[absent].pid):
        job = hosts.gang("ddp", 1)
        assert {place.node for place in hosts.job(job).placement} == set(hosts.nodes) - {busy}
        hosts.let_go(other)
        record = hosts.ended(job)
        assert record.state is JobState.SUCCEEDED, record
        assert {place.node for place in record.placement} == set(hosts.nodes) - {absent}
        assert (record.attempt, record.retries, record.losses) == (2, 0, 0)
        first = hosts.attempts(job)[0]
        assert first.reason in (StateReason.LEASE_EXPIRED, StateReason.NODE_LOST)  # its worker is silent, too
        assert absent in first.message
    hosts.ended(other)


# -- 39, 40: Redis, disks ------------------------------------------------------------------------------------


def trains_on_without_redis(hosts: HostService, seconds: float) -> None:
    job = hosts.long("ddp", 1, nodes=3, talks=True, seconds=0.1)
    steps = hosts.steps_done(job)
    hosts.server.kill()
    try:
        until = time.monotonic() + seconds
        eventually(lambda: hosts.steps_done(job) > steps + 20, "steps while Redis is away")
        time.sleep(max(0.0, until - time.monotonic()))
        steps = hosts.steps_done(job)
    finally:
        hosts.server.start()
    eventually(lambda: hosts.steps_done(job) > steps + 20, "steps afterwards")
    heartbeat = hosts.attempts(job)[0].heartbeat
    eventually(lambda: hosts.attempts(job)[0].heartbeat > heartbeat, "it sends heartbeats again")
    hosts.cancel(job)
    assert hosts.ended(job).attempt == 1


@pytest.mark.slow
def test_row_39_training_over_three_hosts_goes_on_while_redis_is_away_for_half_the_lease(hosts: HostService) -> None:
    trains_on_without_redis(hosts, LEASE_SECONDS / 2)


@pytest.mark.slow
def test_row_39_training_over_three_hosts_goes_on_while_redis_is_away_for_a_minute(tmp_path: Path) -> None:
    need("network namespaces")
    with service_over_hosts(tmp_path, 3, lease_seconds=100.0) as patient:
        trains_on_without_redis(patient, 60.0)
        patient.leaves_nothing()


WRITES = """
import sys, time, torch.distributed as dist
from pathlib import Path
dist.init_process_group("gloo")
while not Path(sys.argv[1]).exists():
    time.sleep(0.01)
with open("file", "wb", buffering=0) as file:
    for _ in range(40):
        file.write(bytes(1 << 16))
        file.write(b"x")
        time.sleep(0.05)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_row_40_a_full_disk_of_a_host_that_does_not_lead_costs_the_job_nothing(hosts: HostService) -> None:
    sign = hosts.directory / "write"
    job = hosts.run_script({"train.py": WRITES}, str(sign), strategy="ddp", nodes=3)
    hosts.reaches(job, JobState.RUNNING)
    node = next(place.node for place in hosts.job(job).placement[1:] if place.node in SMALL)
    path = hosts.settings.state_dir / node / "filler"
    with path.open("wb", buffering=0) as filler:

        def keep_full() -> StateReason | None:
            """The node makes room again and again."""
            size = 1 << 20
            while size:
                try:
                    filler.write(bytes(size))
                except OSError:
                    size //= 2
            sign.touch()
            return hosts.attempts(job)[0].reason

        eventually(keep_full, "the attempt has ended")
    path.unlink()
    first = hosts.attempts(job)[0]
    assert first.reason is StateReason.STORAGE_LOW, first
    assert f"a disk of node {node} had too little free space" in first.message
    record = hosts.ended(job, 90)
    assert (record.state, record.retries, record.losses) == (JobState.SUCCEEDED, 0, 0), record


@pytest.mark.slow
def test_row_40_shared_storage_that_is_away_for_a_while_costs_no_result(hosts: HostService, undisturbed: Any) -> None:
    need("mounts")
    job = held(hosts)
    with small_disk(hosts.settings.storage, "64k"):
        hosts.let_go(job)
        time.sleep(30.0)
    record = hosts.ended(job, 90)
    assert (record.state, record.result) == (JobState.SUCCEEDED, undisturbed), record
    assert record.retries == 0
