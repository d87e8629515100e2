"""Quotas over HTTP: who sets them, who sees them, and how they are refused."""

import asyncio

import pytest

from api.background.file_quotas import FileQuotaCount
from jobs.model.settings import Settings
from jobs.store.accounts.tokens import Scope
from tests.integration.api.conftest import Api
from tests.support.samples.job_records import a_spec_body

pytestmark = [pytest.mark.integration, pytest.mark.anyio]


async def test_a_submit_over_the_quota_says_what_is_used_what_is_allowed_and_when_to_come_again(api: Api) -> None:
    api.node()
    answer = await api.client.put("/v1/quotas/default", json={"jobs": 1, "devices": 2})
    assert answer.status_code == 200
    await api.submit()
    refused = await api.client.post("/v1/jobs", json=a_spec_body())
    problem = refused.json()
    assert (refused.status_code, problem["code"]) == (429, "quota_exceeded")
    assert "uses 1 of the 1 jobs" in problem["detail"]
    assert int(refused.headers["retry-after"]) > 2
    never = await api.client.post("/v1/jobs", json=a_spec_body(3))
    assert (never.status_code, never.json()["code"]) == (403, "over_quota")
    shown = {limit["name"]: (limit["used"], limit["allowed"]) for limit in answer.json()["limits"]}
    assert shown["devices"] == (0, 2)
    (mine, token) = (await api.get("/v1/quota"))["quotas"]
    assert {limit["name"]: limit["used"] for limit in mine["limits"]}["jobs"] == 1
    assert token["token"] is not None
    assert {limit["used"] for limit in token["limits"]} == {None}, "it has no quota, so nothing is counted"


async def test_a_token_is_made_with_a_quota_which_goes_with_it(api: Api) -> None:
    api.node()
    wanted = {"name": "ci", "scopes": ["submit"], "quota": {"running": 0}}
    token = (await api.client.post("/v1/tokens", json=wanted)).json()
    mine = {"Authorization": f"Bearer {token['token']}"}
    refused = await api.client.post("/v1/jobs", json=a_spec_body(), headers=mine)
    assert (refused.status_code, refused.json()["code"]) == (403, "over_quota")
    path = f"/v1/quotas/default?token={token['id']}"
    assert (await api.client.put(path, json={"running": 5})).status_code == 200
    assert (await api.client.post("/v1/jobs", json=a_spec_body(), headers=mine)).status_code == 201
    wrong = await api.client.put(path, json={"bundle_bytes": 5, "file_bytes": 5})
    assert [each["field"] for each in wrong.json()["errors"]] == ["bundle_bytes", "file_bytes"]
    assert (await api.client.delete(f"/v1/tokens/{token['id']}")).status_code == 204
    assert api.control.client.hexists("sy:quotas", f"default/{token['id']}") == 0
    assert (await api.client.get(path)).status_code == 404


async def test_a_job_that_waits_for_a_quota_is_in_no_queue(api: Api) -> None:
    api.node()
    assert (await api.client.put("/v1/quotas/default", json={"running": 1})).status_code == 200
    first, second = await api.submit(), await api.submit()
    assert {job: (await api.get(f"/v1/jobs/{job}"))["state"] for job in (first, second)} == {
        first: "starting",
        second: "queued",
    }
    waiting = await api.get(f"/v1/jobs/{second}")
    assert (waiting["reason"]["code"], waiting["queue_position"]) == ("waiting_for_quota", None)
    assert "ahead" not in waiting["reason"]["message"]


async def test_files_of_jobs_count_until_the_jobs_are_deleted(api: Api, settings: Settings) -> None:
    api.node()
    assert (await api.client.put("/v1/quotas/default", json={"file_bytes": 100_000})).status_code == 200
    job = await api.submit()
    artifacts = settings.storage / "jobs" / "default" / job / "1" / "artifacts"
    (artifacts / "deep").mkdir(parents=True)
    for path in (artifacts / "model.pt", artifacts / "deep" / "log"):
        path.write_bytes(bytes(60_000))
    (artifacts / "loop").symlink_to(artifacts)
    await asyncio.to_thread(FileQuotaCount(api.control, settings.storage).count)
    refused = await api.client.post("/v1/jobs", json=a_spec_body())
    assert (refused.status_code, refused.json()["code"]) == (429, "quota_exceeded")
    assert "delete finished jobs" in refused.json()["detail"]
    assert (await api.client.post(f"/v1/jobs/{job}/cancel")).status_code in (200, 202)
    assert (await api.client.delete(f"/v1/jobs/{job}")).status_code == 204
    await asyncio.to_thread(FileQuotaCount(api.control, settings.storage).count)
    await api.submit()
    (mine, _) = (await api.get("/v1/quota"))["quotas"]
    assert {limit["name"]: limit["used"] for limit in mine["limits"]}["file_bytes"] < 100_000


async def test_quotas_of_tenants_are_the_operators_and_everybody_sees_their_own(api: Api) -> None:
    acme = api.token(Scope.ADMIN, tenant="acme")
    assert (await api.client.put("/v1/quotas/acme", json={"running": 5}, headers=acme)).status_code == 403
    assert (await api.client.get("/v1/quotas/default", headers=acme)).status_code == 403
    assert (await api.client.put("/v1/quotas/acme", json={"running": 2})).status_code == 200
    reader = api.token(Scope.READ, tenant="acme")
    (mine, _) = (await api.client.get("/v1/quota", headers=reader)).json()["quotas"]
    assert (mine["tenant"], {limit["name"]: limit["allowed"] for limit in mine["limits"]}["running"]) == ("acme", 2)
    assert (await api.client.get("/v1/quotas/acme", headers=reader)).status_code == 403
    assert (await api.client.delete("/v1/quotas/acme")).status_code == 204
    wrong = await api.client.put("/v1/quotas/acme", json={"runing": 2})
    assert wrong.json()["errors"][0]["message"] == "unknown field; did you mean 'running'?"


async def test_a_priority_above_zero_needs_its_scope_in_all_tenants_but_the_operators(api: Api) -> None:
    api.node()
    urgent = a_spec_body() | {"priority": 1}
    for scope, tenant, status in (
        (Scope.SUBMIT, "acme", 403),
        (Scope.PRIORITY, "acme", 201),
        (Scope.ADMIN, "acme", 201),
        (Scope.SUBMIT, "default", 201),
    ):
        answer = await api.client.post("/v1/jobs", json=urgent, headers=api.token(scope, tenant=tenant))
        assert answer.status_code == status, (scope, tenant)
    low = a_spec_body() | {"priority": -1}
    answer = await api.client.post("/v1/jobs", json=low, headers=api.token(Scope.SUBMIT, tenant="acme"))
    assert answer.status_code == 201
