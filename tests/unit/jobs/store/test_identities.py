"""What becomes of somebody's tokens when they sign in again."""

from dataclasses import replace

from jobs.model.records import TokenRecord
from jobs.store.accounts.identities import GrantedAccess, identity_of, outdated_tokens, session_token
from jobs.store.accounts.tokens import verify_secret

ANA = identity_of("https://sso.example.com", "ana")
SUBMIT = GrantedAccess("vision", frozenset({"submit"}))
NOW, LATER = 1_000, 2_000


def login(number: int, **changes: object) -> TokenRecord:
    """A token of Ana's command line."""
    token = TokenRecord(f"t{number}", "vision", SUBMIT.scopes, "d", "ana", number, LATER, ANA)
    return replace(token, **changes)  # type: ignore[arg-type]


def of_sessions(known: TokenRecord | None = None, access: GrantedAccess = SUBMIT, now: int = NOW) -> TokenRecord:
    return session_token(ANA, "ana", access, known, now=now, expires=now + 500)


def test_an_identity_is_of_one_person_at_one_provider() -> None:
    others = {identity_of("https://sso.example.com", "bob"), identity_of("https://other.example.com", "ana"), ANA}
    assert len(others) == 3
    assert identity_of("https://sso.example.com", "ana") == ANA
    assert ANA.isalnum()


def test_sessions_of_one_person_share_a_token_while_its_rights_stay() -> None:
    first = of_sessions()
    again = of_sessions(first, now=NOW + 100)
    assert (again.id, again.digest, again.created) == (ANA, first.digest, first.created)
    assert again.expires == NOW + 600


def test_other_rights_an_expired_token_and_a_revoked_one_begin_anew() -> None:
    first = of_sessions()
    others = (
        of_sessions(first, GrantedAccess("vision", frozenset({"read"}))),
        of_sessions(first, GrantedAccess("other", SUBMIT.scopes)),
        of_sessions(first, now=NOW + 500),
        of_sessions(None),
        of_sessions(replace(first, identity="")),
    )
    assert len({first.digest, *(token.digest for token in others)}) == 6


def test_a_token_of_sessions_has_no_secret() -> None:
    token = of_sessions()
    assert not any(verify_secret(token, guess, now=NOW) for guess in ("", token.digest, token.id))


def test_tokens_under_other_rights_of_nobody_and_expired_ones_are_outdated() -> None:
    good, browser = login(1), of_sessions()
    others = [
        login(2, scopes=frozenset({"admin"})),
        login(3, tenant="other"),
        login(4, expires=NOW),
        replace(browser, id="b2", scopes=frozenset({"read"})),
    ]
    strangers = [login(5, identity="somebody"), login(6, identity="")]
    found = [good, browser, *others, *strangers]
    assert outdated_tokens(found, ANA, SUBMIT, now=NOW, kept=10) == others
    assert outdated_tokens(found, ANA, None, now=NOW, kept=10) == [good, browser, *others]


def test_of_too_many_logins_the_oldest_go_and_sessions_stay() -> None:
    logins = [login(number) for number in range(12)]
    found = [of_sessions(), *reversed(logins)]
    assert {token.id for token in outdated_tokens(found, ANA, SUBMIT, now=NOW, kept=9)} == {"t0", "t1", "t2"}
