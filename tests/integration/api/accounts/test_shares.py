"""Shares of tenants over HTTP: who sets a weight, who sees what, and what it does to the order."""

from typing import Any

import pytest

from jobs.store.accounts.tokens import Scope
from tests.integration.api.conftest import Api
from tests.integration.api.jobs.test_jobs import until_state

pytestmark = [pytest.mark.integration, pytest.mark.anyio]


async def test_a_weight_decides_among_tenants_that_have_used_equally_much(api: Api) -> None:
    acme = api.token(Scope.SUBMIT, tenant="acme")
    api.node(devices=1)
    running = await api.submit()
    await until_state(api, running, "starting")
    ours, theirs = await api.submit(), await api.submit(headers=acme)
    now, _ = api.control.client.time()
    accounts: dict[Any, Any] = {"default": f"100.0 {now}000000 1", "acme": f"100.0 {now}000000 0"}
    api.control.client.hset("sy:use:default", mapping=accounts)
    answer = await api.client.put("/v1/shares/acme", json={"weight": 2})
    (pool,) = answer.json()["pools"]
    assert (answer.json()["weight"], pool["used_part"], pool["due_part"]) == (2.0, pytest.approx(0.5, abs=0.05), 0.6667)
    api.run_to_end(running)
    await until_state(api, theirs, "starting", headers=acme)
    assert (await api.get(f"/v1/jobs/{ours}"))["state"] == "queued"


async def test_a_tenant_sees_its_own_share_and_only_the_operator_those_of_others(api: Api) -> None:
    acme = api.token(Scope.ADMIN, tenant="acme")
    assert (await api.get("/v1/shares/acme", headers=acme)) == {"tenant": "acme", "weight": 1.0, "pools": []}
    for method, path in (("GET", "/v1/shares"), ("GET", "/v1/shares/default"), ("PUT", "/v1/shares/acme")):
        answer = await api.client.request(method, path, json={"weight": 9}, headers=acme)
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), path
    await api.client.put("/v1/shares/later", json={"weight": 0.5})
    assert (await api.get("/v1/shares")) == {"shares": [{"tenant": "later", "weight": 0.5, "pools": []}], "total": 1}
    await api.client.put("/v1/shares/later", json={"weight": 1})
    assert (await api.get("/v1/shares")) == {"shares": [], "total": 0}


@pytest.mark.parametrize("body", [{}, {"weight": 0}, {"weight": 1001}, {"weight": "a lot"}, {"weight": 1, "more": 1}])
async def test_a_weight_that_makes_no_sense_is_refused_with_its_field(api: Api, body: dict[str, Any]) -> None:
    answer = await api.client.put("/v1/shares/acme", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert {wrong["field"] for wrong in answer.json()["errors"]} <= {"weight", "more"}
    assert (await api.get("/v1/shares")) == {"shares": [], "total": 0}
