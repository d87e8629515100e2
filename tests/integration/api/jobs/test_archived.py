"""Jobs that Redis has forgotten: they can be read, listed, repeated and deleted all the same."""

from pathlib import Path
from typing import Any

import pytest

from api.background import bundle_gc, retention
from jobs.files import paths
from jobs.files.log_file import LineRun, LogWriter
from jobs.files.metric_file import MetricWriter
from jobs.protocol.records import MetricSample
from jobs.store.accounts.tokens import Scope
from tests.integration.api.conftest import Api
from tests.integration.api.jobs.test_bundles import kept, script, upload
from tests.integration.api.jobs.test_jobs import until_state
from tests.support.samples.job_records import a_spec

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

REPORT = Path(__file__).parents[4] / "docs" / "examples" / "rows-on-1-device.json"
PARTS = ("", "/attempts", "/splits", "/logs", "/metrics", "/artifacts", "/artifacts/artifacts/weights")


def archive(api: Api) -> None:
    assert not retention.sweep_finished_jobs(api.control, api.storage, 1e-6, 0)


async def a_finished_job(api: Api, **request: Any) -> str:
    """One that printed a line, counted something, and left a report and a file."""
    answer = await api.client.post("/v1/jobs", json=a_spec().model_dump(mode="json"), **request)
    assert answer.status_code == 201, answer.text
    job = str(answer.json()["id"])
    await until_state(api, job, "starting")
    directory = paths.attempt_dir(api.storage, "default", job, 1)
    paths.logs_dir(directory).mkdir(parents=True)
    paths.artifacts_dir(directory).mkdir()
    (paths.artifacts_dir(directory) / "weights").write_bytes(b"weights")
    log = LogWriter(paths.log_file(directory, 0))
    log.append([LineRun("stdout", 0, 1, 1000.0, 0, [b"hello"])])
    log.seal()
    metrics = MetricWriter(paths.metrics_file(directory))
    metrics.append([MetricSample(0, "loss", 1, 0.5, 1000.0)])
    paths.report_file(directory).write_bytes(REPORT.read_bytes())
    api.run_to_end(job)
    return job


async def answers(api: Api, job: str) -> dict[str, Any]:
    found = {}
    for part in PARTS:
        answer = await api.client.get(f"/v1/jobs/{job}{part}")
        assert answer.status_code == 200, f"{part}: {answer.text}"
        found[part] = answer.content if "weights" in part else answer.json()
    return found


async def test_an_archived_job_answers_as_it_did_and_says_that_it_is_archived(api: Api) -> None:
    api.node()
    job = await a_finished_job(api)
    before = await answers(api, job)
    assert not before[""].pop("archived")
    archive(api)
    assert api.control.client.exists(f"sy:job:default/{job}") == 0
    after = await answers(api, job)
    assert after[""].pop("archived")
    assert after == before
    waited = await api.get(f"/v1/jobs/{job}?wait=30")
    assert (waited["state"], waited["owner"]) == ("succeeded", "operator")
    assert (await api.get("/v1/jobs/table?archived=true&columns=owner"))["values"] == [["operator"]]


async def test_lists_leave_archived_jobs_out_until_they_are_asked_for(api: Api) -> None:
    api.node()
    old = [await a_finished_job(api) for _ in range(3)]
    archive(api)
    new = await api.submit()
    assert [job["id"] for job in (await api.get("/v1/jobs"))["jobs"]] == [new]
    first = await api.get("/v1/jobs?archived=true&limit=2")
    assert [job["id"] for job in first["jobs"]] == old[:0:-1]
    assert all(job["archived"] for job in first["jobs"])
    rest = await api.get(f"/v1/jobs?archived=true&limit=2&cursor={first['next']}")
    assert ([job["id"] for job in rest["jobs"]], rest["next"]) == (old[:1], None)
    assert (await api.get("/v1/jobs?archived=true&state=failed"))["jobs"] == []
    answer = await api.client.get("/v1/jobs?archived=true&state=succeeded&pool=default")
    assert len(answer.json()["jobs"]) == 3


