"""Jobs on several nodes, from the request to what the answers say of them."""

from typing import Any

import pytest

from jobs import store
from jobs.store import AttemptId
from tests.integration.api.conftest import Api
from tests.integration.api.jobs.test_jobs import until_state
from tests.support.samples.job_records import a_spec_body

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

SECRET = "5ec4e7"


def a_gang(devices: int = 2, nodes: int = 2, strategy: str = "ddp") -> dict[str, Any]:
    resources = {"devices": devices, "nodes": nodes}
    return a_spec_body() | {"resources": resources, "parallelism": {"strategy": strategy}}


async def submitted(api: Api, **wanted: Any) -> str:
    answer = await api.client.post("/v1/jobs", json=a_gang(**wanted))
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
async def test_a_job_on_several_nodes_is_leased_and_lists_each_with_its_ranks(api: Api, strategy: str) -> None:
    for number, node in enumerate(("host-a", "host-b"), start=1):
        api.node(2, node, address=f"10.0.0.{number}", reach="network")
    job = await submitted(api, strategy=strategy)
    status = await until_state(api, job, "starting")
    assert (status["devices"], status["nodes"]) == (2, 2)
    placement = {place["node"]: (place["devices"], place["ranks"]) for place in status["placement"]}
    assert set(placement) == {"host-a", "host-b"}
    assert sorted(placement.values()) == [(["cpu:0", "cpu:1"], [0, 1]), (["cpu:0", "cpu:1"], [2, 3])]


@pytest.mark.parametrize("strategy", ["single", "dp"])
async def test_one_process_does_not_run_on_several_nodes(api: Api, strategy: str) -> None:
    api.node()
    answer = await api.client.post("/v1/jobs", json=a_gang(1, strategy=strategy))
    assert answer.status_code == 422
    assert [error["field"] for error in answer.json()["errors"]] == ["resources.nodes"]


async def test_more_nodes_than_the_pool_has_are_refused(api: Api) -> None:
    api.node(reach="network")
    answer = await api.client.post("/v1/jobs", json=a_gang())
    assert (answer.status_code, answer.json()["code"]) == (422, "too_large_for_pool")


async def test_a_job_says_that_the_nodes_of_its_pool_do_not_reach_each_other(api: Api) -> None:
    api.node(2, "host-a", address="10.0.0.1", reach="network")
    api.node(2, "host-b", address="host-b")
    job = await submitted(api)
    (listed,) = (await api.get("/v1/jobs"))["jobs"]
    for shown in (await api.get(f"/v1/jobs/{job}"), listed):
        assert shown["state"] == "queued"
        assert shown["reason"]["code"] == "node_has_no_address"
        assert "host-a listens on 10.0.0.1, host-b listens on host-b" in shown["reason"]["message"]
    api.node(2, "host-b", address="10.0.0.2", reach="network")
    await until_state(api, job, "starting")


async def test_no_answer_has_the_link_between_the_supervisors(api: Api) -> None:
    for number, node in enumerate(("host-a", "host-b"), start=1):
        api.node(2, node, address=f"10.0.0.{number}", reach="network")
    job = await submitted(api)
    leader, follower = (place["node"] for place in (await until_state(api, job, "starting"))["placement"])
    attempt = AttemptId("default", job, 1)
    assert api.control.run(store.claim(attempt, "l", leader, f"10.0.0.1:4711 {SECRET}")).granted
    assert SECRET in api.control.run(store.claim(attempt, "f", follower)).link
    assert api.control.run(store.record_milestone(attempt, "l", "running"))
    paths = ("", f"/{job}", f"/{job}/attempts", f"/{job}/logs", f"/{job}/splits", f"/{job}/metrics")
    for path in [*(f"/v1/jobs{path}" for path in paths), "/v1/nodes", "/v1/pools", "/metrics"]:
        assert SECRET not in (await api.client.get(path)).text, path
    (shown,) = (await api.get(f"/v1/jobs/{job}/attempts"))["attempts"]
    assert [place["node"] for place in shown["placement"]] == [leader, follower]
