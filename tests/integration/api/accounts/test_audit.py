"""The audit of an application: who did what, as `GET /v1/audit` and the files say."""

import asyncio
import json
import os
import stat
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.routing import iter_route_contexts

from api.accounts.single_sign_on.config import CALLBACK_PATH
from api.app import create_app
from api.background import audit_retention
from api.http import audit, audit_log, audit_repeats
from api.http.auth import SAFE
from jobs.files import audit_files
from jobs.model.settings import Settings
from jobs.store.accounts.tokens import Scope
from shardyard.client import AsyncClient, audit_entries
from shardyard.contract.audit import AuditEntry
from shardyard.contract.responses import at as format_time
from shardyard.service.backup.selection import StorageSelection
from tests.integration.api.conftest import ADMIN, Api, bearer, running
from tests.integration.api.jobs.test_jobs import until_state
from tests.integration.api.system.test_process import api_process

pytestmark = pytest.mark.anyio

#: Of the routes that hand out files as they are.
FILES = "{path:path}"


async def entries(api: Api, headers: dict[str, str] | None = None, **query: Any) -> list[dict[str, Any]]:
    page = await api.get("/v1/audit", params=query, headers=headers)
    return list(page["entries"])


async def actions(api: Api, **query: Any) -> list[str]:
    return [entry["action"] for entry in await entries(api, order="oldest", **query)]


def lines(settings: Settings) -> list[bytes]:
    files = sorted(audit_files.audit_dir(settings.storage).glob("*/*.jsonl"))
    return [line for file in files for line in file.read_bytes().splitlines()]


# -- what has an entry -----------------------------------------------------------------------------


def test_each_route_that_changes_something_or_hands_out_files_has_an_action(settings: Settings) -> None:
    asked = [
        (method, str(context.path))
        for context in iter_route_contexts(create_app(settings).routes)
        for method in context.methods or ()
    ]
    changing = {(method, path) for method, path in asked if method not in SAFE}
    changing -= audit.UNCHANGING | audit.BROUGHT
    files = {(method, path) for method, path in asked if method == "GET" and FILES in path and path.startswith("/v1/")}
    assert changing | {("GET", CALLBACK_PATH)} == set(audit.CHANGES)  # which a browser can only be sent to
    assert files - audit.BROUGHT <= set(audit.DOWNLOADS)


async def test_a_change_has_an_entry_before_its_answer(api: Api, settings: Settings) -> None:
    api.node()
    job = await api.submit(headers={"X-Request-ID": "r-1"})
    (entry,) = [json.loads(line) for line in lines(settings)]
    assert entry["action"] == "job_submitted"
    assert entry["details"]["job"] == job
    expected = {
        "status": 201,
        "method": "POST",
        "path": "/v1/jobs",
        "tenant": "default",
        "token": "admin",
        "token_name": "operator",
        "address": "127.0.0.1",
        "request_id": "r-1",
    }
    assert entry.items() >= expected.items()


async def test_a_job_leaves_the_entries_of_all_that_was_done_to_it(api: Api) -> None:
    api.node()
    job = await api.submit()
    await api.client.post(f"/v1/jobs/{job}/cancel")
    await api.client.delete(f"/v1/jobs/{job}")
    assert await actions(api) == ["job_submitted", "job_cancelled", "job_deleted"]
    assert [entry["action"] for entry in await entries(api, limit=2)] == ["audit_read", "job_deleted"]


async def test_what_was_refused_for_its_contents_has_no_entry(api: Api) -> None:
    assert (await api.client.post("/v1/jobs", json={})).status_code == 422
    assert await actions(api) == []


async def test_a_download_has_an_entry_with_the_file(api: Api, settings: Settings) -> None:
    api.node()
    job = await api.submit()
    await until_state(api, job, "starting")
    directory = settings.storage / "jobs" / "default" / job / "1" / "artifacts"
    directory.mkdir(parents=True)
    (directory / "model.pt").write_bytes(b"weights")
    await asyncio.to_thread(api.run_to_end, job)
    reader = api.token(Scope.READ)
    answer = await api.client.get(f"/v1/jobs/{job}/artifacts/model.pt", headers=reader)
    assert answer.content == b"weights"
    found = await entries(api, action="file_downloaded")
    assert [(entry["path"], entry["token_name"]) for entry in found] == [
        (f"/v1/jobs/{job}/artifacts/model.pt", "a test")
    ]


