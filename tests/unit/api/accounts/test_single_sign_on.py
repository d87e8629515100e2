"""What the operator sets about single sign-on, and what a browser holds while somebody signs in."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.accounts.single_sign_on.config import read_config
from api.accounts.single_sign_on.pending import PENDING_SECONDS, begin_pending, parse_cookie
from api.accounts.single_sign_on.rules import AccessRule, find_rule, read_rules
from jobs.model.settings import Settings
from jobs.store.accounts.tokens import Scope
from shardyard.contract.errors import InvalidRequest

RULE = '[[rule]]\nclaim = "groups"\nvalue = "vision"\ntenant = "vision"\nscopes = ["submit"]\n'


@pytest.fixture
def rules_file(tmp_path: Path) -> Path:
    file = tmp_path / "rules.toml"
    file.write_text(RULE)
    return file


def settings(rules_file: Path, **changes: Any) -> Settings:
    chosen = {
        "oidc_issuer": "https://sso.example.com/realms/lab",
        "oidc_client_id": "shardyard",
        "oidc_rules_file": rules_file,
        "public_url": "https://shardyard.example.com/",
    }
    return Settings.model_validate(chosen | changes)


# -- settings --------------------------------------------------------------------------------------


def test_without_an_issuer_there_is_no_single_sign_on(rules_file: Path) -> None:
    assert read_config(settings(rules_file, oidc_issuer="")) is None


def test_settings_give_the_way_back_and_a_cookie_for_tls(rules_file: Path) -> None:
    config = read_config(settings(rules_file))
    assert config is not None
    assert config.redirect_uri == "https://shardyard.example.com/v1/sign-in/oidc/callback"
    assert (config.is_secure, config.provider_name, config.client_secret) == (True, "sso.example.com", "")


def test_a_clients_secret_may_be_in_a_file_and_is_not_shown(rules_file: Path, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("s3cret\n")
    file.chmod(0o600)
    config = read_config(settings(rules_file, oidc_client_secret_file=file))
    assert config is not None
    assert config.client_secret == "s3cret"
    assert "s3cret" not in repr(config)
    compose_sets_both = read_config(settings(rules_file, oidc_client_secret="", oidc_client_secret_file=file))
    assert compose_sets_both == config


@pytest.mark.parametrize("mode", [0o640, 0o604])
def test_a_file_with_the_clients_secret_that_others_can_read_is_refused(
    rules_file: Path, tmp_path: Path, mode: int
) -> None:
    file = tmp_path / "secret"
    file.write_text("s3cret\n")
    file.chmod(mode)
    with pytest.raises(ValueError, match=f"can be read by others; run `chmod 600 {file}`") as raised:
        read_config(settings(rules_file, oidc_client_secret_file=file))
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"oidc_client_id": ""}, "needs SHARDYARD_OIDC_CLIENT_ID"),
        ({"oidc_rules_file": None}, "needs SHARDYARD_OIDC_RULES_FILE"),
        ({"public_url": ""}, "needs SHARDYARD_PUBLIC_URL"),
        ({"oidc_issuer": "http://sso.example.com"}, "SHARDYARD_OIDC_ISSUER must begin with https://"),
        ({"oidc_issuer": "sso.example.com"}, "SHARDYARD_OIDC_ISSUER must begin with https://"),
        ({"public_url": "https://a@b.example"}, "SHARDYARD_PUBLIC_URL must have no user"),
        ({"public_url": "https://b.example/?x"}, "SHARDYARD_PUBLIC_URL must have no user"),
        ({"oidc_client_secret_file": "/nowhere"}, "SHARDYARD_OIDC_CLIENT_SECRET_FILE cannot be read"),
        ({"oidc_rules_file": "/nowhere"}, "cannot be read from /nowhere"),
    ],
)
def test_a_setting_that_is_missing_or_wrong_is_named(rules_file: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_config(settings(rules_file, **changes))


@pytest.mark.parametrize("scopes", ["", "profile", "openid  profile", "xopenid", "openid\tprofile"])
def test_scopes_that_give_no_id_token_are_refused(rules_file: Path, scopes: str) -> None:
    with pytest.raises(ValueError, match="oidc_scopes"):
        settings(rules_file, oidc_scopes=scopes)


# -- rules -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "rule"),
        ("[[rule]\n", "no rules of single sign-on"),
        (RULE.replace("claim", "clam"), "clam"),
        (RULE.replace('"vision"\nscopes', '"Vision"\nscopes'), "tenant"),
        (RULE.replace("submit", "root"), "scopes"),
        (RULE.replace("submit", "node"), "for machines, not for people"),
        (RULE.replace('["submit"]', "[]"), "scopes"),
        (RULE + "other = 1\n", "other"),
        ("\ud800".encode("utf-8", "surrogatepass").decode("latin-1"), "no rules"),
    ],
)
def test_a_file_that_has_no_rules_says_where(rules_file: Path, text: str, words: str) -> None:
    rules_file.write_text(text, "latin-1")
    with pytest.raises(ValueError, match=words) as raised:
        read_rules(rules_file)
    assert str(rules_file) in str(raised.value)


def test_a_rule_matches_a_value_or_one_of_a_list_and_the_first_that_matches_decides() -> None:
    first = AccessRule("groups", "a", "one", (Scope.READ,))
    second = AccessRule("hd", "example.com", "two", (Scope.READ,))
    both = (first, second)
    assert find_rule(both, {"groups": ["b", "a"], "hd": "example.com"}) is first
    assert find_rule(both, {"groups": "a"}) is first
    assert find_rule(both, {"groups": ["b"], "hd": "example.com"}) is second
    for claims in ({}, {"groups": "ab"}, {"groups": ["A"]}, {"groups": {"a": 1}}, {"groups": None}, {"hd": ["x"]}):
        assert find_rule(both, claims) is None


# -- what the browser holds ------------------------------------------------------------------------


def test_a_cookie_brings_back_what_was_begun() -> None:
    pending = begin_pending("/jobs?label=team%3Dvision", 1_000_000.5)
    assert parse_cookie(pending.to_cookie()) == pending
    assert len({pending.state, pending.nonce, pending.verifier, pending.secret}) == 4
    assert {len(each) for each in (pending.state, pending.nonce, pending.verifier)} == {43}
    assert not pending.is_expired(1_000_000 + PENDING_SECONDS - 1)
    assert pending.is_expired(1_000_000 + PENDING_SECONDS)


@given(st.text(max_size=80))
def test_a_cookie_that_was_not_made_here_is_none_or_leads_to_a_page_of_this_service(text: str) -> None:
    for cookie in (text, f"{'x' * 43}.1.{text}"):
        found = parse_cookie(cookie)
        assert found is None or (found.next_path.startswith("/") and found.next_path[1:2] not in ("/", "\\"))


def test_a_forged_cookie_leads_nowhere_else() -> None:
    forged = begin_pending("/", 0).to_cookie().rpartition(".")[0] + ".Ly9ldmlsLmV4YW1wbGU="  # //evil.example
    assert parse_cookie(forged) is None


@given(st.text(max_size=20).map(lambda text: "/" + text))
def test_a_page_to_come_back_to_never_names_a_host(path: str) -> None:
    try:
        accepted = begin_pending(path, 0).next_path
    except InvalidRequest:
        return
    assert accepted == path
    assert not accepted.startswith(("//", "/\\"))
    assert accepted.isascii()
    assert accepted.isprintable()
    assert "\\" not in accepted
