"""The history of a device over HTTP, and devices that are suspected in the list of nodes."""

from typing import Any

import pytest

from jobs import store
from jobs.model.device_history import DeviceMark
from jobs.model.state import StateReason
from jobs.store.accounts.tokens import Scope
from tests.integration.api.conftest import Api
from tests.integration.store.world import TENANT, a_spec

pytestmark = [pytest.mark.integration, pytest.mark.anyio]


def run(api: Api, job: str, devices: int, marks: dict[int, DeviceMark], tenant: str = TENANT) -> None:
    """One attempt from submit to end, as its supervisor reports it."""
    api.control.run(store.submit(tenant, job, a_spec(devices)))
    end_of(api, tenant, job, marks)


def end_of(api: Api, tenant: str, job: str, marks: dict[int, DeviceMark], node: str = "host-a") -> None:
    while api.control.run(store.read_job(tenant, job)).record.attempt == 0:
        api.control.run(store.dispatch(60))
    attempt = store.AttemptId(tenant, job, 1)
    assert api.control.run(store.claim(attempt, "c", node)).granted
    assert api.control.run(store.finish(attempt, "c", StateReason.COMPLETED, "", node=node, measured={0: marks}))


async def history(api: Api, device: str, **request: Any) -> Any:
    return await api.get(f"/v1/devices/{device}/history", **request)


async def test_a_device_shows_what_its_attempts_have_left(api: Api) -> None:
    api.node()
    assert (await history(api, "host-a:cpu:1"))["lines"] == []
    run(api, "first", 2, {0: DeviceMark(0.8, 0.1), 1: DeviceMark(1.25, 0.125, slow=True, error="an ECC error")})
    run(api, "theirs", 2, {1: DeviceMark(1.0, 0.1)}, tenant="rival")
    told = await history(api, "host-a:cpu:1")
    assert (told["id"], told["node"], told["label"], told["state"]) == ("host-a:cpu:1", "host-a", "cpu:1", "free")
    theirs, ours = told["lines"]
    assert (theirs["job"], theirs["attempt"], theirs["peers"]) == ("another tenant", None, 1)
    assert (ours["job"], ours["attempt"], ours["reason"], ours["event"]) == ("first", 1, "completed", "attempt")
    assert (ours["relative_ms_per_row"], ours["ms_per_row"], ours["slow"]) == (1.25, 0.125, True)
    assert ours["error"] == "an ECC error"
    assert 0 <= ours["hours"] < 0.1
    assert told["next"] is None


async def test_pages_follow_each_other(api: Api) -> None:
    api.node(devices=1)
    for number in range(3):
        run(api, f"job-{number}", 1, {})
    first = await history(api, "host-a:cpu:0", params={"limit": 2})
    rest = await history(api, "host-a:cpu:0", params={"limit": 2, "cursor": first["next"]})
    assert [line["job"] for line in first["lines"] + rest["lines"]] == ["job-2", "job-1", "job-0"]
    assert (first["total"], rest["total"]) == (3, 3)
    assert rest["next"] is None
    wrong = await api.client.get("/v1/devices/host-a:cpu:0/history", params={"cursor": "?"})
    assert (wrong.status_code, wrong.json()["code"]) == (400, "malformed_cursor")
    wrong = await api.client.get("/v1/devices/host-a:cpu:0/history", params={"limit": 101})
    assert (wrong.status_code, wrong.json()["code"]) == (422, "invalid_request")


async def test_an_id_that_one_device_has_is_enough_and_an_unknown_one_is_not_found(api: Api) -> None:
    api.node()
    assert (await history(api, "cpu:3"))["id"] == "host-a:cpu:3"
    api.node(devices=1, node="host-b")
    assert (await history(api, "cpu:3"))["id"] == "host-a:cpu:3"
    for unknown in ("cpu:0", "host-a:cpu:4", "GPU-1", "host-c:cpu:0"):
        answer = await api.client.get(f"/v1/devices/{unknown}/history")
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), unknown


async def test_the_history_of_a_node_that_is_gone_can_be_read(api: Api) -> None:
    api.node(devices=1)
    run(api, "job", 1, {})
    api.control.run(store.take_down_node("host-a", None))
    assert (await api.client.delete("/v1/nodes/host-a")).status_code == 204
    told = await history(api, "host-a:cpu:0")
    assert ([line["job"] for line in told["lines"]], told["node"]) == (["job"], "")


