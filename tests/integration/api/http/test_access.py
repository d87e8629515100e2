import time
from datetime import UTC, datetime

import pytest
from fastapi.routing import iter_route_contexts
from structlog.testing import capture_logs

from api.http.auth import is_public
from api.http.deps import READS
from jobs import store
from jobs.store.accounts.tokens import Scope
from tests.integration.api.conftest import Api, bearer
from tests.support.samples.job_records import JOB

pytestmark = [pytest.mark.integration, pytest.mark.anyio]


FILLED = {
    "{id}": "cpu:0",
    "{job}": JOB,
    "{comparison}": JOB,
    "{sweep}": JOB,
    "{token}": "x",
    "{secret}": "hf",
    "{webhook}": "wh_0123456789abcdef",
    "{delivery}": "0000000001-01980000-0000-89abcdef",
    "{name}": "index.js",
    "{code}": "not_found",
    "{node}": "host-a",
    "{pool}": "default",
    "{block}": "4711",
    "{tenant}": "default",
    "{device}": "0",
    "{path:path}": "report.json",
    "{bundle}": "sha256:" + "0" * 64,
}


def fill(path: str) -> str:
    """A path with something in place of its parameters."""
    for parameter, value in FILLED.items():
        path = path.replace(parameter, value)
    assert "{" not in path
    return f"{path}?against={JOB}" if path.endswith("/diff") else path


def every_route(api: Api) -> list[tuple[str, str]]:
    """Method and path of all routes, with ids filled in."""
    found = []
    for context in iter_route_contexts(api.app.routes):
        route = context.original_route
        path, methods = getattr(route, "path", None), getattr(route, "methods", None)
        assert path is not None, f"{route} has no path; make sure that it needs a token, and teach this test"
        assert methods, f"{path} takes no methods; make sure that it needs a token, and teach this test"
        found += [(method, fill(path)) for method in methods]
    return found


async def test_every_route_but_the_public_ones_needs_a_token(api: Api) -> None:
    routes = every_route(api)
    assert len(routes) > 15
    for method, path in routes:
        for headers in (
            {"Authorization": ""},
            bearer("sy_aaaa_bbbb"),
            bearer("guess"),
            {"Authorization": "Basic eDp5"},
        ):
            answer = await api.client.request(method, path, headers=headers)
            if is_public(path):
                assert answer.status_code != 401, path
            else:
                assert answer.status_code == 401, (method, path)
                assert method == "HEAD" or answer.json()["code"] == "unauthenticated"


async def test_another_tenants_job_is_not_found_whatever_is_asked_of_it(api: Api) -> None:
    api.node()
    job = await api.submit()
    stranger = api.token(Scope.SUBMIT, tenant="rival")
    asked = 0
    for method, path in every_route(api):
        if JOB in path and not is_public(path):
            answer = await api.client.request(method, path.replace(JOB, job), headers=stranger)
            assert answer.status_code == 404, (method, path)
            assert method == "HEAD" or answer.json()["code"] == "not_found", (method, path)
            asked += 1
    assert asked >= 7
    assert (await api.get("/v1/jobs", headers=stranger))["jobs"] == []
    assert (await api.get(f"/v1/jobs/{job}"))["cancel_requested"] is False


async def test_an_idempotency_key_does_not_reach_into_another_tenant(api: Api) -> None:
    api.node()
    mine = await api.submit(headers={"Idempotency-Key": "same"})
    theirs = await api.submit(headers={"Idempotency-Key": "same", **api.token(Scope.SUBMIT, tenant="rival")})
    assert mine != theirs


async def test_a_token_that_may_only_read_changes_nothing(api: Api) -> None:
    api.node()
    job, reader = await api.submit(), api.token(Scope.READ)
    reads = {(method, fill(path)) for method, path in READS}
    for method, path in every_route(api):
        if method not in ("GET", "HEAD") and (method, path) not in reads and not is_public(path):
            answer = await api.client.request(method, path.replace(JOB, job), headers=reader)
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), (method, path)
    assert (await api.get(f"/v1/jobs/{job}", headers=reader))["cancel_requested"] is False


