"""Row 29: the release before and this one in one service, as while it is upgraded."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.model.state import JobState, StateReason
from tests.faults.inject import processes
from tests.faults.inject.releases import unpack_previous
from tests.faults.scene.machine import need
from tests.faults.scene.site import Site, running_site
from tests.integration.workers.service import eventually

pytestmark = [pytest.mark.integration, pytest.mark.faults, pytest.mark.slow]


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the release before is."""
    need("previous release")
    return unpack_previous(tmp_path_factory.mktemp("releases") / "before")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A service of which nothing runs yet but Redis."""
    with running_site(tmp_path, worker=False, api=False) as site:
        yield site


def within(directory: Path) -> list[str]:
    """What goes before a command that is to find its packages in `directory`."""
    return ["env", "-C", str(directory)]


def is_of(directory: Path, pid: int) -> bool:
    return Path(f"/proc/{pid}/cwd").resolve() == directory.resolve()


def all_kinds_run(site: Site) -> None:
    """Check that every kind of job runs, fails, outlives its supervisor, is cancelled, and what HTTP shows of it."""
    jobs = {strategy: site.post(strategy, 2, steps=3) for strategy in ("dp", "ddp")}
    jobs["single"] = site.post("single", 1, steps=3, talks=True)
    jobs["script"] = site.post_script("print('hello')")
    site.all_ended(list(jobs.values()), 120)
    for kind, job in jobs.items():
        shown = site.caller.job(job)
        assert (kind, shown["state"], shown["reason"]["code"]) == (kind, "succeeded", "completed")
        assert site.caller.insist("GET", f"/v1/jobs/{job}/splits").status_code == 200
        assert site.caller.insist("GET", f"/v1/jobs/{job}/logs").status_code == 200
        assert len(site.caller.insist("GET", f"/v1/jobs/{job}/attempts").json()["attempts"]) == 1
    failing = site.post("single", 1, fault="raise_error", limits={"max_retries": 1})
    record = site.finished(failing, 60)
    assert (record.state, record.reason, record.attempt) == (JobState.FAILED, StateReason.CODE_ERROR, 2)
    lost = site.running("ddp", 2)
    processes.kill(site.supervisor(site.attempt(lost)))
    site.reaches(lost, JobState.RUNNING, attempt=2, seconds=60)
    assert site.caller.insist("POST", f"/v1/jobs/{lost}/cancel").status_code == 202
    assert site.finished(lost).state is JobState.CANCELLED
    site.allow(losses={StateReason.SUPERVISOR_LOST})


def test_row_29_an_old_worker_serves_a_new_api_and_its_runs_outlive_the_upgrade(site: Site, before: Path) -> None:
    site.api.start()
    site.worker_prefix = within(before)
    site.start_worker()
    assert site.worker is not None
    assert is_of(before, site.worker.pid)
    all_kinds_run(site)

    record = site.finished(site.post_script("print('hello')", keep=["*.pt"]))
    assert (record.state, record.reason) == (JobState.FAILED, StateReason.REJECTED_BY_WORKER)
    assert "program" in record.message
    assert "keep" in record.message

    training = site.running("ddp", 2, steps=1500, seconds=0.02, talks=True)
    supervisor = site.supervisor(site.attempt(training))
    assert is_of(before, supervisor)
    site.stop_worker()
    site.worker_prefix = []
    site.start_worker()
    steps = site.steps_done(training)
    eventually(lambda: site.steps_done(training) > steps + 10, "it trains on")
    assert site.finished(training, 90).state is JobState.SUCCEEDED
    assert site.job(training).attempt == 1
    assert site.finished(site.post_script("print('hello')", keep=["*.pt"])).state is JobState.SUCCEEDED
    site.is_sound()


def test_row_29_an_old_api_serves_new_workers_and_what_they_have_written_is_read_by_a_new_one(
    site: Site, before: Path
) -> None:
    site.api.prefix = within(before)
    site.api.start()
    site.start_worker()
    assert is_of(before, site.api.pid)
    all_kinds_run(site)
    training = site.running("ddp", 2, steps=300, seconds=0.02, talks=True)
    site.api.end()
    site.api.prefix = []
    site.api.start()
    shown = site.caller.job(training)
    assert (shown["state"], shown["attempt"]) == ("running", 1)
    assert site.finished(training, 90).state is JobState.SUCCEEDED
    site.is_sound()


def test_row_29_processes_of_another_format_do_not_start_and_say_why(site: Site) -> None:
    with site.server.client() as control:
        control.set("sy:format", "2")
    site.api.spawn()
    site.spawn_worker()
    assert site.api.process is not None
    assert site.worker is not None
    assert (site.api.process.wait(40), site.worker.wait(40)) != (0, 0)
    for log in (site.api.log.read_text(), site.worker_log()):
        assert "keys of format 2, and this version of the service knows 1" in log
