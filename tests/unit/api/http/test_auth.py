import os
import stat
from pathlib import Path

import pytest

from api.http.auth import PUBLIC, Principal, is_public, load_operator_token
from api.http.exposure import UnsafeToStart
from jobs.model.settings import Settings
from jobs.store.accounts import tokens
from jobs.store.accounts.tokens import Scope
from shardyard.contract.errors import Forbidden

TEXT = "an-operators-own-long-token"


def settings(tmp_path: Path, **fields: object) -> Settings:
    return Settings.model_validate({"state_dir": tmp_path} | fields)


def test_a_token_is_proven_by_its_secret_and_nothing_else() -> None:
    text, record = tokens.issue_token("default", {Scope.READ}, "ci", created=1)
    token, secret = tokens.split_token(text)
    assert token == record.id
    assert tokens.verify_secret(record, secret, now=2)
    assert not tokens.verify_secret(record, secret + "x", now=2)
    assert not tokens.verify_secret(record, record.digest, now=2)
    assert secret not in repr(record)


def test_a_token_stops_at_its_expiry() -> None:
    text, record = tokens.issue_token("default", {Scope.READ}, "ci", created=1, expires=100)
    secret = tokens.split_token(text)[1]
    assert tokens.verify_secret(record, secret, now=99)
    assert not tokens.verify_secret(record, secret, now=100)


def test_two_tokens_are_never_the_same() -> None:
    assert len({tokens.issue_token("default", {Scope.READ}, "", created=0)[0] for _ in range(50)}) == 50


@pytest.mark.parametrize(
    ("granted", "wanted", "allowed"),
    [
        ("read", Scope.READ, True),
        ("read", Scope.SUBMIT, False),
        ("read", Scope.ADMIN, False),
        ("submit", Scope.READ, True),
        ("submit", Scope.SUBMIT, True),
        ("submit", Scope.ADMIN, False),
        ("admin", Scope.READ, True),
        ("admin", Scope.SUBMIT, True),
        ("admin", Scope.ADMIN, True),
    ],
)
def test_each_scope_includes_those_below_it(granted: str, wanted: Scope, allowed: bool) -> None:
    assert tokens.covers_scope({granted}, wanted) is allowed


def test_a_principal_without_the_scope_is_refused() -> None:
    with pytest.raises(Forbidden, match="submit"):
        Principal("t", "default", frozenset({"read"})).require_scope(Scope.SUBMIT)


def test_only_health_sign_in_and_pages_without_data_are_public() -> None:
    page = {"/help", "/docs", "/docs/start.js", "/docs/swagger-ui-bundle.js", "/docs/swagger-ui.css"}
    dashboard = {"/", "/sign-in", "/submit", "/compare", "/groups", "/nodes", "/quota", "/webhooks"}
    sign_ins = {f"/v1/sign-in{rest}" for rest in ("", "/oidc", "/oidc/callback", "/device", "/device/token")}
    always = {"/healthz", "/readyz", "/openapi.json", "/v1/sign-out"}
    assert always | sign_ins | page | dashboard | {"/docs/problems"} == PUBLIC
    assert not any(is_public(path) for path in ("/v1/jobs", "/v1/jobs/x", "/v1/me", "/metrics", "/jobs", "/v1"))


def test_an_operators_token_may_have_any_form_but_not_be_short() -> None:
    record = tokens.operator_token(TEXT, "default")
    assert tokens.split_token(TEXT) == (record.id, TEXT)
    for bad in ("short", "with space in it, which is long", "ünïcödé-and-long-enough-too"):
        with pytest.raises(ValueError, match="admin token"):
            tokens.operator_token(bad, "default")


def test_on_loopback_a_token_is_made_once_and_kept_private(tmp_path: Path) -> None:
    first = load_operator_token(settings(tmp_path))
    path = tmp_path / "admin-token"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_operator_token(settings(tmp_path)) == first
    assert tokens.operator_token(path.read_text().strip(), "default") == first
    assert os.listdir(tmp_path) == ["admin-token"]


def test_a_token_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(TEXT)
    path.chmod(0o640)
    with pytest.raises(UnsafeToStart, match="chmod 600"):
        load_operator_token(settings(tmp_path, admin_token_file=path))


def test_another_address_than_loopback_needs_a_token_that_the_operator_set(tmp_path: Path) -> None:
    with pytest.raises(UnsafeToStart, match="SHARDYARD_ADMIN_TOKEN"):
        load_operator_token(settings(tmp_path, host="0.0.0.0"))
    assert not list(tmp_path.iterdir())
    assert load_operator_token(settings(tmp_path, host="0.0.0.0", admin_token=TEXT)).id == tokens.OPERATOR_ID


def test_a_bad_token_in_the_settings_is_not_shown_in_the_message(tmp_path: Path) -> None:
    with pytest.raises(UnsafeToStart) as caught:
        load_operator_token(settings(tmp_path, admin_token="hunter2"))
    assert "hunter2" not in str(caught.value)
