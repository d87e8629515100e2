"""Single sign-on with a real identity provider: people in browsers and at command lines, and what rules give them."""

import json
import re
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from httpx import Response

from api.accounts.single_sign_on import service as service_module
from jobs.model.records import BOX_RIGHTS, BoxRights
from jobs.model.settings import Settings
from jobs.store.accounts import tokens
from jobs.store.accounts.tokens import Scope
from shardyard import cli
from shardyard.client import logins
from shardyard.client.logins import StoredLogin
from tests.integration.api.conftest import ADMIN, Api, bearer, running
from tests.integration.api.system.test_process import api_process, until
from tests.support.servers.identity_provider import (
    CLIENT_ID,
    CLIENT_SECRET,
    enter_code,
    query_of,
    running_provider,
    sign_in_there,
)

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

OIDC_SETTINGS = ("issuer", "client_id", "rules_file", "scopes")
BROWSERS_ACCEPT = "text/html,application/xhtml+xml,*/*;q=0.8"
OWN = {"Origin": "http://localhost", "Host": "localhost"}
NO_BOX = BoxRights("none", dict.fromkeys(BOX_RIGHTS, "user namespaces are turned off"))
RULES = """
[[rule]]
claim = "groups"
value = "operators"
tenant = "default"
scopes = ["admin"]

[[rule]]
claim = "groups"
value = "vision"
tenant = "vision"
scopes = ["submit"]
"""


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_provider(tmp_path_factory.mktemp("provider") / "config") as issuer:
        yield issuer


def with_sign_on(settings: Settings, issuer: str, rules: str = RULES, **more: Any) -> Settings:
    file = settings.storage / "rules.toml"
    file.write_text(rules)
    chosen = {
        "public_url": "http://localhost",
        "oidc_issuer": issuer,
        "oidc_client_id": CLIENT_ID,
        "oidc_client_secret": CLIENT_SECRET,
        "oidc_rules_file": file,
    }
    return Settings.model_validate(settings.model_dump() | chosen | more)


@pytest.fixture
async def api(settings: Settings, issuer: str) -> AsyncIterator[Api]:
    async with running(with_sign_on(settings, issuer)) as api:
        become_a_browser(api)
        yield api


def become_a_browser(api: Api) -> None:
    """A client that sends no token by itself, and wants pages."""
    del api.client.headers["Authorization"]
    api.client.headers["Accept"] = BROWSERS_ACCEPT


async def come_back(api: Api, name: str, next_path: str = "/") -> Response:
    """The answer that somebody's browser gets when the provider sends it back."""
    begun = await api.client.get("/v1/sign-in/oidc", params={"next": next_path})
    assert begun.status_code == 303, begun.text
    return await api.client.get(
        "/v1/sign-in/oidc/callback", params=query_of(sign_in_there(begun.headers["location"], name))
    )


async def sign_in(api: Api, name: str) -> dict[str, str]:
    """Headers of the browser of somebody who has signed in."""
    answer = await come_back(api, name)
    assert answer.status_code == 303, answer.text
    session = answer.cookies["shardyard_session"]
    api.client.cookies.clear()
    return {"Cookie": f"shardyard_session={session}"}


async def own_tokens(api: Api, tenant: str) -> list[dict[str, Any]]:
    """The tokens of a tenant, as its administrator sees them."""
    admin = api.token(Scope.ADMIN, tenant=tenant)
    found = (await api.get("/v1/tokens", headers=admin))["tokens"]
    return [token for token in found if token["name"] != "a test"]


async def device_answer(api: Api, code: str) -> Response:
    return await api.client.post("/v1/sign-in/device/token", json={"device_code": code})


async def log_in(api: Api, name: str) -> dict[str, Any]:
    """The token that somebody's command line gets."""
    begun = (await api.client.post("/v1/sign-in/device")).json()
    enter_code(begun["verification_uri"], begun["user_code"], name)
    answer = await device_answer(api, begun["device_code"])
    assert answer.status_code == 200, answer.text
    token: dict[str, Any] = answer.json()["token"]
    return token


