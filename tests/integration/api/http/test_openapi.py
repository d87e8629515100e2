"""The OpenAPI document and its page: complete, true, and served without anybody else's help."""

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from api.http import problems
from api.http.auth import PUBLIC, is_public
from api.schemas import examples
from api.system.operation_ids import OPERATION_IDS
from jobs.model.settings import Settings
from jobs.store.accounts.tokens import Scope
from jobs.support import secret_keys
from tests.integration.api.conftest import Api, bearer, running

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

PAGE = sorted(path for path in PUBLIC if path.startswith("/docs") and path != problems.PAGES)


NODE_FILE = "/v1/node/files/{path}"
#: Their bodies are bytes.
UPLOADS = {("post", "/v1/bundles"), ("patch", NODE_FILE), ("put", NODE_FILE)}
#: Of what no example is there in a service that has just begun.
MISSING = (
    "/v1/jobs/{job}/gate",
    "/v1/jobs/{job}/profile",
    "/v1/webhooks/{webhook}",
    "/v1/webhooks/{webhook}/rotate",
    "/v1/sign-in/device/token",
)
#: For tokens that people do not have.
OF_MACHINES = ("/v1/node/join", "/v1/node/join/reach")
#: They show nobody's data, and refuse nobody.
SIGN_IN_BEGINNINGS = {("get", "/v1/sign-in"), ("get", "/v1/sign-in/oidc"), ("post", "/v1/sign-in/device")}


async def operations(api: Api) -> dict[tuple[str, str], Any]:
    paths = (await api.get("/openapi.json"))["paths"]
    return {(method, path): found for path, methods in paths.items() for method, found in methods.items()}


async def test_every_operation_has_a_summary_a_tag_and_its_refusals(api: Api) -> None:
    found = await operations(api)
    for (method, path), operation in found.items():
        assert operation["summary"], path
        assert operation["tags"], path
        statuses = set(operation["responses"])
        answers = {status: answer for status, answer in operation["responses"].items() if status.startswith("2")}
        shown = [content["schema"] for answer in answers.values() for content in answer.get("content", {}).values()]
        assert all(shown), (method, path)
        has_none = method == "head" or answers.keys() <= {"202", "204"} or "303" in statuses
        assert shown or has_none, (method, path)
        assert "422" in statuses or not operation.get("parameters"), (method, path)
        signs_in = path.startswith("/v1/sign-in") and (method, path) not in SIGN_IN_BEGINNINGS
        knows_tokens = not is_public(path) or signs_in
        assert ({"401", "403", "503"} <= statuses) is knows_tokens, (method, path)
        parameters = {parameter["name"] for parameter in operation.get("parameters", ())}
        may_be_missing = (
            "{" in path
            or {"against", "ref"} & parameters != set()
            or path.startswith(("/v1/sign-in/device", "/v1/sign-in/oidc"))
        )
        assert ("404" in statuses) is may_be_missing, (method, path)
    summaries = [operation["summary"] for operation in found.values()]
    assert len(summaries) == len(set(summaries))


async def test_every_parameter_and_every_field_is_described(api: Api) -> None:
    document = await api.get("/openapi.json")
    for key, operation in (await operations(api)).items():
        for parameter in operation.get("parameters", ()):
            assert parameter.get("description"), (key, parameter["name"])
    schemas = document["components"]["schemas"]
    for name, schema in schemas.items():
        for field, described in schema.get("properties", {}).items():
            assert described.get("description"), (name, field)
    assert schemas["JobStatus"]["properties"]["created_at"]["format"] == "date-time"
    assert schemas["JobState"]["enum"] == ["queued", "starting", "running", "succeeded", "failed", "cancelled"]
    assert "waiting_for_devices" in schemas["StateReason"]["enum"]
    for name in ("JobStatus", "ListedJob", "ResolvedJob"):
        assert schemas[name]["properties"]["state"]["allOf"] == [{"$ref": "#/components/schemas/JobState"}]


async def test_operations_have_names_for_people_and_groups_have_words(api: Api) -> None:
    document, found = await api.get("/openapi.json"), await operations(api)
    names = [operation["operationId"] for operation in found.values()]
    assert len(names) == len(set(names)) == len(OPERATION_IDS)
    assert all(re.fullmatch("[a-z]+([A-Z][a-z]+)*", name) for name in names)
    assert found["post", "/v1/jobs"]["operationId"] == "submitJob"
    tags = {tag["name"]: tag["description"] for tag in document["tags"]}
    assert {tag for operation in found.values() for tag in operation["tags"]} == tags.keys()
    assert all(tags.values())