async def test_a_browsers_session_is_named_from_sign_in_to_sign_out(api: Api) -> None:
    host = {"Origin": "http://localhost"}
    signed_in = await api.client.post("/v1/sign-in", json={"token": ADMIN}, headers=host)
    cookie = signed_in.headers["set-cookie"].partition(";")[0]
    api.client.headers.pop("Authorization")
    api.client.cookies.clear()
    browser = host | {"Cookie": cookie}
    created = await api.client.post("/v1/tokens", json={"name": "n", "scopes": ["read"]}, headers=browser)
    assert created.status_code == 201
    assert (await api.client.post("/v1/sign-out", headers=browser)).status_code == 204
    assert (await api.client.post("/v1/sign-out", headers=browser)).status_code == 204
    found = await entries(api, bearer(ADMIN), order="oldest")
    assert [entry["action"] for entry in found] == ["signed_in", "token_created", "signed_out"]
    assert len({entry["session"] for entry in found}) == 1
    assert cookie.partition("=")[2] not in str(found)


async def test_a_refused_token_has_an_entry_with_its_claimed_id_and_no_secret(api: Api, settings: Settings) -> None:
    for text in ("sy_0123456789abcdef_wrong-secret", "a-password-of-something-else"):
        assert (await api.client.get("/v1/jobs", headers=bearer(text))).status_code == 401
    found = await entries(api, action="token_refused", order="oldest")
    assert [(entry.get("token"), entry["details"]["route"]) for entry in found] == [
        ("0123456789abcdef", "/v1/jobs"),
        (None, "/v1/jobs"),
    ]
    assert b"secret" not in b"".join(lines(settings))
    assert b"password" not in b"".join(lines(settings))


async def test_a_refused_scope_has_an_entry_with_who_lacked_it(api: Api) -> None:
    reader = api.token(Scope.READ, tenant="rival")
    assert (await api.client.post("/v1/jobs", json={}, headers=reader)).status_code == 403
    assert (await api.client.get("/v1/audit", headers=reader)).status_code == 403
    (entry,) = await entries(api, action="scope_refused")
    assert (entry["tenant"], entry["details"]["route"], entry["status"]) == ("rival", "/v1/jobs", 403)


async def test_a_flood_of_refused_tokens_has_few_entries_and_its_number(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_repeats, "WINDOW_SECONDS", 3600.0)
    for number in range(300):
        assert (await api.client.get("/v1/jobs", headers=bearer(f"sy_{number:016x}_x"))).status_code == 401
    await api.client.post("/v1/tokens", json={"name": "n", "scopes": ["read"]})
    api.app.state.write_audit_repeats(at_once=True)
    found = await entries(api, limit=1000)
    refused = [entry for entry in found if entry["action"] == "token_refused"]
    assert len(refused) <= 122
    assert sum(entry.get("repeated", 1) for entry in refused) == 300
    assert [entry["action"] for entry in found if entry["action"] == "token_created"] == ["token_created"]


async def test_nothing_that_a_terminal_obeys_gets_into_an_entry(api: Api, settings: Settings) -> None:
    evil = "\x1b[2J\u202egnp.exe\u2066\r\n"
    headers: dict[str, Any] = {"X-Request-ID": b"\x9b1m\xe9"}
    await api.client.post("/v1/tokens", json={"name": "n", "scopes": ["read"]}, headers=headers)
    made_up = AuditEntry("", format_time(0), "a", 200, path=evil, details={evil: [evil, {"k": evil}]})
    for line in [*lines(settings), audit_log.encode_entry(made_up, 1, "x")]:
        assert line.isascii()
        assert line.decode().isprintable()
        texts = json.loads(line)
        assert all(text.isprintable() for text in (texts["path"], texts.get("request_id", ""), str(texts["details"])))


# -- reading ---------------------------------------------------------------------------------------


async def test_an_administrator_of_a_tenant_reads_its_entries_alone(api: Api) -> None:
    rival = api.token(Scope.ADMIN, tenant="rival")
    await api.client.post("/v1/tokens", json={"name": "a", "scopes": ["read"]})
    await api.client.post("/v1/tokens", json={"name": "b", "scopes": ["read"]}, headers=rival)
    assert {entry["tenant"] for entry in await entries(api, rival)} == {"rival"}
    assert {entry["tenant"] for entry in await entries(api)} == {"rival", "default"}
    assert {entry["tenant"] for entry in await entries(api, tenant="rival")} == {"rival"}
    assert (await api.client.get("/v1/audit?tenant=default", headers=rival)).status_code == 403