# -- browsers --------------------------------------------------------------------------------------


async def test_somebody_with_a_rule_gets_a_session_with_its_tenant_and_scopes(api: Api) -> None:
    answer = await come_back(api, "alice", "/jobs/x?tab=logs")
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs/x?tab=logs")
    (cookie,) = [value for value in answer.headers.get_list("set-cookie") if value.startswith("shardyard_session=")]
    assert all(part in cookie for part in ("HttpOnly", "SameSite=strict", "Max-Age=28800"))
    me = await api.get("/v1/me")
    assert (me["tenant"], me["scopes"], me["operator"]) == ("vision", ["submit"], False)
    (token,) = await own_tokens(api, "vision")
    assert (token["id"], token["name"]) == (me["token"], "alice (browser)")
    (key,) = api.control.client.keys("sy:session:*")
    assert 0 < api.control.client.ttl(key) <= 28_800


async def test_the_first_rule_that_matches_decides(api: Api) -> None:
    session = await sign_in(api, "olga")
    me = await api.get("/v1/me", headers=session)
    assert (me["tenant"], me["scopes"]) == ("default", ["admin"])


async def test_somebody_without_a_rule_gets_a_page_that_says_so_and_no_session(api: Api) -> None:
    answer = await come_back(api, "eve")
    assert (answer.status_code, answer.headers["content-type"]) == (403, "text/html; charset=utf-8")
    assert "Eve is signed in at the identity provider, but has no access to this service" in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "shardyard_session" not in answer.headers.get("set-cookie", "")
    (refused,) = (await api.get("/v1/audit", params={"action": "scope_refused"}, headers=bearer(ADMIN)))["entries"]
    assert refused["token_name"] == "eve (single sign-on)"


async def test_sign_ins_are_in_the_audit_with_the_persons_subject(api: Api) -> None:
    await sign_in(api, "alice")
    entries = (await api.get("/v1/audit", params={"tenant": "vision"}, headers=bearer(ADMIN)))["entries"]
    (entry,) = [entry for entry in entries if entry["action"] == "signed_in"]
    assert entry["details"] == {"by": "single_sign_on", "subject": "alice"}
    assert (entry["tenant"], entry["token_name"], bool(entry["session"])) == ("vision", "alice (browser)", True)


async def test_the_way_back_works_once_and_in_the_browser_that_began_alone(api: Api) -> None:
    begun = await api.client.get("/v1/sign-in/oidc")
    query = query_of(sign_in_there(begun.headers["location"], "alice"))
    cookie = dict(api.client.cookies)
    api.client.cookies.clear()
    elsewhere = await api.client.get("/v1/sign-in/oidc/callback", params=query)
    assert (elsewhere.status_code, "did not begin in this browser" in elsewhere.text) == (401, True)
    headers = {"Cookie": "; ".join(f"{name}={value}" for name, value in cookie.items())}
    for wrong in ({}, {"state": ""}, {"state": "x" * 43}, {"state": "ü"}):
        changed = {"code": query["code"]} | wrong
        refused = await api.client.get("/v1/sign-in/oidc/callback", params=changed, headers=headers)
        assert refused.status_code == 401
    assert (await api.client.get("/v1/sign-in/oidc/callback", params=query, headers=headers)).status_code == 303
    api.client.cookies.clear()
    again = await api.client.get("/v1/sign-in/oidc/callback", params=query, headers=headers)
    assert (again.status_code, "it has already been used" in again.text) == (401, True)


