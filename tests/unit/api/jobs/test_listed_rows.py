import json

import msgspec
import pytest

from api.jobs import listed_rows
from api.jobs.listed_rows import EncodedJobList, ListedRows
from api.schemas import views
from api.schemas.fleet_facts import FleetFacts
from jobs.model.state import JobState, StateReason
from shardyard.contract.responses import JobList, Progress
from tests.support.samples.job_records import a_job

FLEET = FleetFacts()


def test_a_list_of_encoded_rows_is_the_list_of_jobs() -> None:
    jobs = [a_job(), a_job(id="ended", state=JobState.FAILED, reason=StateReason.CODE_ERROR, attempt=1)]
    rows = ListedRows()
    encoded = EncodedJobList([rows.encode_row(job, None, None, FLEET) for job in jobs], "more")
    plain = JobList([views.listed_job(job, None, None, FLEET) for job in jobs], "more")
    assert msgspec.json.encode(encoded) == msgspec.json.encode(plain)


def test_the_row_of_a_job_that_has_ended_is_encoded_once() -> None:
    rows, job = ListedRows(), a_job(state=JobState.SUCCEEDED, reason=StateReason.COMPLETED)
    first = rows.encode_row(job, None, None, FLEET)
    assert rows.encode_row(job, None, None, FLEET) is first
    placed = a_job(state=JobState.SUCCEEDED, reason=StateReason.COMPLETED, node="host-a", leased=(0,), attempt=1)
    known = FleetFacts({"host-a": {0: "cuda:0"}})
    found = [json.loads(bytes(rows.encode_row(placed, None, None, fleet))) for fleet in (FLEET, known)]
    assert [row["placement"][0]["devices"] for row in found] == [["device:0"], ["cuda:0"]]


def test_a_job_that_runs_is_encoded_each_time() -> None:
    rows, job = ListedRows(), a_job(state=JobState.RUNNING, reason=StateReason.RUNNING, attempt=1)
    steps = [json.loads(bytes(rows.encode_row(job, None, Progress(step=step), FLEET))) for step in (3, 4)]
    assert [row["progress"]["step"] for row in steps] == [3, 4]


def test_so_many_rows_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listed_rows, "MAX_ROWS", 2)
    rows = ListedRows()
    jobs = [a_job(id=name, state=JobState.SUCCEEDED, reason=StateReason.COMPLETED) for name in "abc"]
    first, *_ = [rows.encode_row(job, None, None, FLEET) for job in jobs]
    assert rows.encode_row(jobs[2], None, None, FLEET) is rows.encode_row(jobs[2], None, None, FLEET)
    assert rows.encode_row(jobs[0], None, None, FLEET) is not first
