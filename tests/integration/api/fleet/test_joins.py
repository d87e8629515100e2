"""Machines join with a token that is for nothing else, and get what a node needs: once there is anything to give."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from api.http.auth import is_public
from jobs.model.join_offer import JoinOffer
from jobs.model.settings import Settings
from jobs.support import secret_keys
from tests.integration.api.conftest import Api, bearer, running
from tests.integration.api.fleet.test_node_files import NodeCaller, digest
from tests.integration.api.http.test_access import every_route, new_node_token
from tests.support.samples.job_records import JOB

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

OFFER = JoinOffer(
    url="https://10.0.0.1:8000",
    redis_url="rediss://shardyard-worker:w@10.0.0.1:6380/0",
    telemetry_url="rediss://shardyard-worker:w@10.0.0.1:6381/0",
    supervisor_redis_url="rediss://shardyard-supervisor:s@10.0.0.1:6380/0",
    supervisor_telemetry_url="rediss://shardyard-supervisor:s@10.0.0.1:6381/0",
    authority="PEM",
)
JOIN, REACH = "/v1/node/join", "/v1/node/join/reach"


def write_offer(file: Path, **changes: str) -> None:
    file.touch(mode=0o600)
    file.write_bytes(msgspec.json.encode(msgspec.structs.replace(OFFER, **changes)))


@pytest.fixture
async def open_api(settings: Settings, tmp_path: Path) -> AsyncIterator[Api]:
    """An API that machines may join."""
    write_offer(tmp_path / "join.json")
    secret_keys.create_key_file(settings.secret_keys())
    async with running(settings.model_copy(update={"join_file": tmp_path / "join.json"})) as api:
        yield api


async def join_token(api: Api, node: str | None = None, **changes: Any) -> dict[str, str]:
    body = {"name": "join", "scopes": ["join"], "expires_in_seconds": 3600, "node": node} | changes
    answer = await api.client.post("/v1/tokens", json={key: value for key, value in body.items() if value is not None})
    assert answer.status_code == 201, answer.text
    return bearer(answer.json()["token"])


async def test_a_machine_gets_all_that_a_node_needs_and_a_token_of_its_own(open_api: Api) -> None:
    api, headers = open_api, await join_token(open_api)
    answer = await api.client.post(JOIN, json={"node": "gpu-2"}, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    found = answer.json()
    assert {name: found[name] for name in msgspec.structs.asdict(OFFER)} == msgspec.structs.asdict(OFFER)
    assert found["secret_keys"] == (api.storage / "secret-key").read_text()
    assert (found["node"], found["alive_on"], found["address_seen"]) == ("gpu-2", "", "127.0.0.1")
    own = bearer(found["token"])
    mark = await api.client.head("/v1/node/files/.shardyard-storage", headers=own)
    assert mark.status_code in (200, 404)
    assert (await api.client.post(JOIN, json={"node": "gpu-2"}, headers=own)).status_code == 403
    kept = await api.client.post(JOIN, json={"node": "gpu-2", "wants_token": False}, headers=headers)
    assert kept.json()["token"] == ""
    listed = [token for token in (await api.get("/v1/tokens"))["tokens"] if token["scopes"] == ["node"]]
    assert [(token["node"], token["name"]) for token in listed] == [("gpu-2", "node gpu-2")]
    entries = (await api.get("/v1/audit?action=node_joined"))["entries"]
    assert [entry["details"]["node"] for entry in entries] == ["gpu-2", "gpu-2"]
    assert found["token"] not in str(entries)


async def test_a_living_node_of_that_name_is_named(open_api: Api) -> None:
    open_api.node(node="gpu-2")
    answer = await open_api.client.post(JOIN, json={"node": "gpu-2"}, headers=await join_token(open_api))
    assert answer.json()["alive_on"] != ""


async def test_a_token_for_one_name_joins_under_no_other(open_api: Api) -> None:
    headers = await join_token(open_api, "gpu-2")
    assert (await open_api.client.post(JOIN, json={"node": "gpu-2"}, headers=headers)).status_code == 200
    refused = await open_api.client.post(JOIN, json={"node": "gpu-3"}, headers=headers)
    assert refused.status_code == 403
    assert "--name gpu-2" in refused.json()["detail"]


@pytest.mark.parametrize("node", [None, "gpu-2"])
async def test_a_token_to_join_with_does_nothing_else(open_api: Api, node: str | None) -> None:
    open_api.node()
    job, headers = await open_api.submit(), await join_token(open_api, node)
    for method, path in every_route(open_api):
        if is_public(path) or path.startswith(JOIN):
            continue
        answer = await open_api.client.request(method, path.replace(JOB, job), headers=headers)
        assert answer.status_code == 403, (method, path)
    text = headers["Authorization"].partition(" ")[2]
    assert (await open_api.client.post("/v1/sign-in", json={"token": text})).status_code == 403


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"expires_in_seconds": None}, "expires_in_seconds"),
        ({"expires_in_seconds": 8 * 86_400}, "expires_in_seconds"),
        ({"scopes": ["join", "node"]}, "scopes"),
        ({"scopes": ["join", "admin"]}, "scopes"),
        ({"tenant": "acme"}, "tenant"),
    ],
)
async def test_a_token_to_join_with_is_short_lived_and_for_that_alone(
    api: Api, changes: dict[str, Any], field: str
) -> None:
    body = {"name": "join", "scopes": ["join"], "expires_in_seconds": 60} | changes
    answer = await api.client.post("/v1/tokens", json={key: value for key, value in body.items() if value is not None})
    assert answer.status_code == 422
    assert field in [wrong["field"] for wrong in answer.json()["errors"]]


async def test_a_service_that_others_cannot_reach_says_how_they_could(api: Api) -> None:
    answer = await api.client.post(JOIN, json={"node": "gpu-2"}, headers=await join_token(api))
    assert answer.status_code == 409
    assert "shardyard up --listen" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"url": "http://10.0.0.1:8000"}, "https://"),
        ({"redis_url": "redis://shardyard-worker:w@10.0.0.1:6379/0"}, "rediss://"),
        ({"supervisor_telemetry_url": "rediss://10.0.0.1:6381/0"}, "password"),
    ],
)
async def test_nothing_unprotected_is_handed_out(
    open_api: Api, tmp_path: Path, changes: dict[str, str], word: str
) -> None:
    write_offer(tmp_path / "join.json", **changes)
    answer = await open_api.client.post(JOIN, json={"node": "gpu-2"}, headers=await join_token(open_api))
    assert answer.status_code == 409
    assert word in answer.json()["detail"]


async def test_the_service_tries_a_port_of_its_caller_and_tells_what_it_found(open_api: Api) -> None:
    headers, nonce = await join_token(open_api), secrets.token_hex(16)
    said = nonce

    async def say(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said.encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(say, "127.0.0.1", 0) as server:
        body = {"port": server.sockets[0].getsockname()[1], "nonce": nonce}
        found = (await open_api.client.post(REACH, json=body, headers=headers)).json()
        assert (found["reached"], found["address"]) == (True, "127.0.0.1")
        said = secrets.token_hex(16)
        assert (await open_api.client.post(REACH, json=body, headers=headers)).json()["reached"] is False
    found = (await open_api.client.post(REACH, json=body, headers=headers)).json()
    assert (found["reached"], bool(found["why"])) == (False, True)


async def test_a_node_tries_the_storage_with_one_small_file_of_its_own(api: Api) -> None:
    caller, stranger = [NodeCaller(api, await new_node_token(api, name), "") for name in ("host-a", "host-b")]
    path, body = ".node-checks/host-a/check", b"x" * 1024
    assert (await caller.put(path, body)).status_code == 204
    assert (await caller.ask("GET", path)).content == body
    for answer in (await stranger.put(path, body), await stranger.ask("GET", path), await stranger.ask("DELETE", path)):
        assert answer.status_code == 403
    assert (await caller.put(path, b"", Upload_Length=1024 * 1024 + 1, Repr_Digest=digest(b"y"))).status_code == 413
    assert (await caller.put(".node-checks/host-a/other", body)).status_code == 403
    assert (await caller.ask("DELETE", path)).status_code == 204
    assert (await caller.ask("HEAD", path)).status_code == 404
