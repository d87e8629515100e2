"""Rows 18 and 19: disks that are full or fail, and writers that are killed in the middle."""

from pathlib import Path

import pytest

from jobs.files import paths
from jobs.model.state import JobState, StateReason
from tests.faults.inject.disk import fill
from tests.faults.inject.trace import failing_calls
from tests.faults.scene.machine import need
from tests.faults.scene.site import Site
from tests.integration.workers.service import eventually, is_dead

pytestmark = [pytest.mark.integration, pytest.mark.faults]


@pytest.mark.slow
def test_row_18_a_full_disk_costs_lines_that_are_named_and_neither_the_run_nor_the_api(cramped: Site) -> None:
    cramped.allow(may_drop=True)
    job = cramped.post("single", 1, steps=400, seconds=0.02, talks=True)
    eventually(lambda: cramped.steps_done(job) > 20, "steps")
    filler = fill(cramped.settings.storage)
    steps = cramped.caller.job(job)["progress"]["step"]
    eventually(lambda: cramped.caller.job(job)["progress"]["step"] > steps + 100, "steps on a full disk")
    assert cramped.caller.call("GET", f"/v1/jobs/{job}/logs").status_code == 200
    filler.unlink()
    assert cramped.finished(job, 60).state is JobState.SUCCEEDED
    assert cramped.report(job)["final"]
    cramped.is_sound()


@pytest.mark.slow
def test_row_18_a_job_that_starts_on_a_full_disk_fails_typed_and_the_next_one_runs(cramped: Site) -> None:
    cramped.allow(losses={StateReason.START_FAILED, StateReason.STORAGE_FAILED}, may_drop=True)
    filler = fill(cramped.settings.storage)
    job = cramped.post("single", 1, steps=2, limits={"max_retries": 0})
    eventually(lambda: cramped.attempts(job) and cramped.attempts(job)[0].reason, "its first attempt ends")
    first = cramped.attempts(job)[0]
    assert first.reason in (StateReason.START_FAILED, StateReason.STORAGE_FAILED)  # names may have room, bytes not
    filler.unlink()
    assert cramped.finished(job, 90).state is JobState.SUCCEEDED
    cramped.is_sound()


@pytest.mark.parametrize("calls", ["fsync", "rename"])
def test_row_18_a_report_that_the_disk_refuses_for_a_moment_is_written_after_that(
    site: Site, tmp_path: Path, calls: str
) -> None:
    need("strace")
    job = site.post("single", 1, fault="wait_for_the_test", talks=True)
    site.held(job)
    fault = "error=EIO:when=1..2"
    with failing_calls(site.supervisor(site.attempt(job)), calls, fault, log=tmp_path / "strace.log"):
        site.let_go(job)
        record = site.finished(job, 60)
        eventually(lambda: not site.held_by(job), "its devices are free")
    assert (tmp_path / "strace.log").read_text().count("(INJECTED)") == 2
    assert (record.state, record.attempt) == (JobState.SUCCEEDED, 1)
    assert list(site.files(job).glob(".report*")) == []
    assert site.report(job)["final"]


@pytest.mark.slow
def test_row_18_a_run_whose_report_cannot_be_written_has_failed_typed_and_its_next_attempt_succeeds(
    cramped: Site,
) -> None:
    cramped.allow(losses={StateReason.STORAGE_FAILED, StateReason.START_FAILED}, may_drop=True)
    job = cramped.post("single", 1, steps=150, seconds=0.02, talks=True)
    eventually(lambda: cramped.steps_done(job) > 20, "steps")
    filler = fill(cramped.settings.storage)
    eventually(lambda: cramped.attempts(job)[0].reason, "its first attempt ends", 60)
    first = cramped.attempts(job)[0]
    assert first.reason is StateReason.STORAGE_FAILED
    assert "No space left on device" in first.message
    shown = cramped.caller.job(job)
    assert (shown["state"], shown["reason"]["code"]) == ("queued", "backing_off")
    assert "storage_failed" in shown["reason"]["message"]
    assert cramped.caller.call("GET", f"/v1/jobs/{job}/logs").status_code == 200
    assert not list(cramped.files(job).glob("*report*"))
    filler.unlink()
    record = cramped.finished(job, 90)
    assert (record.state, record.retries) == (JobState.SUCCEEDED, 0)
    assert cramped.report(job, record.attempt)["final"]
    cramped.is_sound()


@pytest.mark.parametrize(
    "place",
    [pytest.param(place, marks=pytest.mark.slow) for place in ("written", "synced", "renamed")],
)
def test_row_19_a_supervisor_killed_while_it_writes_the_report_leaves_a_whole_one_or_none(
    site: Site, place: str
) -> None:
    site.allow(
        losses={StateReason.SUPERVISOR_LOST, StateReason.LEASE_EXPIRED, StateReason.NODE_LOST}
    )  # nobody is left to say which
    site.stop_worker()
    site.worker_environment = {"SHARDYARD_FAILPOINT": f"report.{place}:kill"}
    site.start_worker()
    job = site.post("single", 1, steps=40, seconds=0.03)
    eventually(lambda: site.job(job).started, "it runs")
    supervisor = site.supervisor(site.attempt(job))
    site.kill_worker()  # or it would start the next attempt with the same failpoint
    eventually(lambda: is_dead(supervisor), "its supervisor dies")
    site.worker_environment = {}
    assert paths.report_file(site.files(job)).exists() == (place == "renamed")
    site.start_worker()
    record = site.finished(job, 60)
    assert record.state is JobState.SUCCEEDED
    assert site.report(job, record.attempt)["final"]