async def test_every_parameter_of_a_path_and_every_body_has_an_example(api: Api) -> None:
    for key, operation in (await operations(api)).items():
        for parameter in operation.get("parameters", ()):
            assert parameter["in"] != "path" or "example" in parameter, key
        body = operation.get("requestBody")
        assert body is None or key in UPLOADS or body["content"]["application/json"]["examples"], key
    takes_a_body = {key for key, operation in (await operations(api)).items() if "requestBody" in operation}
    posted = {
        ("post", path)
        for path in (
            "/v1/jobs",
            "/v1/plan",
            "/v1/jobs/cancel",
            "/v1/comparisons",
            "/v1/sweeps",
            "/v1/jobs/{job}/gate",
            "/v1/jobs/{job}/profile",
            "/v1/tokens",
            "/v1/webhooks",
            "/v1/webhooks/{webhook}/rotate",
            "/v1/sign-in",
            "/v1/sign-in/device/token",
            "/v1/nodes/{node}/drain",
            "/v1/nodes/{node}/devices/{device}/quarantine",
            "/v1/node/join",
            "/v1/node/join/reach",
        )
    }
    named = ("/v1/pools/{pool}", "/v1/secrets/{secret}", "/v1/quotas/{tenant}", "/v1/shares/{tenant}")
    put = {("put", path) for path in named}
    assert takes_a_body == UPLOADS | posted | put | {("patch", "/v1/webhooks/{webhook}")}


@pytest.fixture
async def mailing(settings: Settings) -> AsyncIterator[Api]:
    """An API that has all that examples need: keys, a mail server, and the secret of a token."""
    secret_keys.create_key_file(settings.secret_keys())
    mail = {"mail_server": "smtp://127.0.0.1:1", "mail_from": "s@example.com", "mail_domains": "example.com"}
    async with running(settings.model_copy(update=mail)) as api:
        await api.client.put("/v1/secrets/github-token", json={"value": "t"})
        yield api


async def test_every_example_of_a_body_is_accepted(mailing: Api) -> None:
    api = mailing
    api.node(devices=4)
    sent = 0
    for (method, path), operation in (await operations(api)).items():
        shown = operation.get("requestBody", {"content": {"application/json": {"examples": {}}}})
        for name, example in shown["content"].get("application/json", {"examples": {}})["examples"].items():
            there = path.format_map(examples.PARAMETERS)
            answer = await api.client.request(method, there, json=example["value"])
            # An example is no real token and no real job, and the caller no machine: that is all that is wrong with it.
            refused = {"/v1/sign-in": (401,)} | dict.fromkeys(MISSING, (404,)) | dict.fromkeys(OF_MACHINES, (403,))
            wanted = refused.get(path, (200, 201))
            assert answer.status_code in wanted, (path, name, answer.text)
            sent += 1
    others = (
        examples.COMPARISONS,
        examples.SWEEPS,
        examples.CANCELS,
        examples.TOKENS,
        examples.SIGN_INS,
        examples.DEVICE_SIGN_INS,
        examples.DRAINS,
        examples.QUARANTINES,
        examples.GATES,
        examples.POLICIES,
        examples.PROFILES,
        examples.QUOTAS,
        examples.SECRETS,
        examples.WEBHOOKS,
        examples.WEBHOOK_CHANGES,
        examples.WEBHOOK_ROTATIONS,
        examples.SHARES,
        examples.JOINS,
        examples.REACHES,
    )
    assert sent == 2 * len(examples.SPECS) + sum(map(len, others))


async def test_every_reference_of_the_document_leads_somewhere(api: Api) -> None:
    answer = await api.client.get("/openapi.json")
    components = answer.json()["components"]
    named = set(re.findall(r'"#/components/(\w+)/(\w+)"', answer.text))
    assert len(named) > 50
    assert [pair for pair in named if pair[1] not in components[pair[0]]] == []


@pytest.mark.parametrize("path", PAGE)
async def test_the_page_and_all_it_loads_need_no_token_and_name_no_other_host(api: Api, path: str) -> None:
    answer = await api.client.get(path, headers={"Authorization": ""})
    assert answer.status_code == 200
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    if path in ("/docs", "/docs/start.js"):
        assert "//" not in answer.text.replace("<!DOCTYPE html>", "")


async def test_the_page_loads_only_what_is_served_here(api: Api) -> None:
    page = (await api.client.get("/docs")).text
    loaded = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert sorted(f"/{path}" for path in loaded) == [*(path for path in PAGE if path != "/docs"), "/help/"]
    start = (await api.client.get("/docs/start.js")).text
    assert 'url: "openapi.json"' in start


async def test_the_document_is_the_same_for_everybody(api: Api) -> None:
    mine = await api.client.get("/openapi.json")
    for headers in ({"Authorization": ""}, bearer("guess"), api.token(Scope.READ, tenant="rival")):
        assert (await api.client.get("/openapi.json", headers=headers)).content == mine.content
