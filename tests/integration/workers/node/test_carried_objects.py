"""The same with a bucket as the storage: what a job leaves is there, and another node resumes from it."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.harness.s3 import variables_of
from jobs.files import checkpoints, paths
from jobs.files.log_page import read_page
from jobs.model.state import JobState
from jobs.storage.objects import ObjectStorage
from jobs.storage.remote import fetch_file
from tests.integration.workers.service import MODULE, NODE, TENANT, Service, eventually, running_service
from tests.integration.workers.supervisor.test_checkpoints import STEPS, commits, submit
from tests.support.servers.s3_server import MOTO, SEAWEEDFS, s3_bucket
from workers.carrier.journal import carried_attempts

pytestmark = [pytest.mark.integration, pytest.mark.slow]

URL = "s3://jobs/shardyard"


@pytest.fixture(scope="module", params=[MOTO, SEAWEEDFS])
def credentials(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    directory = tmp_path_factory.mktemp("s3")
    with s3_bucket(directory, "jobs", request.param) as endpoint, pytest.MonkeyPatch.context() as environment:
        for name, value in variables_of(endpoint).items():
            environment.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def carried(credentials: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(tmp_path_factory.mktemp("service"), MODULE, storage=URL) as service:
        yield service


def download(into: Path) -> None:
    """All of the bucket as files."""
    remote = ObjectStorage(URL)
    for path in remote.names("jobs"):
        (into / path).parent.mkdir(parents=True, exist_ok=True)
        fetch_file(remote, path, into / path)


def test_a_bucket_has_what_a_job_leaves_and_what_the_next_attempt_resumes_from(carried: Service) -> None:
    undisturbed = carried.ended(submit(carried))
    assert undisturbed.state is JobState.SUCCEEDED
    state_dir = carried.directory / "state" / NODE
    eventually(lambda: not list(carried_attempts(state_dir)), "all is carried")
    job = submit(carried, waits_at=50)
    held = carried.notes.with_name(f"held-{job}")
    eventually(held.exists, "it stands still")
    commits(carried, job, 40)
    os.kill(carried.supervisor(carried.attempt(job)), signal.SIGKILL)
    carried.let_go(job)
    kept = paths.checkpoints_dir(state_dir / "storage", TENANT, job)
    eventually(lambda: not carried.held_by(job), "it is lost")
    kept.rename(carried.directory / "what this node knew")

    def look() -> bool:
        carried.dispatch_jobs()
        return carried.job(job).attempt == 2

    eventually(look, "another attempt")
    record = carried.ended(job)
    assert (record.state, record.result) == (JobState.SUCCEEDED, undisturbed.result)
    eventually(lambda: not list(carried_attempts(state_dir)), "all is carried")
    arrived = carried.directory / "arrived"
    download(arrived)
    assert record.checkpoint is not None
    checkpoints.verify_checkpoint(paths.checkpoint_dir(arrived, TENANT, job, STEPS, 2), record.checkpoint["sha256"])
    page = read_page(paths.log_file(paths.attempt_dir(arrived, TENANT, job, 2), 0), limit=100_000)
    assert page.sealed
    assert any(b"resumed at step 40" in line.text for line in page.lines)
    assert paths.report_file(paths.attempt_dir(arrived, TENANT, job, 2)).exists()
