"""Disks that refuse."""

from pathlib import Path

import pytest

from jobs.files import paths
from jobs.files.identity import NONCE_FILE
from jobs.model.state import JobState, StateReason
from jobs.store import AttemptId
from tests.integration.workers.service import TENANT, Service, eventually, running_service

pytestmark = pytest.mark.integration


def test_a_supervisor_whose_log_cannot_be_written_does_its_work_all_the_same(service: Service) -> None:
    marks = service.marks(AttemptId(TENANT, "no-log", 1))
    marks.create()
    marks.log.symlink_to("/dev/full")
    job = service.submit("ddp", 2, name="no-log", fault="fork_daemon")
    assert service.ended(job).state is JobState.SUCCEEDED
    assert service.report(job)["final"]


def test_a_log_of_record_that_cannot_be_written_does_not_stop_the_run(service: Service) -> None:
    logs = paths.logs_dir(paths.attempt_dir(service.settings.storage, TENANT, "no-room", 1))
    logs.mkdir(parents=True)
    (logs / "device-0.log").symlink_to("/dev/full")
    job = service.submit("single", name="no-room", talks=True)
    assert service.ended(job).state is JobState.SUCCEEDED
    assert service.report(job)["final"]


def test_storage_that_cannot_be_written_is_named_and_the_job_runs_when_it_can(service: Service) -> None:
    blocked: Path = paths.job_dir(service.settings.storage, TENANT, "blocked")
    blocked.parent.mkdir(parents=True, exist_ok=True)
    blocked.touch()
    job = service.submit("ddp", 2, name="blocked")
    first = eventually(lambda: next((it for it in service.attempts(job) if it.reason), None), "its first attempt ends")
    blocked.unlink()
    assert first.reason is StateReason.START_FAILED
    assert str(blocked) in first.message
    assert service.ended(job).state is JobState.SUCCEEDED


@pytest.mark.slow
def test_a_node_whose_storage_is_no_longer_mounted_takes_no_work_until_it_is(tmp_path: Path) -> None:
    with running_service(tmp_path) as service:
        worker = service.worker
        assert worker is not None
        mark = service.settings.storage / NONCE_FILE
        mark.rename(mark.with_name("elsewhere"))
        assert worker.wait(60) == 2
        assert "check that it is mounted" in service.events("node_refused")[0]["why"]
        job = service.submit("single")
        mark.with_name("elsewhere").rename(mark)
        service.start_worker()
        assert service.ended(job).state is JobState.SUCCEEDED
        assert len(service.attempts(job)) == 1
