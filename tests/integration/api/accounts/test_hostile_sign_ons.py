"""Single sign-on when the identity provider's answers are forged, meant for others, late, or do not come."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import pytest
from httpx import Response
from joserfc.jwk import KeySet

from api.accounts.single_sign_on import provider as provider_module
from jobs.model.settings import Settings
from tests.integration.api.accounts.test_single_sign_on import BROWSERS_ACCEPT, become_a_browser, with_sign_on
from tests.integration.api.conftest import Api, running
from tests.support.servers.hostile_provider import Claims, HostileProvider, hostile_provider, make_key
from tests.support.servers.identity_provider import query_of

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

#: Makes the ID token of a sign-in, of the claims that a good one would have.
Forge = Callable[[HostileProvider, Claims], str]
HOUR = 3600


@pytest.fixture
def provider() -> Iterator[HostileProvider]:
    with hostile_provider() as provider:
        yield provider


@pytest.fixture
async def api(settings: Settings, provider: HostileProvider) -> AsyncIterator[Api]:
    async with running(with_sign_on(settings, provider.issuer)) as api:
        become_a_browser(api)
        yield api


async def begin(api: Api) -> dict[str, str]:
    """What a browser is sent to the provider with."""
    answer = await api.client.get("/v1/sign-in/oidc")
    assert answer.status_code == 303, answer.text
    return query_of(answer.headers["location"])


async def finish(api: Api, state: str, **more: str) -> Response:
    query = {"code": "c", "state": state} | more
    return await api.client.get("/v1/sign-in/oidc/callback", params=query)


async def sign_in(api: Api, provider: HostileProvider, forge: Forge, **changes: Any) -> Response:
    sent = await begin(api)
    text = forge(provider, provider.claims(sent["nonce"], **changes))
    provider.token_answer = (200, {"access_token": "a", "token_type": "Bearer", "id_token": text})
    return await finish(api, sent["state"])


def well_signed(provider: HostileProvider, claims: Claims) -> str:
    return provider.sign(claims)


def unsigned(provider: HostileProvider, claims: Claims) -> str:
    _, payload, _ = provider.sign(claims).split(".")
    return f"eyJhbGciOiJub25lIiwia2lkIjoiZmlyc3QifQ.{payload}."  # {"alg":"none","kid":"first"}


def signed_with_the_clients_secret(provider: HostileProvider, claims: Claims) -> str:
    return provider.sign_with_client_secret(claims)


def signed_by_somebody_else(provider: HostileProvider, claims: Claims) -> str:
    provider_keys, provider.keys = provider.keys, KeySet([make_key("first", "somebody else")])
    text = provider.sign(claims)
    provider.keys = provider_keys
    return text


def with_other_claims(provider: HostileProvider, claims: Claims) -> str:
    head, _, signature = provider.sign(claims).split(".")
    return ".".join((head, provider.sign(claims | {"groups": ["operators"]}).split(".")[1], signature))


async def test_a_good_token_is_accepted(api: Api, provider: HostileProvider) -> None:
    assert (await sign_in(api, provider, well_signed)).status_code == 303
    now = int(time.time())
    skewed = {"iat": now + 30, "exp": now - 30}
    assert (await sign_in(api, provider, well_signed, **skewed)).status_code == 303, "clocks differ a little"


async def test_a_token_that_the_provider_has_not_signed_opens_no_session(api: Api, provider: HostileProvider) -> None:
    forgeries: tuple[Forge, ...] = (
        *(unsigned, signed_with_the_clients_secret, signed_by_somebody_else, with_other_claims),
        lambda *_: "x.y.z",
    )
    for forge in forgeries:
        answer = await sign_in(api, provider, forge)
        assert (answer.status_code, "sign in again" in answer.text) == (401, True), forge
        assert "shardyard_session" not in answer.headers.get("set-cookie", "")


async def test_a_token_that_is_not_for_this_sign_in_opens_no_session(api: Api, provider: HostileProvider) -> None:
    now = int(time.time())
    wrong: dict[str, Sequence[Any]] = {
        "nonce": ("another", None),
        "aud": ("another-service", ["shardyard", "another-service"], None),
        "azp": ("another-service",),
        "iss": ("https://evil.example", None),
        "exp": (1, now - 90, None, "tomorrow"),
        "iat": (now + HOUR, None),
        "nbf": (now + HOUR,),
        "sub": (None, "", ["u-1"]),
        "at_hash": ("wrong",),
    }
    for claim, value in ((claim, value) for claim, values in wrong.items() for value in values):
        answer = await sign_in(api, provider, well_signed, **{claim: value})
        assert (answer.status_code, "sign in again" in answer.text) == (401, True), (claim, value)
        assert "shardyard_session" not in answer.headers.get("set-cookie", "")


async def test_a_bad_answer_of_the_provider_is_explained(api: Api, provider: HostileProvider) -> None:
    answers: tuple[tuple[int, dict[str, Any], int, str], ...] = (
        (200, {}, 401, "no ID token"),
        (400, {"error": "invalid_grant"}, 401, "already been used"),
        (400, {"error": "<script>"}, 401, "an unknown error"),
        (401, {"error": "invalid_client"}, 503, "does not accept this service"),
        (500, {}, 503, "status 500"),
        (302, {"location": f"{provider.issuer}/elsewhere"}, 503, "status 302"),
        (200, {"id_token": "x" * 300_000}, 503, "bytes"),
    )
    for status, body, wanted, words in answers:
        sent = await begin(api)
        provider.token_answer = (status, body)
        page = await finish(api, sent["state"])
        assert (page.status_code, words in page.text) == (wanted, True), page.text
        assert "<script" not in page.text
    assert "/elsewhere" not in provider.asked


async def test_an_error_of_the_way_back_is_explained_and_asks_nobody(api: Api, provider: HostileProvider) -> None:
    sent = await begin(api)
    asked = len(provider.asked)
    for error, words in (("access_denied", "was denied"), ("<b>", "an unknown error")):
        page = await finish(api, sent["state"], error=error)
        assert (page.status_code, words in page.text, "<b>" in page.text) == (401, True, False)
    page = await finish(api, sent["state"], iss="https://evil.example")
    assert (page.status_code, "another identity provider" in page.text) == (401, True)
    assert len(provider.asked) == asked


async def test_new_keys_of_the_provider_are_found_and_unknown_ones_asked_for_once(
    api: Api, provider: HostileProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await sign_in(api, provider, well_signed)).status_code == 303
    asked = provider.asked.count("/keys")
    provider.keys = KeySet([*provider.keys.keys, make_key("second")])
    assert (await sign_in(api, provider, well_signed)).status_code == 401, "keys that are this new are not asked again"
    assert provider.asked.count("/keys") == asked
    monkeypatch.setattr(provider_module, "KEYS_AGAIN_SECONDS", 0.0)
    assert (await sign_in(api, provider, well_signed)).status_code == 303
    assert provider.asked.count("/keys") == asked + 1


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"issuer": "https://evil.example"}, "calls itself"),
        ({"token_endpoint": "http://169.254.169.254/latest"}, "without TLS"),
        ({"jwks_uri": "file:///etc/passwd"}, "without TLS"),
        ({"userinfo_endpoint": "http://10.0.0.1/"}, "without TLS"),
        ({"token_endpoint": 1}, "cannot be used"),
    ],
)
async def test_metadata_that_leads_elsewhere_is_not_followed(
    api: Api, provider: HostileProvider, metadata: dict[str, Any], words: str
) -> None:
    provider.metadata = metadata
    page = await api.client.get("/v1/sign-in/oidc")
    assert (page.status_code, words in page.text) == (503, True), page.text
    assert provider.asked == ["/.well-known/openid-configuration"]


async def test_over_tls_cookies_are_for_tls_and_for_this_host_alone(
    settings: Settings, provider: HostileProvider
) -> None:
    """Nobody at another host of the domain can put a sign-in of their own into somebody's browser."""
    url = "https://localhost"
    async with running(with_sign_on(settings, provider.issuer, public_url=url)) as api:
        begun = await api.client.get("/v1/sign-in/oidc")
        cookie = begun.headers["set-cookie"]
        assert cookie.startswith("__Host-shardyard_sign_in=")
        assert all(part in cookie for part in ("HttpOnly", "SameSite=lax", "Path=/;", "Secure", "Max-Age=600"))
        sent = query_of(begun.headers["location"])
        assert sent["redirect_uri"] == f"{url}/v1/sign-in/oidc/callback"
        provider.token_answer = (200, {"id_token": provider.sign(provider.claims(sent["nonce"]))})
        query, headers = {"code": "c", "state": sent["state"]}, {"Cookie": cookie.partition(";")[0]}
        answer = await api.client.get("/v1/sign-in/oidc/callback", params=query, headers=headers)
        pending, session = answer.headers.get_list("set-cookie")
        assert (pending.startswith("__Host-shardyard_sign_in="), "Max-Age=0" in pending) == (True, True)
        assert all(part in session for part in ("shardyard_session=", "Secure", "HttpOnly", "SameSite=strict"))


