"""Policies of pools over HTTP: who sets them, what they do to nodes and jobs, and who is refused without a box."""

from typing import Any

import pytest

from jobs import store
from jobs.model.records import BOX_RIGHTS, BoxRights
from jobs.model.settings import Settings
from jobs.store.accounts.tokens import Scope
from tests.integration.api.conftest import Api, running
from tests.integration.api.jobs.test_jobs import until_state

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

FULL = BoxRights("full", {})
USER = BoxRights("user", {"account": "the worker is not root"})
NONE = BoxRights("none", dict.fromkeys(BOX_RIGHTS, "user namespaces are turned off"))
ACME = {"name": "ci", "scopes": ["submit"], "tenant": "acme"}


async def reason(api: Api, job: str) -> dict[str, Any]:
    found: dict[str, Any] = (await api.get(f"/v1/jobs/{job}"))["reason"]
    return found


async def test_a_pool_that_demands_a_box_starts_jobs_on_nodes_that_have_it_only(api: Api) -> None:
    api.node(box=USER)
    answer = await api.client.put("/v1/pools/default", json={"box": "full"})
    pool = answer.json()
    assert (answer.status_code, pool["box"], pool["network"]) == (200, "full", "none")
    assert (pool["free"], pool["live_nodes"], pool["unboxed"]) == (0, 1, 1)
    assert pool["boxes"] == {"none": 0, "user": 1, "full": 0}
    (node,) = (await api.get("/v1/nodes"))["nodes"]
    assert (node["box"]["level"], node["unboxed"], node["alive"]) == ("user", True, True)
    assert {right["name"]: right["why"] for right in node["box"]["rights"] if not right["has"]} == USER.lacks

    job = await api.submit()
    why = await reason(api, job)
    assert why["code"] == "unboxed"
    assert "host-a has the box that is made without root, and lacks account" in why["message"]
    (listed,) = (await api.get("/v1/jobs"))["jobs"]
    assert listed["reason"] == why
    assert api.control.run(store.dispatch(0)).created == ()

    api.node(node="host-b", box=FULL)
    status = await until_state(api, job, "starting")
    assert (status["placement"][0]["node"], status["network"]) == ("host-b", "none")
    (shown,) = (await api.get(f"/v1/jobs/{job}/attempts"))["attempts"]
    assert shown["network"] == "none"


async def test_pre_emption_is_a_part_of_the_policy_that_is_off_by_default(api: Api) -> None:
    api.node(devices=1)
    assert (await api.get("/v1/pools"))["pools"][0]["preempt"] is False
    assert (await api.client.put("/v1/pools/default", json={"preempt": True})).json()["preempt"] is True
    low = await api.submit()
    await until_state(api, low, "starting")
    urgent = await api.submit(priority=5)
    await until_state(api, urgent, "starting")
    status = await api.get(f"/v1/jobs/{low}")
    assert (status["state"], status["reason"]["code"], status["preemptions"]) == ("queued", "preempted", 1)
    assert status["reason"]["message"].startswith("a job of a higher priority took its devices")
    assert (await api.client.put("/v1/pools/default", json={})).json()["preempt"] is False


async def test_a_pool_without_a_node_keeps_its_policy_until_one_joins(api: Api) -> None:
    assert (await api.client.put("/v1/pools/later", json={"box": "user", "network": "host"})).json()["nodes"] == 0
    api.node(pool="later", box=NONE)
    (pool,) = (await api.get("/v1/pools"))["pools"]
    assert (pool["name"], pool["box"], pool["network"], pool["unboxed"]) == ("later", "user", "host", 1)
    assert (await api.client.put("/v1/pools/later", json={})).json()["unboxed"] == 0


@pytest.mark.parametrize(
    ("pool", "body", "field"),
    [
        ("default", {"box": "most"}, "box"),
        ("default", {"network": "internet"}, "network"),
        ("default", {"boxes": "full"}, "boxes"),
        ("Default!", {}, "pool"),
        ("x" * 64, {}, "pool"),
    ],
)
async def test_a_wrong_policy_names_its_field_and_changes_nothing(
    api: Api, pool: str, body: dict[str, str], field: str
) -> None:
    answer = await api.client.put(f"/v1/pools/{pool}", json=body)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, field)
    assert (await api.get("/v1/pools"))["pools"] == []


async def test_policies_are_the_operators(api: Api) -> None:
    api.node()
    for headers in (api.token(Scope.SUBMIT), api.token(Scope.ADMIN, tenant="acme")):
        answer = await api.client.put("/v1/pools/default", json={"network": "host"}, headers=headers)
        assert answer.status_code == 403
    assert (await api.get("/v1/pools"))["pools"][0]["network"] == "none"


async def test_a_second_tenant_gets_no_token_while_a_live_node_has_no_box(api: Api) -> None:
    api.node(box=USER)
    api.node(node="host-b", box=NONE)
    answer = await api.client.post("/v1/tokens", json=ACME)
    assert (answer.status_code, answer.json()["code"]) == (409, "unboxed_nodes")
    for words in ("acme", "host-b (user namespaces are turned off)", "as root", "user namespaces", "--jobs-unboxed"):
        assert words in answer.json()["detail"]
    assert "host-a" not in answer.json()["detail"]
    assert (await api.client.post("/v1/tokens", json=ACME | {"tenant": "default"})).status_code == 201
    api.control.run(store.take_down_node("host-b", None))
    assert (await api.client.post("/v1/tokens", json=ACME)).status_code == 201


async def test_a_node_that_says_nothing_of_its_box_refuses_nobody(api: Api) -> None:
    api.node()
    assert (await api.client.post("/v1/tokens", json=ACME)).status_code == 201


async def test_the_operator_may_accept_several_tenants_without_a_box(settings: Settings) -> None:
    async with running(settings.model_copy(update={"jobs_unboxed": True})) as api:
        api.node(box=NONE)
        assert (await api.client.post("/v1/tokens", json=ACME)).status_code == 201


async def test_boxes_and_unboxed_nodes_are_gauges(api: Api) -> None:
    api.node(box=USER)
    await api.client.put("/v1/pools/default", json={"box": "full"})
    text = (await api.client.get("/metrics")).text
    assert 'shardyard_node_boxes{level="user",pool="default"} 1.0' in text
    assert 'shardyard_unboxed_nodes{pool="default"} 1.0' in text