async def test_an_archived_job_of_another_tenant_is_not_found(api: Api) -> None:
    api.node()
    job = await a_finished_job(api)
    archive(api)
    other = api.token(Scope.READ, Scope.SUBMIT, tenant="other")
    for part in PARTS:
        assert (await api.client.get(f"/v1/jobs/{job}{part}", headers=other)).status_code == 404
    assert (await api.client.delete(f"/v1/jobs/{job}", headers=other)).status_code == 404
    assert (await api.client.get("/v1/jobs?archived=true", headers=other)).json()["jobs"] == []
    assert (await api.get(f"/v1/jobs/{job}"))["archived"]


async def test_an_archived_job_cannot_be_cancelled(api: Api) -> None:
    api.node()
    job = await a_finished_job(api)
    archive(api)
    answer = await api.client.post(f"/v1/jobs/{job}/cancel")
    assert (answer.status_code, answer.json()["code"]) == (409, "job_finished")


async def test_a_cancel_is_answered_the_same_again_also_when_the_job_is_archived_meanwhile(api: Api) -> None:
    api.node()
    job = await api.submit(devices=4)
    for is_archived in (False, False, True):
        if is_archived:
            archive(api)
        answer = await api.client.post(f"/v1/jobs/{job}/cancel")
        assert (answer.status_code, answer.json()["state"]) == (202, "cancelled")
        assert answer.json()["archived"] is is_archived


async def test_an_archived_job_is_submitted_again(api: Api) -> None:
    api.node()
    job = await a_finished_job(api)
    archive(api)
    answer = await api.client.post(f"/v1/jobs/{job}/resubmit")
    assert answer.status_code == 201
    assert (answer.json()["parent_id"], answer.json()["archived"]) == (job, False)


async def test_the_code_of_an_archived_job_is_kept_only_as_long_as_any_other(api: Api) -> None:
    api.node()
    await upload(api)
    job = await api.submit(**script())
    assert (await api.client.post(f"/v1/jobs/{job}/cancel")).status_code == 202
    archive(api)
    again = await api.client.post(f"/v1/jobs/{job}/resubmit")
    assert again.status_code == 201
    assert (await api.client.post(f"/v1/jobs/{again.json()['id']}/cancel")).status_code == 202
    archive(api)
    bundle_gc.sweep_bundles(api.control, api.storage, 0)
    assert kept(api) == []
    refused = await api.client.post(f"/v1/jobs/{job}/resubmit")
    assert (refused.status_code, refused.json()["code"]) == (422, "unknown_bundle")
    await upload(api)
    assert (await api.client.post(f"/v1/jobs/{job}/resubmit")).status_code == 201


async def test_a_repeated_submit_finds_the_job_that_is_archived_by_now(api: Api) -> None:
    api.node()
    key = {"Idempotency-Key": "k"}
    job = await a_finished_job(api, headers=key)
    archive(api)
    again = await api.client.post("/v1/jobs", json=a_spec().model_dump(mode="json"), headers=key)
    assert (again.status_code, again.json()["id"], again.json()["archived"]) == (200, job, True)
    assert (await api.client.delete(f"/v1/jobs/{job}")).status_code == 204
    anew = await api.client.post("/v1/jobs", json=a_spec().model_dump(mode="json"), headers=key)
    assert anew.status_code == 201


async def test_a_deleted_archived_job_leaves_nothing(api: Api) -> None:
    api.node()
    job = await a_finished_job(api)
    archive(api)
    assert (await api.client.delete(f"/v1/jobs/{job}")).status_code == 204
    assert (await api.client.get(f"/v1/jobs/{job}")).status_code == 404
    assert (await api.client.delete(f"/v1/jobs/{job}")).status_code == 404
    assert (await api.get("/v1/jobs?archived=true"))["jobs"] == []
    assert list(api.storage.rglob(f"*{job}*")) == []