async def test_a_provider_that_hangs_is_given_up_at_the_deadline_and_left_alone(
    settings: Settings, provider: HostileProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider_module, "REQUEST_SECONDS", 1.0)
    monkeypatch.setattr(provider_module, "RETRY_SECONDS", 60.0)
    provider.holding = threading.Event()
    async with running(with_sign_on(settings, provider.issuer)) as api:
        api.client.headers["Accept"] = BROWSERS_ACCEPT
        pages = await asyncio.gather(*(api.client.get("/v1/sign-in/oidc") for _ in range(20)))
        assert {page.status_code for page in pages} == {503}
        assert all("sign in with a token" in page.text for page in pages)
        assert pages[0].headers["retry-after"]
        assert len(provider.asked) <= 1, "one request found out for all of them"
        assert (await api.get("/v1/me"))["tenant"] == "default", "tokens work meanwhile"


async def test_a_provider_that_is_down_is_a_503_with_advice(settings: Settings) -> None:
    with hostile_provider() as gone:
        issuer = gone.issuer
    async with running(with_sign_on(settings, issuer)) as api:
        api.client.headers["Accept"] = BROWSERS_ACCEPT
        page = await api.client.get("/v1/sign-in/oidc")
        assert (page.status_code, "try again in a minute, or sign in with a token" in page.text) == (503, True)
        problem = await api.client.post("/v1/sign-in/device")
        assert (problem.status_code, problem.json()["code"]) == (503, "unavailable")


async def test_a_provider_without_device_flow_is_told_to_command_lines(api: Api) -> None:
    answer = await api.client.post("/v1/sign-in/device")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert "create a token" in answer.json()["detail"]


async def test_slow_down_and_expiry_of_a_command_lines_sign_in_are_told(api: Api, provider: HostileProvider) -> None:
    for error, status, words in (("slow_down", 200, "slow_down"), ("expired_token", 401, "has expired")):
        provider.token_answer = (400, {"error": error})
        answer = await api.client.post("/v1/sign-in/device/token", json={"device_code": "d"})
        assert (answer.status_code, words in answer.text) == (status, True)


async def test_only_a_verified_address_counts(settings: Settings, provider: HostileProvider) -> None:
    rules = '[[rule]]\nclaim = "email"\nvalue = "a@example.com"\ntenant = "vision"\nscopes = ["read"]\n'
    async with running(with_sign_on(settings, provider.issuer, rules)) as api:
        become_a_browser(api)
        for verified, status in ((None, 403), (False, 403), ("true", 403), (True, 303)):
            claims = {"email": "a@example.com", "email_verified": verified}
            answer = await sign_in(api, provider, well_signed, **claims)
            assert answer.status_code == status, verified
