"""A session over real HTTP when its token is replaced, revoked, expires, or was bound by an earlier version."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import redis

from jobs.protocol.names import session_key
from jobs.store.accounts import sessions, tokens
from tests.integration.api.conftest import ADMIN, bearer
from tests.integration.api.system.test_process import api_process, until
from tests.support.servers.redis_server import RedisServer, redis_server

pytestmark = pytest.mark.integration

ROTATED = "another-token-of-the-operator"
Lasting = tuple[httpx.Client, redis.Redis]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path / "redis", appendonly="yes", appendfsync="always") as server:
        yield server


@contextmanager
def browser_of(directory: Path, server: RedisServer, admin: str = ADMIN) -> Iterator[httpx.Client]:
    """A browser at a service whose operator has this token; it has not signed in."""
    with api_process(directory, server.url, ADMIN_TOKEN=admin) as process:
        base = f"http://127.0.0.1:{process.port()}"
        until(lambda: httpx.get(f"{base}/healthz").is_success)
        with httpx.Client(base_url=base, headers={"Origin": base}, timeout=30) as browser:
            yield browser


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lasting]:
    """A browser at a service that is not restarted, and the Redis of that service."""
    directory = tmp_path_factory.mktemp("lasting")
    with (
        redis_server(directory / "redis") as server,
        browser_of(directory, server) as browser,
        server.client() as control,
    ):
        yield browser, control


def sign_in(browser: httpx.Client, token: str) -> str:
    answer = browser.post("/v1/sign-in", json={"token": token})
    assert answer.status_code == 204, answer.text
    return answer.cookies["shardyard_session"]


def status_of(browser: httpx.Client, session: str) -> int:
    return browser.get("/v1/me", headers={"Cookie": f"shardyard_session={session}"}).status_code


def test_a_session_ends_when_the_operator_replaces_his_token(tmp_path: Path, server: RedisServer) -> None:
    with browser_of(tmp_path, server) as browser:
        session = sign_in(browser, ADMIN)
        assert status_of(browser, session) == 200
    with browser_of(tmp_path, server) as browser:
        assert status_of(browser, session) == 200, "it outlives a restart with the same token"
    with browser_of(tmp_path, server, ROTATED) as browser:
        answer = browser.get("/v1/me", headers={"Cookie": f"shardyard_session={session}"})
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
        assert "sign in again" in answer.json()["detail"]
        assert status_of(browser, sign_in(browser, ROTATED)) == 200
        assert browser.post("/v1/sign-in", json={"token": ADMIN}).status_code == 401


def test_a_session_of_a_token_that_was_stored_anew_under_its_id_ends(lasting: Lasting) -> None:
    """As an operator does who restores tokens from elsewhere, or changes a secret in Redis."""
    _, other = tokens.issue_token("default", {tokens.Scope.READ}, "ci", created=1)
    browser, control = lasting
    issued = browser.post("/v1/tokens", json={"name": "ci", "scopes": ["read"]}, headers=bearer(ADMIN)).json()
    session = sign_in(browser, issued["token"])
    assert status_of(browser, session) == 200
    control.hset(f"sy:token:{issued['id']}", "digest", other.digest)
    until(lambda: status_of(browser, session) == 401)


def test_a_session_ends_with_a_token_that_is_revoked_or_expires(lasting: Lasting) -> None:
    browser, _ = lasting
    made = [
        browser.post("/v1/tokens", json={"name": "ci", "scopes": ["read"]} | more, headers=bearer(ADMIN)).json()
        for more in ({}, {"expires_in_seconds": 2})
    ]
    revoked, expiring = (sign_in(browser, token["token"]) for token in made)
    assert status_of(browser, revoked) == 200
    browser.delete(f"/v1/tokens/{made[0]['id']}", headers=bearer(ADMIN))
    assert status_of(browser, revoked) == 401
    until(lambda: status_of(browser, expiring) == 401)


def test_a_session_of_an_earlier_version_ends_since_it_names_no_secret(lasting: Lasting) -> None:
    session = sessions.new_session_id()
    browser, control = lasting
    control.set(session_key(tokens.hash_secret(session)), tokens.OPERATOR_ID, ex=1000)
    assert status_of(browser, session) == 401


def test_redis_does_not_hold_what_would_confirm_a_guess_of_the_operators_token(lasting: Lasting) -> None:
    browser, control = lasting
    session = sign_in(browser, ADMIN)
    stored = control.get(session_key(tokens.hash_secret(session)))
    assert isinstance(stored, bytes)
    assert stored.startswith(f"{tokens.OPERATOR_ID} ".encode())
    assert tokens.hash_token(ADMIN).encode() not in stored