async def test_a_code_of_another_browsers_sign_in_is_refused_by_its_verifier(api: Api) -> None:
    """Somebody who steals a code cannot use it in a sign-in of their own: the provider compares the PKCE verifier."""
    stolen = query_of(sign_in_there((await api.client.get("/v1/sign-in/oidc")).headers["location"], "olga"))["code"]
    api.client.cookies.clear()
    own = query_of((await api.client.get("/v1/sign-in/oidc")).headers["location"])["state"]
    answer = await api.client.get("/v1/sign-in/oidc/callback", params={"code": stolen, "state": own})
    assert answer.status_code == 401
    assert "shardyard_session" not in answer.headers.get("set-cookie", "")


@pytest.mark.parametrize(
    "path",
    ["//evil.example", "https://evil.example", "/\\evil.example", "\\\\evil.example", "/a\nb", "javascript:x", "", "x"],
)
async def test_a_sign_in_ends_on_a_page_of_this_service_alone(api: Api, path: str) -> None:
    answer = await api.client.get("/v1/sign-in/oidc", params={"next": path})
    assert answer.status_code == 422
    assert "location" not in answer.headers
    assert "set-cookie" not in answer.headers


async def test_signing_in_again_keeps_other_browsers_and_losing_the_rule_ends_all(
    settings: Settings, issuer: str
) -> None:
    async with running(with_sign_on(settings, issuer)) as api:
        become_a_browser(api)
        first, second = await sign_in(api, "alice"), await sign_in(api, "alice")
        token = await log_in(api, "alice")
        everywhere = (first, second, bearer(token["token"]))
        assert [(await api.client.get("/v1/me", headers=each)).status_code for each in everywhere] == [200, 200, 200]
    async with running(with_sign_on(settings, issuer, RULES.replace('"vision"\ntenant', '"others"\ntenant'))) as api:
        become_a_browser(api)
        assert (await come_back(api, "alice")).status_code == 403
        assert [(await api.client.get("/v1/me", headers=each)).status_code for each in everywhere] == [401, 401, 401]
        assert await own_tokens(api, "vision") == []
        ended = (await api.get("/v1/audit", params={"action": "token_revoked"}, headers=bearer(ADMIN)))["entries"]
        assert {(entry["tenant"], entry["details"]["by"]) for entry in ended} == {("vision", "single_sign_on")}
        assert token["id"] in {entry["details"]["revoked"] for entry in ended}


async def test_a_change_of_rights_ends_what_began_under_the_old_ones(settings: Settings, issuer: str) -> None:
    async with running(with_sign_on(settings, issuer)) as api:
        become_a_browser(api)
        old = await sign_in(api, "alice")
    async with running(with_sign_on(settings, issuer, RULES.replace('["submit"]', '["read"]'))) as api:
        become_a_browser(api)
        new = await sign_in(api, "alice")
        assert (await api.client.get("/v1/me", headers=old)).status_code == 401
        assert (await api.get("/v1/me", headers=new))["scopes"] == ["read"]


async def test_a_session_that_an_administrator_has_revoked_stays_ended(api: Api) -> None:
    """Also when its owner signs in again, whose token has the same id."""
    stolen = await sign_in(api, "alice")
    me = await api.get("/v1/me", headers=stolen)
    admin = api.token(Scope.ADMIN, tenant="vision")
    assert (await api.client.delete(f"/v1/tokens/{me['token']}", headers=admin)).status_code == 204
    fresh = await sign_in(api, "alice")
    assert (await api.get("/v1/me", headers=fresh))["token"] == me["token"]
    assert (await api.client.get("/v1/me", headers=stolen)).status_code == 401


async def test_signing_out_and_signing_in_with_a_token_work_as_before(api: Api) -> None:
    session = await sign_in(api, "alice")
    assert (await api.client.post("/v1/sign-out", headers=OWN | session)).status_code == 204
    api.client.cookies.clear()
    assert (await api.client.get("/v1/me", headers=session)).status_code == 401
    assert (await api.client.post("/v1/sign-in", json={"token": ADMIN}, headers=OWN)).status_code == 204


async def test_a_second_tenant_needs_boxes_for_people_too(api: Api) -> None:
    api.node(box=NO_BOX)
    answer = await come_back(api, "alice")
    assert answer.status_code == 409
    assert "box" in answer.text
    assert (await come_back(api, "olga")).status_code == 303


