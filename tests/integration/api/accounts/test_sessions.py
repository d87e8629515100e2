"""Signing in with a browser: a cookie stands for the token, and only our own pages may use it to change something."""

import pytest
from httpx import Response

from jobs.protocol.names import sign_in_code_key
from jobs.store.accounts import sessions
from jobs.store.accounts.tokens import Scope, hash_secret
from jobs.store.call import Call
from tests.integration.api.conftest import ADMIN, Api, bearer

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

OWN = {"Origin": "http://localhost", "Host": "localhost"}


async def sign_in(api: Api, scope: Scope = Scope.SUBMIT) -> dict[str, str]:
    """Headers of a browser that has signed in; the client's own token is taken out of them."""
    token = api.token(scope)["Authorization"].removeprefix("Bearer ")
    answer = await api.client.post("/v1/sign-in", json={"token": token}, headers=OWN)
    assert answer.status_code == 204, answer.text
    return {"Cookie": cookie_of(answer).partition(";")[0]}


def cookie_of(answer: Response) -> str:
    value: str = answer.headers["set-cookie"]
    return value


@pytest.fixture(autouse=True)
def browser(api: Api) -> None:
    """A client that sends no token by itself, and keeps no cookies."""
    del api.client.headers["Authorization"]


async def test_a_session_may_read_and_its_cookie_is_kept_from_scripts_and_other_sites(api: Api) -> None:
    token = api.token(Scope.READ)["Authorization"].removeprefix("Bearer ")
    answer = await api.client.post("/v1/sign-in", json={"token": token}, headers=OWN)
    cookie = cookie_of(answer)
    assert token not in cookie
    assert all(part in cookie for part in ("HttpOnly", "SameSite=strict", "Path=/", "Max-Age=43200"))
    api.client.cookies.clear()
    me = await api.client.get("/v1/me", headers={"Cookie": cookie.partition(";")[0]})
    assert (me.status_code, me.json()["scopes"]) == (200, ["read"])


@pytest.mark.parametrize(("scheme", "secure"), [("http", False), ("https", True)])
async def test_a_browser_that_came_over_tls_sends_the_cookie_over_tls_alone(
    api: Api, scheme: str, secure: bool
) -> None:
    """Also where a proxy ends TLS: the service itself is spoken to in plain HTTP."""
    token = api.token(Scope.READ)["Authorization"].removeprefix("Bearer ")
    origin = {"Origin": f"{scheme}://localhost", "Host": "localhost"}
    answer = await api.client.post("/v1/sign-in", json={"token": token}, headers=origin)
    assert ("Secure" in cookie_of(answer)) == secure


