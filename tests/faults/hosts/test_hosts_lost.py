"""Four hosts are lost one after the other until one is left, and come back: every job is accounted for."""

from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from jobs.model.records import JobRecord
from jobs.model.state import JobState, StateReason
from tests.faults.scene.host_service import LEASE_SECONDS, HostService, service_over_hosts
from tests.faults.scene.machine import need
from tests.integration.store.invariants import violations
from tests.integration.workers.service import eventually

pytestmark = [pytest.mark.integration, pytest.mark.faults, pytest.mark.slow]

HOSTS = 4
#: One job for each of these numbers of nodes: the last one waits from the beginning.
NODES_OF_JOBS = (2, 1, 1, 3)
TRAINING: dict[str, Any] = {"steps": 60, "checkpoint": {"every_steps": 10}}
STANDING_STILL = TRAINING | {"fault": "wait_for_the_test", "at_step": 35}
LOST = {StateReason.NODE_LOST, StateReason.LINK_LOST, StateReason.SUPERVISOR_LOST, StateReason.LEASE_EXPIRED}
PATIENCE_SECONDS = 8 * LEASE_SECONDS


def lose(hosts: HostService, node: str) -> None:
    """A host loses its power: all of its processes end at once, and nobody reaches it."""
    host = hosts.host(node)
    hosts.hosts.cut(host)
    for process in hosts.hosts.processes(host):
        with suppress(psutil.NoSuchProcess):
            process.kill()


def running_on(hosts: HostService, jobs: list[str], node: str) -> list[JobRecord]:
    found = [hosts.job(job) for job in jobs]
    return [job for job in found if job.state is JobState.RUNNING and node in {place.node for place in job.placement}]


def await_loss(hosts: HostService, victim: JobRecord) -> None:
    """Wait until the attempt that a job had is lost."""
    eventually(
        lambda: hosts.attempts(victim.id)[victim.attempt - 1].reason in LOST,
        f"the attempt of {victim.id} is lost",
        PATIENCE_SECONDS,
    )


def test_every_job_is_accounted_for_while_hosts_are_lost_one_by_one_and_when_they_are_back(tmp_path: Path) -> None:
    need("network namespaces")
    with service_over_hosts(tmp_path, HOSTS) as hosts, ExitStack() as cables:
        undisturbed = {count: hosts.ended(hosts.gang_of(count, **TRAINING)).result for count in set(NODES_OF_JOBS)}
        jobs = [hosts.gang_of(count, **STANDING_STILL) for count in NODES_OF_JOBS]
        for job in jobs[:-1]:
            hosts.held(job)
        for node in hosts.nodes[:0:-1]:
            victims = running_on(hosts, jobs, node)
            lose(hosts, node)
            cables.callback(hosts.hosts.join, hosts.host(node))
            for victim in victims:
                await_loss(hosts, victim)
                assert hosts.held_on(node, hosts.attempt(victim.id, victim.attempt)), "a lost host keeps its devices"
            assert violations(hosts.store.client) == []

        for job in jobs:
            hosts.let_go(job)
        alone = [job for job, count in zip(jobs, NODES_OF_JOBS, strict=True) if count == 1]
        waiting = [job for job in jobs if job not in alone]
        for job in alone:
            record = hosts.finished(job, PATIENCE_SECONDS)
            assert (record.state, record.result) == (JobState.SUCCEEDED, undisturbed[1]), record
        assert [hosts.job(job).state for job in waiting] == [JobState.QUEUED] * len(waiting)
        assert violations(hosts.store.client) == []

        cables.close()
        hosts.start_workers()
        for job in waiting:
            record = hosts.finished(job, PATIENCE_SECONDS)
            count = NODES_OF_JOBS[jobs.index(job)]
            assert (record.state, record.result) == (JobState.SUCCEEDED, undisturbed[count]), record
            assert record.retries == 0
        hosts.leaves_nothing()