# -- command lines ---------------------------------------------------------------------------------


async def test_a_command_line_gets_a_token_that_ends_by_itself(api: Api) -> None:
    begun = (await api.client.post("/v1/sign-in/device")).json()
    assert (await device_answer(api, begun["device_code"])).json() == {"state": "pending", "token": None}
    enter_code(begun["verification_uri"], begun["user_code"], "alice")
    token = (await device_answer(api, begun["device_code"])).json()["token"]
    assert (token["tenant"], token["scopes"], token["name"]) == ("vision", ["submit"], "alice (command line)")
    assert token["expires_at"] is not None
    me = await api.get("/v1/me", headers=bearer(token["token"]))
    assert (me["tenant"], me["token"]) == ("vision", token["id"])
    assert (await device_answer(api, begun["device_code"])).status_code == 401


async def test_a_command_line_whose_sign_in_is_denied_is_told_so(api: Api) -> None:
    begun = (await api.client.post("/v1/sign-in/device")).json()
    enter_code(begun["verification_uri"], begun["user_code"], "alice", "deny")
    answer = await device_answer(api, begun["device_code"])
    assert (answer.status_code, answer.json()["code"]) == (401, "sign_in_failed")
    assert "denied" in answer.json()["detail"]


async def test_somebody_without_a_rule_gets_no_token(api: Api) -> None:
    begun = (await api.client.post("/v1/sign-in/device")).json()
    enter_code(begun["verification_uri"], begun["user_code"], "eve")
    answer = await device_answer(api, begun["device_code"])
    assert (answer.status_code, answer.json()["code"]) == (403, "no_access")


@pytest.mark.parametrize("body", ["{}", '{"device_code": ""}', '{"device_code": "a b"}', '{"device_code": 1}'])
async def test_a_body_without_a_device_code_is_told_so(api: Api, body: str) -> None:
    answer = await api.client.post("/v1/sign-in/device/token", content=body)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "device_code")


async def test_a_token_of_a_browsers_sessions_is_good_for_nothing_else(api: Api) -> None:
    session = await sign_in(api, "alice")
    me = await api.get("/v1/me", headers=session)
    record = api.control.run(tokens.read_token(me["token"]))
    assert record is not None
    for guess in (record.digest, "", me["token"]):
        answer = await api.client.get("/v1/me", headers=bearer(f"sy_{me['token']}_{guess}"))
        assert answer.status_code == 401