@pytest.mark.parametrize(
    "headers",
    [{}, {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": "http://localhost:9999"}],
    ids=["none", "another site", "opaque", "another port"],
)
async def test_a_page_from_elsewhere_changes_nothing_with_the_cookie(api: Api, headers: dict[str, str]) -> None:
    api.node()
    session = await sign_in(api)
    api.client.cookies.clear()
    answer = await api.client.post(
        "/v1/jobs/cancel", json={"all": True}, headers={"Host": "localhost", **session, **headers}
    )
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    answer = await api.client.post("/v1/jobs/cancel", json={"all": True}, headers={**OWN, **session})
    assert answer.status_code == 200


async def test_a_session_has_the_rights_of_its_token_and_ends_with_it(api: Api) -> None:
    session = await sign_in(api, Scope.READ)
    api.client.cookies.clear()
    answer = await api.client.post("/v1/jobs/cancel", json={"all": True}, headers={**OWN, **session})
    assert answer.status_code == 403
    me = (await api.client.get("/v1/me", headers=session)).json()
    admin = api.token(Scope.ADMIN)
    assert (await api.client.delete(f"/v1/tokens/{me['token']}", headers=admin)).status_code == 204
    assert (await api.client.get("/v1/me", headers=session)).status_code == 401


async def test_signing_out_ends_the_session_for_good(api: Api) -> None:
    session = await sign_in(api)
    api.client.cookies.clear()
    answer = await api.client.post("/v1/sign-out", headers={**OWN, **session})
    assert answer.status_code == 204
    assert "Max-Age=0" in cookie_of(answer)
    api.client.cookies.clear()
    assert (await api.client.get("/v1/me", headers=session)).status_code == 401


async def test_redis_never_holds_what_a_browser_holds_and_a_session_runs_out(api: Api) -> None:
    session = await sign_in(api)
    value = session["Cookie"].partition("=")[2]
    (key,) = api.control.client.keys("sy:session:*")
    assert value.encode() not in key
    assert 0 < api.control.client.ttl(key) <= sessions.SESSION_SECONDS


@pytest.mark.parametrize("token", ["sy_aaaa_bbbb", "guess", "x" * 512])
async def test_a_wrong_token_opens_no_session(api: Api, token: str) -> None:
    answer = await api.client.post("/v1/sign-in", json={"token": token}, headers=OWN)
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("body", ["{}", '{"token": ""}', '{"token": 1}', '{"token": "%s"}' % ("s3cret" * 200)])
async def test_a_sign_in_without_a_usable_token_is_told_so_without_repeating_it(api: Api, body: str) -> None:
    answer = await api.client.post("/v1/sign-in", content=body, headers=OWN)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "token")
    assert "s3cret" not in answer.text


@pytest.mark.parametrize("cookie", ["", "x", "y" * 65, "%00", "ü"])
async def test_a_made_up_session_is_none(api: Api, cookie: str) -> None:
    headers = [(b"cookie", b"shardyard_session=" + cookie.encode())]
    assert (await api.client.get("/v1/me", headers=headers)).status_code == 401


async def test_pages_hold_no_data_load_nothing_from_elsewhere_and_run_no_inline_script(api: Api) -> None:
    for path in ("/", "/jobs/anything", "/submit", "/compare", "/nodes", "/quota", "/webhooks", "/sign-in"):
        answer = await api.client.get(path)
        assert answer.status_code == 200
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "://" not in answer.text
    assert (await api.client.get("/assets/../auth.py")).status_code == 404
    assert (await api.client.get("/assets/.stamp")).status_code == 404


async def issue_code(api: Api) -> Response:
    return await api.client.post("/v1/sign-in/code", headers=api.token(Scope.SUBMIT))


async def test_the_code_of_a_link_signs_in_once_for_the_owner_of_the_token(api: Api) -> None:
    issued = await issue_code(api)
    assert (issued.status_code, issued.headers["cache-control"]) == (201, "no-store")
    body = {"code": issued.json()["code"]}
    answer = await api.client.post("/v1/sign-in", json=body, headers=OWN)
    assert answer.status_code == 204, answer.text
    again = await api.client.post("/v1/sign-in", json=body, headers=OWN)
    assert (again.status_code, again.json()["code"]) == (401, "unauthenticated")
    assert "already been used" in again.json()["detail"]
    api.client.cookies.clear()
    me = await api.client.get("/v1/me", headers={"Cookie": cookie_of(answer).partition(";")[0]})
    assert me.json()["scopes"] == ["submit"]


async def test_a_code_is_no_session_and_ends_by_itself(api: Api) -> None:
    code = (await issue_code(api)).json()["code"]
    me = await api.client.get("/v1/me", headers={"Cookie": f"shardyard_session={code}"})
    assert me.status_code == 401
    left = api.control.run(Call(("TTL", sign_in_code_key(hash_secret(code))), int))
    assert 0 < left <= sessions.CODE_SECONDS


async def test_a_code_is_not_taken_where_others_could_read_it(api: Api) -> None:
    code = (await issue_code(api)).json()["code"]
    for origin in ({}, {"Origin": "http://shardyard.example"}):
        answer = await api.client.post("/v1/sign-in", json={"code": code}, headers={"Host": "localhost", **origin})
        assert answer.status_code == 403, origin
    over_tls = {"Origin": "https://localhost", "Host": "localhost"}
    assert (await api.client.post("/v1/sign-in", json={"code": code}, headers=over_tls)).status_code == 204


async def test_a_session_cannot_make_another_by_a_code(api: Api) -> None:
    cookie = await sign_in(api)
    assert (await api.client.post("/v1/sign-in/code", headers=cookie | OWN)).status_code == 403


async def test_a_code_ends_with_its_token(api: Api) -> None:
    headers = api.token(Scope.SUBMIT)
    issued = await api.client.post("/v1/sign-in/code", headers=headers)
    assert issued.status_code == 201, issued.text
    code = issued.json()["code"]
    token = (await api.client.get("/v1/me", headers=headers)).json()["token"]
    assert (await api.client.delete(f"/v1/tokens/{token}", headers=bearer(ADMIN))).status_code == 204
    answer = await api.client.post("/v1/sign-in", json={"code": code}, headers=OWN)
    assert answer.status_code == 401


@pytest.mark.parametrize("body", [{}, {"token": "sy_x_y", "code": "z"}, {"code": ""}, {"code": "x" * 65}])
async def test_a_sign_in_has_a_token_or_a_code(api: Api, body: dict[str, str]) -> None:
    assert (await api.client.post("/v1/sign-in", json=body, headers=OWN)).status_code == 422
