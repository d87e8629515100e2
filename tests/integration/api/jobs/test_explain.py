"""What a job waits for, over HTTP: the numbers, and what is not said of other tenants."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from jobs.store.accounts.tokens import Scope
from tests.integration.api.conftest import Api
from tests.integration.api.jobs.test_jobs import until_state
from tests.support.samples.job_records import JOB, a_spec_body

pytestmark = [pytest.mark.integration, pytest.mark.anyio]


async def test_a_waiting_job_is_explained_without_a_word_about_whose_the_others_are(api: Api) -> None:
    acme = api.token(Scope.SUBMIT, Scope.PRIORITY, tenant="acme")
    api.node(devices=2)
    theirs = await api.submit(2, headers=acme, name="secret-project")
    await until_state(api, theirs, "starting", headers=acme)
    urgent = await api.submit(1, headers=acme, name="secret-too", priority=7)
    mine = await api.submit(1, limits={"wall_seconds": 60})
    job = await api.submit(1)
    found = await api.get(f"/v1/jobs/{job}/explain")
    assert (found["state"], found["reason"]["code"], found["weight"]) == ("queued", "waiting_for_devices", 1.0)
    assert found["ahead"] == {"own": 1, "others": [1]}
    assert found["room"] == {
        "nodes": 1, "usable": 2, "free": 0, "largest_gap": 0, "own": 0, "others": 2, "quarantined": 0
    }  # fmt: skip
    assert (found["share"]["due_part"], found["share"]["devices"], found["kept"]) == (0.5, 0, None)
    latest = datetime.fromisoformat(found["start"]["latest_at"]) - datetime.now(UTC)
    assert timedelta(hours=23) < latest < timedelta(hours=25), "the wall limit of what has the devices"
    assert found["start"]["past_runs"] == 0
    assert found["summary"][0].startswith("queued: needs 1 in pool default")
    assert "before it: 1 job of yours, and of 1 other tenant 1" in found["summary"][2]
    for word in ("acme", "secret", theirs, urgent):
        assert word not in json.dumps(found)
    assert mine not in json.dumps(found)


async def test_a_job_that_runs_or_has_ended_is_explained_by_its_reason(api: Api) -> None:
    api.node()
    job = await api.submit()
    await until_state(api, job, "starting")
    found = await api.get(f"/v1/jobs/{job}/explain")
    assert (found["state"], found["ahead"], found["start"], len(found["summary"])) == ("starting", None, None, 1)
    api.run_to_end(job)
    found = await api.get(f"/v1/jobs/{job}/explain")
    assert (found["state"], found["reason"]["code"]) == ("succeeded", "completed")


async def test_another_tenants_job_is_not_explained(api: Api) -> None:
    api.node()
    job = await api.submit()
    answer = await api.client.get(f"/v1/jobs/{job}/explain", headers=api.token(Scope.READ, tenant="acme"))
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


async def test_a_job_is_suspended_and_resumed_over_http(api: Api) -> None:
    api.node(devices=1)
    runs = await api.submit()
    await until_state(api, runs, "starting")
    job = await api.submit()
    for _ in range(2):
        answer = await api.client.post(f"/v1/jobs/{job}/suspend")
        assert (answer.status_code, answer.json()["suspended"]) == (202, True)
    status = await api.get(f"/v1/jobs/{job}")
    assert (status["state"], status["reason"]["code"], status["queue_position"]) == ("queued", "suspended", None)
    assert "shardyard resume" in status["reason"]["message"]
    explained = await api.get(f"/v1/jobs/{job}/explain")
    assert (explained["ahead"], explained["start"]) == (None, None)
    answer = await api.client.post(f"/v1/jobs/{job}/resume")
    assert (answer.status_code, answer.json()["reason"]["code"]) == (202, "waiting_for_devices")
    api.run_to_end(runs)
    assert (await api.client.post(f"/v1/jobs/{runs}/suspend")).json()["code"] == "job_finished"
    await until_state(api, job, "starting")


async def test_a_job_that_waits_for_its_time_says_so(api: Api) -> None:
    api.node()
    job = await api.submit(start_after=3600)
    status = await api.get(f"/v1/jobs/{job}")
    assert (status["state"], status["reason"]["code"]) == ("queued", "waiting_for_time")
    left = datetime.fromisoformat(status["start_after"]) - datetime.now(UTC)
    assert timedelta(minutes=59) < left <= timedelta(minutes=60)
    summary = (await api.get(f"/v1/jobs/{job}/explain"))["summary"]
    assert summary[1] == f"it does not start before {status['start_after'][:19].replace('T', ' ')} UTC"


@pytest.mark.parametrize("wrong", [-1, 40_000_000, "tomorrow", "2026-01-31T20:00:00", True, [1]])
async def test_a_start_time_that_is_none_is_refused_with_its_field(api: Api, wrong: object) -> None:
    api.node()
    answer = await api.client.post("/v1/jobs", json=a_spec_body() | {"start_after": wrong})
    assert (answer.status_code, [error["field"] for error in answer.json()["errors"]]) == (422, ["start_after"])
    assert "offset from UTC" in answer.json()["errors"][0]["message"]


async def test_a_job_that_waits_for_others_names_them_and_has_no_estimate(api: Api) -> None:
    api.node()
    first = await api.submit()
    second = await api.submit(depends_on=[first])
    status = await api.get(f"/v1/jobs/{second}")
    assert (status["reason"]["code"], status["queue_position"]) == ("waiting_for_jobs", None)
    found = await api.get(f"/v1/jobs/{second}/explain")
    assert found["summary"] == [f"queued: it waits until job {first} has succeeded"]
    assert found["start"] is None
    listed = (await api.get("/v1/jobs"))["jobs"][0]
    assert listed["reason"]["message"] == f"it waits until job {first} has succeeded"


async def test_what_a_job_cannot_wait_for_is_named_and_a_resubmit_waits_for_nothing(api: Api) -> None:
    api.node()
    first = await api.submit()
    for wrong, field in (([JOB], "depends_on.0"), ([first, first], "depends_on"), (["x y"], "depends_on.0")):
        answer = await api.client.post("/v1/jobs", json=a_spec_body() | {"depends_on": wrong})
        assert (answer.status_code, [error["field"] for error in answer.json()["errors"]]) == (422, [field])
    second = await api.submit(depends_on=[first])
    again = (await api.client.post(f"/v1/jobs/{second}/resubmit")).json()
    assert "depends_on" not in again["spec"]
    assert again["reason"]["code"] != "waiting_for_jobs"