async def test_only_an_administrator_handles_tokens_and_drains_nodes(api: Api) -> None:
    api.node()
    submitter = api.token(Scope.SUBMIT)
    for method, path in every_route(api):
        if path.startswith(("/v1/tokens", "/v1/quotas/")) or path.endswith(
            ("/drain", "/quarantine", "/v1/pools/default", "/v1/shares")
        ):
            answer = await api.client.request(method, path, headers=submitter)
            assert answer.status_code == (200 if (method, path) == ("GET", "/v1/pools/default") else 403), path
    (node,) = (await api.get("/v1/nodes"))["nodes"]
    assert node["draining"] is False


async def test_nodes_are_the_operators_and_their_quarantine_is_told_to_nobody_else(api: Api) -> None:
    api.node()
    api.control.client.hset("sy:quarantine:host-a", "0", "would not die after default/job/1: process 7 (secret)")
    theirs = api.token(Scope.ADMIN, tenant="acme")
    there = "/v1/nodes/host-a"
    device = f"{there}/devices/0/quarantine"
    for method, path in (("POST", f"{there}/drain"), ("DELETE", there), ("POST", device), ("DELETE", device)):
        assert (await api.client.request(method, path, headers=theirs)).status_code == 403
    (node,) = (await api.get("/v1/nodes", headers=theirs))["nodes"]
    assert "secret" not in node["devices"][0]["quarantine"]
    (node,) = (await api.get("/v1/nodes"))["nodes"]
    assert "secret" in node["devices"][0]["quarantine"]


async def test_a_node_that_drains_says_until_when_and_how_many_attempts_are_left(api: Api) -> None:
    api.node()
    await api.submit()
    api.control.run(store.dispatch(60))
    ((attempt, _),) = api.control.run(store.read_heartbeats()).leases
    api.control.run(store.claim(attempt, "c", "host-a"))
    told = await api.client.post("/v1/nodes/host-a/drain", json={"deadline_seconds": 600})
    node = told.json()
    assert (node["draining"], node["stopping"], node["attempts"]) == (True, False, 1)
    left = datetime.fromisoformat(node["drain_deadline_at"]) - datetime.now(UTC)
    assert 590 < left.total_seconds() <= 600
    for body, field in (({"deadline_seconds": -1}, "deadline_seconds"), ({"deadline": 5}, "deadline")):
        wrong = await api.client.post("/v1/nodes/host-a/drain", json=body)
        assert (wrong.status_code, wrong.json()["errors"][0]["field"]) == (422, field)
    again = (await api.client.post("/v1/nodes/host-a/drain")).json()
    assert (again["draining"], again["drain_deadline_at"]) == (True, None)
    undone = (await api.client.delete("/v1/nodes/host-a/drain")).json()
    assert (undone["draining"], undone["attempts"]) == (False, 1)
    assert (await api.client.post("/v1/nodes/ghost/drain")).status_code == 404


async def test_the_operator_sets_a_device_apart_and_brings_it_back(api: Api) -> None:
    api.node(devices=2)
    there = "/v1/nodes/host-a/devices/1/quarantine"
    node = (await api.client.post(there, json={"reason": "falls off the bus"})).json()
    device = node["devices"][1]
    assert (device["state"], device["quarantine"]) == ("quarantined", "falls off the bus")
    assert datetime.fromisoformat(device["quarantined_at"]) <= datetime.now(UTC)
    assert (await api.get("/v1/pools"))["pools"][0]["quarantined"] == 1
    node = (await api.client.delete(there)).json()
    assert (node["devices"][1]["state"], node["devices"][1]["quarantined_at"]) == ("free", None)
    assert (await api.client.delete(there)).status_code == 200, "it is no error to ask again"
    assert (await api.client.post(there, json={})).status_code == 422
    assert (await api.client.post(there.replace("/1/", "/2/"), json={"reason": "x"})).status_code == 404


async def test_a_node_that_is_down_is_forgotten_with_its_quarantine(api: Api) -> None:
    api.node()
    api.control.client.hset("sy:quarantine:host-a", "0", "broken")
    alive = await api.client.delete("/v1/nodes/host-a")
    assert (alive.status_code, alive.json()["code"]) == (409, "node_in_use")
    api.control.run(store.take_down_node("host-a", None))
    assert (await api.client.delete("/v1/nodes/host-a")).status_code == 204
    assert (await api.client.delete("/v1/nodes/host-a")).status_code == 404
    api.node()
    (node,) = (await api.get("/v1/nodes"))["nodes"]
    assert node["devices"][0]["state"] == "free"