async def test_pages_follow_each_other_in_both_orders(api: Api, settings: Settings) -> None:
    names = [f"t{number}" for number in range(7)]
    for name in names:
        await api.client.post("/v1/tokens", json={"name": name, "scopes": ["read"]})
    expected = [json.loads(line)["id"] for line in lines(settings)]
    for order, wanted in (("oldest", expected), ("newest", expected[::-1])):
        seen, cursor = [], ""
        while True:
            query = {"order": order, "limit": 3, "cursor": cursor, "action": "token_created"}
            page = await api.get("/v1/audit", params=query)
            seen += [entry["id"] for entry in page["entries"]]
            if page["next"] is None:
                break
            cursor = page["next"]
        assert seen == wanted


async def test_a_page_says_how_many_entries_are_known_and_where_it_goes_on(api: Api) -> None:
    for name in ("one", "two", "three"):
        await api.client.post("/v1/tokens", json={"name": name, "scopes": ["read"]})
    first = await api.client.get("/v1/audit?limit=2&action=token_created")
    page = first.json()
    assert (len(page["entries"]), page["total"], page["total_is_exact"]) == (2, 2, False)
    assert first.links["next"]["url"] == page["links"]["next"]
    rest = await api.get(page["links"]["next"])
    assert (len(rest["entries"]), rest["total"], rest["links"].keys()) == (1, None, {"self"})
    whole = await api.get("/v1/audit?action=token_created")
    assert (len(whole["entries"]), whole["total"], whole["total_is_exact"]) == (3, 3, True)


async def test_times_and_tokens_select_entries(api: Api) -> None:
    other = api.token(Scope.ADMIN)
    for headers in (None, other, None):
        await api.client.post("/v1/tokens", json={"name": "n", "scopes": ["read"]}, headers=headers)
    _, second, third = await entries(api, order="oldest")
    assert await entries(api, since=second["at"], until=third["at"]) == [second]
    assert await entries(api, token=second["token"], action="token_created,signed_in") == [second]
    assert (await api.client.get("/v1/audit?since=yesterday")).status_code == 422
    assert (await api.client.get("/v1/audit?cursor=x")).status_code == 400


@pytest.mark.parametrize(("form", "accept"), [({"format": "jsonl"}, "*/*"), ({}, "application/x-ndjson")])
async def test_it_can_be_had_as_json_lines(api: Api, form: dict[str, str], accept: str) -> None:
    for name in ("one", "two"):
        await api.client.post("/v1/tokens", json={"name": name, "scopes": ["read"]})
    headers, query = {"Accept": accept}, {"limit": "1", "order": "oldest"}
    answer = await api.client.get("/v1/audit", params=query | form, headers=headers)
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert [json.loads(line)["action"] for line in answer.text.splitlines()] == ["token_created"]
    following = await api.client.get(answer.links["next"]["url"], headers=headers)
    assert len(following.text.splitlines()) == 1
    assert following.text != answer.text


async def test_the_client_reads_all_pages_in_order_and_follows(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_entries, "PAGE_ENTRIES", 2)
    monkeypatch.setattr(audit_entries, "POLL_SECONDS", 0.01)
    for number in range(5):
        await api.client.post("/v1/tokens", json={"name": f"t{number}", "scopes": ["read"]})
    expected = [entry["id"] for entry in await entries(api, order="oldest", action="token_created")]
    transport = httpx.ASGITransport(app=api.app)
    async with AsyncClient("http://localhost", ADMIN, transport=transport) as client:
        assert [entry.id async for entry in client.audit(newest=3, action="token_created")] == expected[2:]
        start = datetime.now(UTC) - timedelta(hours=1)
        assert [entry.id async for entry in client.audit(since=start, action="token_created")] == expected
        async with aclosing(client.audit(newest=1, follow=True, action="token_created")) as followed:
            assert (await anext(followed)).id == expected[-1]
            await api.client.post("/v1/tokens", json={"name": "new", "scopes": ["read"]})
            newest = await asyncio.wait_for(anext(followed), 60)
            assert (newest.action, newest.details["scopes"]) == ("token_created", ["read"])