async def test_a_suspected_device_says_why_until_it_is_set_apart(api: Api) -> None:
    api.node()
    slow, fast = DeviceMark(1.3, 0.13, slow=True), DeviceMark(0.8, 0.1)
    run(api, "a", 2, {0: fast, 1: slow})
    api.control.run(store.submit(TENANT, "busy", a_spec(1)))
    api.control.run(store.dispatch(60))
    run(api, "b", 2, {1: slow, 2: fast})
    end_of(api, TENANT, "busy", {})
    run(api, "c", 2, {0: fast, 1: slow})
    (node,) = (await api.get("/v1/nodes"))["nodes"]
    suspected = node["devices"][1]["suspected"]
    assert suspected.startswith("slow in 3 of its last 3 attempts beside different devices")
    assert "1.30 times" in suspected
    assert [device["suspected"] for device in node["devices"] if device["device"] != 1] == [None] * 3
    assert node["devices"][1]["name_in_fleet"] == "host-a:cpu:1"
    assert (await history(api, "host-a:cpu:1"))["suspected"] == suspected
    there = "/v1/nodes/host-a/devices/1/quarantine"
    assert (await api.client.post(there, json={"reason": "secret"})).status_code == 200
    assert (await history(api, "host-a:cpu:1"))["suspected"] is None
    line = (await history(api, "host-a:cpu:1"))["lines"][0]
    assert (line["event"], line["by"], line["quarantine"]) == ("quarantined", "operator", "secret")
    theirs = (await history(api, "host-a:cpu:1", headers=api.token(Scope.READ, tenant="rival")))["lines"][0]
    assert "secret" not in theirs["quarantine"]


async def test_who_had_which_device_lately_is_listed_for_all_of_them(api: Api) -> None:
    api.node(devices=2)
    run(api, "first", 2, {})
    run(api, "theirs", 1, {}, tenant="rival")
    found = await api.get("/v1/devices/use", params={"hours": 1})
    uses = {device["label"]: device["uses"] for device in found["devices"]}
    assert [use["job"] for use in uses["cpu:0"]] == ["another tenant", "first"]
    assert [(use["job"], use["attempt"], use["reason"]) for use in uses["cpu:1"]] == [("first", 1, "completed")]
    assert found["since"] < uses["cpu:1"][0]["begun_at"] <= uses["cpu:1"][0]["ended_at"]
    wrong = await api.client.get("/v1/devices/use", params={"hours": 169})
    assert (wrong.status_code, wrong.json()["code"]) == (422, "invalid_request")


def weighed_spec(weights: list[float] | None, devices: int = 2) -> dict[str, Any]:
    return {
        "resources": {"devices": devices},
        "parallelism": {"strategy": "ddp", **({} if weights is None else {"weights": weights})},
        "program": {
            "model": {"ref": "linear", "args": {"in_features": 5, "out_features": 2}},
            "data": {"ref": "random_vectors", "args": {"rows": 100, "features": 5}, "batch_size": 25},
            "loss": {"ref": "cross_entropy"},
            "optimizer": {"ref": "sgd", "args": {"lr": 0.1}},
        },
    }


async def test_a_plan_for_a_whole_pool_predicts_the_step_from_its_history(api: Api) -> None:
    api.node(devices=2)
    assert await step_of(api, weighed_spec([3, 2])) == (None, None)
    run(api, "first", 2, {0: DeviceMark(None, 0.4), 1: DeviceMark(None, 0.6)})
    run(api, "theirs", 2, {0: DeviceMark(None, 9.0), 1: DeviceMark(None, 9.0)}, tenant="rival")
    even, weighed = await step_of(api, weighed_spec(None)), await step_of(api, weighed_spec([3, 2]))
    assert (even[0], weighed[0]) == pytest.approx((15.0, 12.0))
    assert "job first" in str(weighed[1])
    assert (await step_of(api, weighed_spec([1], devices=1)))[0] is None  # which of the two it gets is not known
    text = await api.client.post("/v1/plan", json=weighed_spec([3, 2]), headers={"Accept": "text/plain"})
    assert "a step would take about 12 ms on the slowest device" in " ".join(text.text.split())


async def step_of(api: Api, spec: dict[str, Any]) -> tuple[float | None, str | None]:
    plan = (await api.client.post("/v1/plan", json=spec)).json()
    return plan["step_ms"], plan["notes"].get("step_ms")