async def test_a_token_works_until_it_is_revoked(api: Api) -> None:
    created = await api.client.post("/v1/tokens", json={"name": "ci", "scopes": ["submit"]})
    assert created.status_code == 201
    assert created.headers["cache-control"] == "no-store"
    token = created.json()
    headers = bearer(token["token"])
    assert (await api.client.get("/v1/jobs", headers=headers)).status_code == 200
    (listed,) = (await api.get("/v1/tokens"))["tokens"]
    assert listed == {key: value for key, value in token.items() if key != "token"}
    assert (await api.client.delete(f"/v1/tokens/{token['id']}")).status_code == 204
    assert (await api.client.get("/v1/jobs", headers=headers)).status_code == 401
    assert (await api.client.delete(f"/v1/tokens/{token['id']}")).status_code == 404


async def test_redis_keeps_no_secret(api: Api) -> None:
    token = (await api.client.post("/v1/tokens", json={"name": "ci", "scopes": ["read"]})).json()
    secret = token["token"].split("_", 2)[2]
    stored = api.control.client.hgetall(f"sy:token:{token['id']}")
    assert stored
    assert secret not in str(stored)


async def test_an_expired_token_is_refused(api: Api) -> None:
    now = time.time_ns() // 1000
    assert (await api.client.get("/v1/jobs", headers=api.token(Scope.READ, expires=now - 1))).status_code == 401
    assert (await api.client.get("/v1/jobs", headers=api.token(Scope.READ, expires=now + 10**8))).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {"name": "", "scopes": ["read"]},
        {"name": "ci", "scopes": []},
        {"name": "ci", "scopes": ["root"]},
        {"name": "ci", "scopes": ["read"], "tenant": "../x"},
        {"name": "ci", "scopes": ["read"], "expires_in_seconds": 0},
    ],
)
async def test_a_wrong_token_request_is_refused(api: Api, body: dict[str, object]) -> None:
    answer = await api.client.post("/v1/tokens", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert answer.json()["errors"]


async def test_a_misspelt_field_of_a_request_is_told_its_right_name(api: Api) -> None:
    answer = await api.client.post("/v1/tokens", json={"name": "ci", "scopes": ["read"], "tennant": "third"})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert answer.json()["errors"] == [{"field": "tennant", "message": "unknown field; did you mean 'tenant'?"}]


async def test_only_the_operator_makes_tokens_for_other_tenants(api: Api) -> None:
    body = {"name": "ci", "scopes": ["read"], "tenant": "third"}
    assert (await api.client.post("/v1/tokens", json=body)).status_code == 201
    rival = api.token(Scope.ADMIN, tenant="rival")
    assert (await api.client.post("/v1/tokens", json=body, headers=rival)).status_code == 403


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [("GET", "/v1/nothing", 404, "not_found"), ("PUT", "/v1/jobs", 405, "method_not_allowed")],
)
async def test_what_the_framework_refuses_is_a_problem_too(
    api: Api, method: str, path: str, status: int, code: str
) -> None:
    answer = await api.client.request(method, path)
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.status_code, answer.json()["code"]) == (status, code)


async def test_a_bug_answers_500_without_saying_anything(api: Api) -> None:
    api.control.client.set("sy:jobs:default", "not a sorted set")
    with capture_logs() as logs:
        answer = await api.client.get("/v1/jobs")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
    assert "WRONGTYPE" not in answer.text
    assert [entry["event"] for entry in logs if entry["log_level"] == "error"] == ["request_failed"]


async def test_what_was_done_is_written_down_with_the_token_that_did_it(api: Api) -> None:
    api.node()
    with capture_logs() as logs:
        job = await api.submit()
        await api.client.post(f"/v1/jobs/{job}/cancel")
        await api.client.delete(f"/v1/jobs/{job}")
        token = (await api.client.post("/v1/tokens", json={"name": "ci", "scopes": ["read"]})).json()
        await api.client.delete(f"/v1/tokens/{token['id']}")
    done = [entry for entry in logs if entry.get("token") == "admin"]
    assert [entry["event"] for entry in done] == [
        "job_submitted",
        "job_cancelled",
        "job_deleted",
        "token_created",
        "token_revoked",
    ]
    assert all(entry["tenant"] == "default" for entry in done)
    assert token["token"] not in str(logs)