# -- keeping ---------------------------------------------------------------------------------------


async def test_entries_outlive_their_process_and_those_of_several_are_merged(settings: Settings) -> None:
    async with running(settings) as one, running(settings) as two:
        for number in range(4):
            api = (one, two)[number % 2]
            await api.client.post("/v1/tokens", json={"name": f"t{number}", "scopes": ["read"]})
    async with running(settings) as api:
        found = await entries(api, order="oldest", action="token_created")
    assert len(found) == 4
    assert [entry["at"] for entry in found] == sorted(entry["at"] for entry in found)
    assert len({entry["id"].partition("-")[2] for entry in found}) == 2


async def test_files_are_for_the_service_alone(api: Api, settings: Settings) -> None:
    await api.client.post("/v1/tokens", json={"name": "n", "scopes": ["read"]})
    (day,) = audit_files.audit_dir(settings.storage).iterdir()
    (file,) = day.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


async def test_full_files_are_followed_by_new_ones(
    api: Api, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log, "MAX_FILE_BYTES", 500)
    for _ in range(6):
        await api.client.post("/v1/tokens", json={"name": "n", "scopes": ["read"]})
    files = list(audit_files.audit_dir(settings.storage).glob("*/*.jsonl"))
    assert len(files) >= 3
    assert len(await entries(api, action="token_created")) == 6


async def test_entries_wait_while_they_cannot_be_written_and_then_nothing_is_changed(
    api: Api, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(audit_log, "MAX_WAITING", 2)
    directory = audit_files.audit_dir(settings.storage)
    directory.write_text("no directory")
    body = {"name": "n", "scopes": ["read"]}
    assert [(await api.client.post("/v1/tokens", json=body)).status_code for _ in range(3)] == [201, 201, 503]
    refused = await api.client.post("/v1/tokens", json=body)
    assert refused.json()["code"] == "unavailable"
    assert "audit log cannot be written" in refused.json()["detail"]
    assert (await api.client.get("/v1/tokens")).status_code == 200
    assert (await api.client.get("/readyz")).json()["checks"]["audit"] == "cannot be written: Not a directory"
    assert "shardyard_audit_waiting 2.0" in (await api.client.get("/metrics")).text
    directory.unlink()
    async with asyncio.timeout(60):
        while (await api.client.post("/v1/tokens", json=body)).status_code != 201:
            await asyncio.sleep(0.05)
    assert await actions(api, action="token_created") == ["token_created"] * 3


async def test_a_line_that_was_cut_off_hides_no_other(api: Api, settings: Settings) -> None:
    await api.client.post("/v1/tokens", json={"name": "n", "scopes": ["read"]})
    (file,) = audit_files.audit_dir(settings.storage).glob("*/*.jsonl")
    with file.open("ab") as torn:
        torn.write(b'{"id":"9999')
        os.fsync(torn.fileno())
    assert await actions(api) == ["token_created"]


def test_old_days_are_removed(tmp_path: Path) -> None:
    for day in ("2026-01-01", "2026-01-02", "2026-01-30", "other"):
        (tmp_path / day).mkdir()
    now = 1_769_860_800_000_000  # 2026-01-31T12:00:00Z
    audit_retention.sweep_audit(tmp_path, 29, now=now)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2026-01-02", "2026-01-30", "other"]


def test_an_entry_outlives_a_kill_right_after_the_answer(settings: Settings, tmp_path: Path) -> None:
    with api_process(tmp_path, settings.control_url(), STORAGE=str(settings.storage)) as process:
        url, body = f"http://127.0.0.1:{process.port()}", {"name": "n", "scopes": ["read"]}
        with httpx.Client(base_url=url, headers=bearer(ADMIN), timeout=60) as client:
            made = [client.post("/v1/tokens", json=body).json()["id"] for _ in range(3)]
            process.child.kill()
    assert [json.loads(line)["details"]["created"] for line in lines(settings)] == made


def test_it_is_part_of_back_ups() -> None:
    chosen = StorageSelection(Path(), {})
    assert chosen.has(["audit"])
    assert chosen.has(["audit", "2026-01-31", "1-a.jsonl"])
