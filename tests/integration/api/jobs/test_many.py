"""Cancel many, submit again, drain."""

import asyncio
import time
from typing import Any

import pytest
import uuid_utils
from structlog.testing import capture_logs

from jobs import store
from jobs.store.accounts.tokens import Scope
from tests.integration.api.conftest import Api
from tests.integration.api.jobs.test_jobs import until_state
from tests.support.samples.job_records import a_spec, a_spec_body

pytestmark = [pytest.mark.integration, pytest.mark.anyio]


async def cancel(api: Api, **body: Any) -> Any:
    answer = await api.client.post("/v1/jobs/cancel", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def states(api: Api) -> dict[str, str]:
    return {job["id"]: job["state"] for job in (await api.get("/v1/jobs?limit=200"))["jobs"]}


async def test_all_jobs_of_a_filter_are_cancelled_and_no_others(api: Api) -> None:
    api.node(devices=1)
    await until_state(api, await api.submit(), "starting")
    mine = [await api.submit(labels={"team": "vision"}) for _ in range(3)]
    others = [await api.submit(labels={"team": "audio"}), await api.submit(name="digits")]
    assert await cancel(api, label="team=vision") == {"cancelled": 3, "cancelling": 0, "complete": True}
    found = await states(api)
    assert {found[job] for job in mine} == {"cancelled"}
    assert {found[job] for job in others} == {"queued"}
    assert await cancel(api, name="digits", pool="default") == {"cancelled": 1, "cancelling": 0, "complete": True}
    assert (await cancel(api, pool="elsewhere"))["cancelled"] == 0


async def test_all_means_waiting_and_running_jobs_of_this_tenant(api: Api) -> None:
    api.node(devices=2)
    running = await api.submit()
    await until_state(api, running, "starting")
    name = store.AttemptId("default", running, 1)
    assert api.control.run(store.claim(name, "c", "host-a")).granted
    api.control.run(store.record_milestone(name, "c", "running"))
    leased = await api.submit()
    await until_state(api, leased, "starting")
    waiting = await api.submit()
    theirs = await api.submit(headers=api.token(Scope.SUBMIT, tenant="rival"))
    done = await cancel(api, all=True)
    assert done == {"cancelled": 2, "cancelling": 1, "complete": True}
    found = await states(api)
    assert (found[leased], found[waiting], found[running]) == ("cancelled", "cancelled", "running")
    assert (await api.get(f"/v1/jobs/{running}"))["reason"]["code"] == "cancelling"
    assert (await api.get(f"/v1/jobs/{theirs}", headers=api.token(Scope.READ, tenant="rival")))["state"] != "cancelled"
    assert await cancel(api, all=True) == {"cancelled": 0, "cancelling": 0, "complete": True}


async def test_a_cancel_of_many_goes_through_chunks_of_any_size(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store.job_lists, "MAX_CANCELLED", 3)
    monkeypatch.setattr(store.job_lists, "MAX_CANCEL_SCANNED", 4)
    api.node(devices=1)
    jobs = [await api.submit(labels={"odd": str(number % 2)}) for number in range(20)]
    await until_state(api, jobs[0], "starting")
    assert (await cancel(api, label="odd=1", state="queued"))["cancelled"] == 10
    left = await states(api)
    assert [left[job] for job in jobs[1::2]] == ["cancelled"] * 10
    assert "cancelled" not in [left[job] for job in jobs[::2]]


async def test_a_cancel_that_runs_out_of_time_says_that_it_is_not_complete(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.jobs.service.CANCEL_SECONDS", -1)
    assert await cancel(api, all=True) == {"cancelled": 0, "cancelling": 0, "complete": False}


@pytest.mark.parametrize("body", [{}, {"all": True, "pool": "x"}, {"state": "failed"}, {"labels": "a=b"}])
async def test_a_cancel_that_does_not_say_which_is_refused(api: Api, body: dict[str, Any]) -> None:
    api.node(devices=1)
    job = await api.submit()
    answer = await api.client.post("/v1/jobs/cancel", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert (await api.get(f"/v1/jobs/{job}"))["cancel_requested"] is False


async def test_a_cancel_of_many_is_written_down_with_its_filter(api: Api) -> None:
    with capture_logs() as logs:
        await cancel(api, label="team=vision", state="queued")
    (entry,) = [entry for entry in logs if entry["event"] == "jobs_cancelled"]
    assert (entry["with_label"], entry["with_state"], entry["token"]) == ("team=vision", "queued", "admin")


async def test_a_resubmitted_job_has_the_same_spec_and_names_its_parent(api: Api) -> None:
    api.node()
    job = await api.submit(2, labels={"team": "vision"}, priority=5)
    answer = await api.client.post(f"/v1/jobs/{job}/resubmit")
    again = answer.json()
    assert answer.status_code == 201
    assert answer.headers["location"] == f"/v1/jobs/{again['id']}"
    assert (again["parent_id"], again["id"] != job) == (job, True)
    assert again["spec"] == (await api.get(f"/v1/jobs/{job}"))["spec"]
    assert (await api.get(f"/v1/jobs/{job}"))["parent_id"] is None


async def test_a_resubmit_that_is_repeated_with_its_key_makes_one_job(api: Api) -> None:
    api.node()
    job, other = await api.submit(), await api.submit()
    key = {"Idempotency-Key": "again"}
    first = await api.client.post(f"/v1/jobs/{job}/resubmit", headers=key)
    second = await api.client.post(f"/v1/jobs/{job}/resubmit", headers=key)
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["id"] == second.json()["id"]
    clash = await api.client.post(f"/v1/jobs/{other}/resubmit", headers=key)
    assert (clash.status_code, clash.json()["code"]) == (409, "idempotency_conflict")


async def test_a_resubmit_with_changes_is_refused_rather_than_ignoring_them(api: Api) -> None:
    api.node()
    job = await api.submit()
    answer = await api.client.post(f"/v1/jobs/{job}/resubmit", json={"priority": 3})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert len(await states(api)) == 1


async def test_a_drained_node_keeps_its_work_and_gets_no_more_until_it_is_undrained(api: Api) -> None:
    api.node(devices=2)
    running = await api.submit()
    await until_state(api, running, "starting")
    assert api.control.run(store.claim(store.AttemptId("default", running, 1), "c", "host-a")).granted
    drained = (await api.client.post("/v1/nodes/host-a/drain")).json()
    assert (drained["id"], drained["draining"]) == ("host-a", True)
    waiting = await api.submit()
    await asyncio.sleep(0.5)
    status = await api.get(f"/v1/jobs/{waiting}")
    assert (status["state"], status["reason"]["code"]) == ("queued", "no_live_node")
    assert (await api.get(f"/v1/jobs/{running}"))["state"] == "starting"
    api.node(devices=2)  # the worker was started again, on a host that is still being serviced
    assert (await api.get("/v1/nodes"))["nodes"][0]["draining"] is True
    assert (await api.client.delete("/v1/nodes/host-a/drain")).json()["draining"] is False
    await until_state(api, waiting, "starting")


async def test_a_node_that_is_not_there_cannot_be_drained(api: Api) -> None:
    for method in ("POST", "DELETE"):
        answer = await api.client.request(method, "/v1/nodes/nobody/drain")
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


async def test_a_plan_is_a_table_for_those_who_ask_for_text(api: Api) -> None:
    answer = await api.client.post("/v1/plan", json=a_spec_body(3), headers={"Accept": "text/plain"})
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert "strategy dp, 3 devices; 100 rows, batch size 30" in answer.text
    assert "[info] ragged-last-batch" in answer.text


async def test_a_plan_may_be_about_more_devices_than_there_are(api: Api) -> None:
    assert len((await api.client.post("/v1/plan", json=a_spec_body(9))).json()["patterns"][0]["rows"]) == 9


async def test_a_plan_of_unknown_data_shows_one_batch_and_says_why_no_more(api: Api) -> None:
    body = a_spec_body(3)
    body["program"]["data"] = {"ref": "my.data:Rows", "batch_size": 30}
    plan = (await api.client.post("/v1/plan", json=body)).json()
    assert plan["rows"] is None
    assert "known only when it is loaded" in plan["notes"]["rows"]
    assert [(pattern["rows"], pattern["steps"]) for pattern in plan["patterns"]] == [([10, 10, 10], None)]


@pytest.mark.slow
async def test_ten_thousand_waiting_jobs_are_cancelled_in_seconds_while_others_are_served(api: Api) -> None:
    api.node(devices=1)
    spec = a_spec(1)
    jobs = [str(uuid_utils.uuid7()) for _ in range(10_000)]
    for job in jobs:
        api.control.run(store.submit("default", job, spec))
    cancelling = asyncio.create_task(api.client.post("/v1/jobs/cancel", json={"all": True}))
    begun, waits = time.monotonic(), list[float]()
    while not cancelling.done():
        asked = time.monotonic()
        await api.get(f"/v1/jobs/{jobs[0]}")
        waits.append(time.monotonic() - asked)
    assert (await cancelling).json() == {"cancelled": 10_000, "cancelling": 0, "complete": True}
    assert time.monotonic() - begun < 10
    assert len(waits) > 20
    assert sorted(waits)[int(len(waits) * 0.99)] < 0.5