async def test_no_cache_keeps_an_answer_for_others_and_no_browser_guesses_what_it_is(api: Api) -> None:
    api.node()
    job = await api.submit()
    assert (await api.client.post(f"/v1/jobs/{job}/cancel")).is_success  # it changes no more
    paths = ("/v1/jobs", f"/v1/jobs/{job}", f"/v1/jobs/{job}/logs", "/v1/nodes", "/v1/tokens", "/v1/jobs/none")
    answers = [await api.client.get(path) for path in paths]
    answers.append(await api.client.get(paths[1], headers={"If-None-Match": answers[1].headers["etag"]}))
    answers.append(await api.client.get("/v1/jobs", headers={"Host": "elsewhere.example"}))
    assert [answer.status_code for answer in answers] == [200] * 5 + [404, 304, 400]
    for answer in answers:
        assert answer.headers["cache-control"] == "private, no-cache"
        assert answer.headers["x-content-type-options"] == "nosniff"


async def new_node_token(api: Api, node: str = "host-a") -> dict[str, str]:
    body = {"name": node, "scopes": ["node"], "node": node}
    answer = await api.client.post("/v1/tokens", json=body)
    assert answer.status_code == 201, answer.text
    return bearer(answer.json()["token"])


async def test_a_token_of_a_node_may_do_nothing_that_people_may(api: Api) -> None:
    api.node()
    job, headers = await api.submit(), await new_node_token(api)
    asked = 0
    for method, path in every_route(api):
        if is_public(path) or path.startswith("/v1/node/"):
            continue
        answer = await api.client.request(method, path.replace(JOB, job), headers=headers)
        assert answer.status_code == 403, (method, path)
        if method != "HEAD":
            assert answer.json()["code"] == "forbidden", (method, path)
            assert "node host-a alone" in answer.json()["detail"]
        asked += 1
    assert asked > 30
    sign_in = await api.client.post("/v1/sign-in", json={"token": headers["Authorization"].partition(" ")[2]})
    assert sign_in.status_code == 403
    assert (await api.get(f"/v1/jobs/{job}"))["cancel_requested"] is False


async def test_nobody_but_a_node_may_do_what_a_node_may(api: Api) -> None:
    for headers in (None, api.token(Scope.SUBMIT), api.token(Scope.ADMIN, tenant="rival"), api.token(Scope.NODE)):
        for method, path in every_route(api):
            if path.startswith("/v1/node/"):
                answer = await api.client.request(method, path, headers=headers)
                assert answer.status_code == 403, (method, path)


async def test_a_token_of_a_node_names_it_and_is_shown_with_it(api: Api) -> None:
    await new_node_token(api)
    (listed,) = (await api.get("/v1/tokens"))["tokens"]
    assert (listed["scopes"], listed["node"]) == (["node"], "host-a")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"scopes": ["node", "read"]}, "scopes"),
        ({"scopes": ["read"]}, "scopes"),
        ({"node": None}, "node"),
        ({"node": "../x"}, "node"),
        ({"node": "n" * 64}, "node"),
        ({"tenant": "acme"}, "tenant"),
        ({"quota": {"running": 1}}, "quota"),
    ],
)
async def test_a_wrong_request_for_a_token_of_a_node_names_the_field(
    api: Api, changes: dict[str, object], field: str
) -> None:
    body = {"name": "n", "scopes": ["node"], "node": "host-a"} | changes
    answer = await api.client.post("/v1/tokens", json=body)
    assert answer.status_code == 422, answer.text
    assert [wrong["field"] for wrong in answer.json()["errors"]] == [field]


async def test_only_the_operator_makes_tokens_for_nodes(api: Api) -> None:
    body = {"name": "n", "scopes": ["node"], "node": "host-a"}
    for headers in (api.token(Scope.SUBMIT), api.token(Scope.ADMIN, tenant="rival")):
        assert (await api.client.post("/v1/tokens", json=body, headers=headers)).status_code == 403