@pytest.fixture
def service(issuer: str, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a service with single sign-on, for commands that have no token for it."""
    monkeypatch.setenv("SHARDYARD_DATA_DIR", str(tmp_path / "own"))
    monkeypatch.delenv("SHARDYARD_TOKEN", raising=False)
    chosen = with_sign_on(settings, issuer)
    more = {
        name.upper(): str(getattr(chosen, name)) for name in ("public_url", *(f"oidc_{name}" for name in OIDC_SETTINGS))
    }
    more["OIDC_CLIENT_SECRET"] = CLIENT_SECRET
    with api_process(tmp_path, chosen.control_url(), **more) as process:
        url = f"http://127.0.0.1:{process.port()}"
        monkeypatch.setenv("SHARDYARD_URL", url)
        yield url


def log_in_by_command(capsys: pytest.CaptureFixture[str], name: str, action: str = "authorize") -> tuple[int, str]:
    """The exit code of `shardyard login` while somebody enters its code, and what it prints."""
    ended: list[int] = []
    printed: list[str] = []
    running = threading.Thread(target=lambda: ended.append(run_command("login")))
    running.start()

    def code() -> re.Match[str] | None:
        printed.extend(capsys.readouterr())
        return re.search(r"Open (\S+?)(?:\?\S*)?\nin a browser, and enter or compare the code (\S+)", "".join(printed))

    found = until(code)
    enter_code(found[1], found[2], name, action)
    running.join(60)
    return ended[0], "".join([*printed, *capsys.readouterr()])


def run_command(*args: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(list(args))
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_login_stores_a_token_that_only_its_owner_can_read_and_commands_use_it(
    service: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run_command("list") == 4
    assert "sign in with `shardyard login`" in capsys.readouterr().err
    code, printed = log_in_by_command(capsys, "alice")
    assert code == 0, printed
    assert f"signed in to {service} as alice (command line): tenant vision, submit until" in printed
    file = tmp_path / "own" / "logins.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert json.loads(file.read_text())[service]["token"] not in printed
    assert run_command("list") == 0
    token = json.loads(file.read_text())[service]["token"]
    capsys.readouterr()
    assert run_command("logout") == 0
    assert "its token is revoked" in capsys.readouterr().out
    assert httpx.get(f"{service}/v1/me", headers=bearer(token)).status_code == 401
    assert run_command("list") == 4
    denied, printed = log_in_by_command(capsys, "alice", "deny")
    assert (denied, "the sign-in was denied" in printed) == (4, True)
    assert json.loads(file.read_text()) == {}


def test_logout_says_so_when_the_service_is_away(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDYARD_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("SHARDYARD_TOKEN", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    logins.store_login(tmp_path, url, StoredLogin("sy_1_2", datetime.now(UTC) + timedelta(hours=1)))
    assert run_command("logout", "--url", url) == 0
    assert "but its token works until" in capsys.readouterr().out
    assert logins.read_login(tmp_path, url) is None


async def test_signing_out_revokes_a_login_and_no_other_token(api: Api) -> None:
    login = bearer((await log_in(api, "alice"))["token"])
    assert (await api.client.get("/v1/me", headers=login)).status_code == 200
    for _ in range(2):  # the repeat is no error
        assert (await api.client.post("/v1/sign-out", headers=login)).status_code == 204
        assert (await api.client.get("/v1/me", headers=login)).status_code == 401
    for other in (api.token(Scope.SUBMIT), bearer(ADMIN)):
        refused = await api.client.post("/v1/sign-out", headers=other)
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
        assert (await api.client.get("/v1/me", headers=other)).status_code == 200


async def test_sign_ins_that_begin_without_end_at_one_address_are_refused_for_a_while(
    settings: Settings, issuer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "SIGN_INS_AT_ONCE", 2)
    monkeypatch.setattr(service_module, "SIGN_IN_SECONDS", 3600)
    async with running(with_sign_on(settings, issuer)) as api:
        assert (await api.client.get("/v1/sign-in/oidc")).status_code == 303
        assert (await api.client.post("/v1/sign-in/device")).status_code == 200
        for method, path in (("GET", "/v1/sign-in/oidc"), ("POST", "/v1/sign-in/device")):
            refused = await api.client.request(method, path)
            assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
            assert 3590 < int(refused.headers["Retry-After"]) <= 3600


# -- without it ------------------------------------------------------------------------------------


async def test_a_service_without_single_sign_on_says_so(settings: Settings) -> None:
    async with running(settings) as api:
        assert await api.get("/v1/sign-in") == {"single_sign_on": "", "device": False}
        problem = await api.client.get("/v1/sign-in/oidc")
        assert (problem.status_code, problem.json()["code"]) == (404, "not_found")
        page = await api.client.get("/v1/sign-in/oidc", headers={"Accept": BROWSERS_ACCEPT})
        assert (page.status_code, "<p>This service has no single sign-on" in page.text) == (404, True)
        assert (await api.client.get("/v1/sign-in/oidc/callback")).status_code == 404
        assert (await api.client.post("/v1/sign-in/device")).json()["code"] == "not_found"


async def test_the_ways_to_sign_in_are_known_before_one_has(api: Api) -> None:
    assert await api.get("/v1/sign-in") == {"single_sign_on": "localhost", "device": True}
