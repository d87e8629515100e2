"""The service of single sign-on: a person whom the identity provider knows gets a session, or a token for the command
line, with the tenant and the scopes that the access rules give them."""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import httpx
import msgspec

from api.accounts.single_sign_on.config import SingleSignOnConfig, is_safe_url
from api.accounts.single_sign_on.pending import PendingSignIn, begin_pending, parse_cookie
from api.accounts.single_sign_on.people import ProviderRefused, SignedInPerson
from api.accounts.single_sign_on.rules import find_rule
from api.accounts.tokens_service import TokenService
from api.http import audit
from api.http.address_limits import AddressLimiter
from api.http.auth import Authenticator, Principal
from api.schemas import views
from api.schemas.account_requests import parse_device_sign_in
from jobs.model.records import TokenRecord
from jobs.store.accounts import identities, sessions, tokens
from jobs.store.accounts.identities import GrantedAccess
from jobs.store.client import AsyncRedisStore
from shardyard.contract.errors import NoAccess, NotFound, SignInFailed, Unavailable
from shardyard.contract.plain_text import escape_unsafe
from shardyard.contract.responses import DeviceSignIn, DeviceSignInState, NewToken, SignInWays

if TYPE_CHECKING:
    from api.accounts.single_sign_on.provider import IdentityProvider

DEVICE_GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
#: Tokens for the command line that somebody may have at a time; the oldest goes first.
MAX_LOGINS: Final = 10
#: Sign-ins that may begin at an address, for browsers and command lines together: so many at once, then one every so
#: many seconds. Behind a proxy all people have one address.
SIGN_INS_AT_ONCE: Final = 60
SIGN_IN_SECONDS: Final = 1.0
#: Of an authorization code, a state and an issuer in the query of a browser that comes back.
MAX_PARAMETER_LENGTH: Final = 4096
#: Where RFC 8628 has no interval of the provider's, and how long a code may be good for.
DEFAULT_INTERVAL_SECONDS: Final = 5
MAX_DEVICE_SECONDS: Final = 1800
_WAITING: Final = {"authorization_pending": "pending", "slow_down": "slow_down"}
_REFUSALS: Final[Mapping[str, str]] = {
    "access_denied": "the sign-in was denied at the identity provider",
    "expired_token": "the code has expired; begin again",
    "invalid_grant": "the identity provider rejects the code: it has already been used or has expired; begin again",
}


class SingleSignOnService:
    """Without a `config` there is no single sign-on, and only `describe_ways` answers."""

    def __init__(
        self,
        control: AsyncRedisStore,
        authenticator: Authenticator,
        token_service: TokenService,
        config: SingleSignOnConfig | None,
    ) -> None:
        self._store = control
        self._authenticator = authenticator
        self._token_service = token_service
        self._config = config
        self._provider = None if config is None else _make_provider(config)
        self._limiter = AddressLimiter(SIGN_INS_AT_ONCE, SIGN_IN_SECONDS)

    async def close(self) -> None:
        if self._provider is not None:
            await self._provider.close()

    def describe_ways(self) -> SignInWays:
        name = "" if self._config is None else self._config.provider_name
        return SignInWays(single_sign_on=name, device=bool(name))

    def require_config(self) -> SingleSignOnConfig:
        """Raises NotFound: single sign-on is not set up."""
        if self._config is None:
            raise NotFound("this service has no single sign-on; sign in with a token")
        return self._config

    # -- browsers ----------------------------------------------------------------------------------

    async def begin_sign_in(self, next_path: str, address: str) -> tuple[PendingSignIn, str]:
        """A sign-in, and where the browser goes for it. `address` is the caller's.

        Raises:
            NotFound: single sign-on is not set up.
            RateLimited: too many begin there.
            InvalidRequest: `next_path` leads elsewhere.
            Unavailable: the provider does not answer.
        """
        _, provider = self._require()
        self._limiter.count_request(address)
        pending = begin_pending(next_path, time.time())
        return pending, await provider.authorization_url(pending)

    async def finish_sign_in(self, query: Mapping[str, str], cookie: str) -> tuple[str, str]:
        """Id of a new session, and where the browser goes. `query` is what the provider sent the browser back with.

        Raises:
            NotFound: single sign-on is not set up.
            SignInFailed: it did not begin in this browser, was denied, took too long, or cannot be proven.
            NoAccess: no access rule is for this person.
            UnboxedNodes: it would be the first session of a second tenant, and a node puts no box around jobs.
            Unavailable: the provider does not answer.
        """
        config, provider = self._require()
        pending = parse_cookie(cookie)
        if pending is None or not tokens.same_text(pending.state, query.get("state", "")):
            raise SignInFailed(
                f"this sign-in did not begin in this browser, or a newer one replaced it; begin at {config.public_url}"
            )
        if pending.is_expired(time.time()):
            raise SignInFailed("the sign-in took too long; begin again")
        if query.get("iss", config.issuer) != config.issuer:
            raise SignInFailed("the answer comes from another identity provider; begin again")
        if "error" in query:
            raise _refusal(query["error"])
        code = query.get("code", "")
        if not 0 < len(code) <= MAX_PARAMETER_LENGTH:
            raise SignInFailed("the identity provider sent no code; begin again")
        try:
            answer = await provider.request_token(
                "authorization_code", code=code, redirect_uri=config.redirect_uri, code_verifier=pending.verifier
            )
        except ProviderRefused as error:
            raise _refusal(error.code) from None
        person = await provider.identify(answer, pending.nonce)
        return await self._begin_session(config, person), pending.next_path

    async def _begin_session(self, config: SingleSignOnConfig, person: SignedInPerson) -> str:
        access, identity = await self._settle_access(config, person)
        now = time.time_ns() // 1000
        known = await self._store.run(tokens.read_token(identity))
        record = identities.session_token(
            identity,
            f"{person.name} (browser)",
            access,
            known,
            now=now,
            expires=now + config.session_seconds * 1_000_000,
        )
        await self._put_token(record)
        session = sessions.new_session_id()
        await self._store.run(sessions.begin_session(session, record.id, record.digest, config.session_seconds))
        who = replace(_principal(record), session=sessions.name_session(session))
        audit.log_audit_event(who, "signed_in", by="single_sign_on", subject=escape_unsafe(person.subject))
        return session

    # -- command lines -----------------------------------------------------------------------------

    async def begin_device_sign_in(self, address: str) -> DeviceSignIn:
        """Raises:
        NotFound: single sign-on is not set up, or the provider has no device flow.
        RateLimited: too many begin at the caller's address.
        Unavailable: the provider does not answer.
        """
        _, provider = self._require()
        self._limiter.count_request(address)
        try:
            answer = await provider.request_device_code()
        except ProviderRefused as error:
            raise _refusal(error.code) from None
        if not answer:
            raise NotFound("the identity provider has no sign-in for command lines; create a token in its place")
        begun = _read_device_sign_in({"interval": DEFAULT_INTERVAL_SECONDS} | answer)
        for url in filter(None, (begun.verification_uri, begun.verification_uri_complete)):
            if not (url.isascii() and url.isprintable() and is_safe_url(httpx.URL(url))):
                raise Unavailable("the identity provider sends people to an address without TLS; sign in with a token")
        return msgspec.structs.replace(
            begun,
            user_code=escape_unsafe(begun.user_code[:100]),
            interval=max(1, min(begun.interval, 60)),
            expires_in=max(1, min(begun.expires_in, MAX_DEVICE_SECONDS)),
        )

    async def finish_device_sign_in(self, body: bytes) -> DeviceSignInState:
        """The token, once somebody has signed in.

        Raises:
            NotFound: single sign-on is not set up.
            InvalidRequest: there is no device code in the body.
            SignInFailed: it was denied, has expired, or cannot be proven.
            NoAccess: no access rule is for this person.
            UnboxedNodes: it would be for a second tenant, and a node puts no box around jobs.
            Unavailable: the provider does not answer.
        """
        config, provider = self._require()
        try:
            answer = await provider.request_token(DEVICE_GRANT, device_code=parse_device_sign_in(body))
        except ProviderRefused as error:
            if error.code in _WAITING:
                return DeviceSignInState(state=_WAITING[error.code])
            raise _refusal(error.code) from None
        person = await provider.identify(answer, None)
        return DeviceSignInState(state="signed_in", token=await self._issue_token(config, person))

    async def _issue_token(self, config: SingleSignOnConfig, person: SignedInPerson) -> NewToken:
        access, identity = await self._settle_access(config, person, kept=MAX_LOGINS - 1)
        now = time.time_ns() // 1000
        text, record = tokens.issue_token(
            access.tenant,
            map(tokens.Scope, access.scopes),
            f"{person.name} (command line)",
            created=now,
            expires=now + config.session_seconds * 1_000_000,
            identity=identity,
        )
        await self._put_token(record)
        subject = escape_unsafe(person.subject)
        audit.log_audit_event(_principal(record), "signed_in", by="single_sign_on", subject=subject, created=record.id)
        return NewToken(**msgspec.structs.asdict(views.token_view(record)), token=text)

    # -- both --------------------------------------------------------------------------------------

    def _require(self) -> tuple[SingleSignOnConfig, "IdentityProvider"]:
        config = self.require_config()
        assert self._provider is not None
        return config, self._provider

    async def _settle_access(
        self, config: SingleSignOnConfig, person: SignedInPerson, kept: int = MAX_LOGINS
    ) -> tuple[GrantedAccess, str]:
        """What the rules give somebody, and their identity. Sessions and tokens that they have under other rights end.

        Raises:
            NoAccess: nothing; all that they had has ended.
            UnboxedNodes: the tenant cannot be accepted.
        """
        identity = identities.identity_of(config.issuer, person.subject)
        rule = find_rule(config.rules, person.claims)
        access = None if rule is None else GrantedAccess(rule.tenant, frozenset(map(str, rule.scopes)))
        known = await self._store.run(tokens.read_token(identity))
        tenants = {rule.tenant for rule in config.rules} | ({known.tenant} if known is not None else set())
        now, ended = time.time_ns() // 1000, False
        for tenant in sorted(tenants):
            found = await self._store.run(tokens.list_tokens(tenant))
            for token in identities.outdated_tokens(found, identity, access, now=now, kept=kept):
                await self._revoke_token(token)
                if not tokens.is_expired(token, now=now):
                    audit.log_audit_event(_principal(token), "token_revoked", revoked=token.id, by="single_sign_on")
                    ended = True
        if access is None:
            if not ended:  # else there are entries of what they have lost
                audit.note_refused(Principal("", "", frozenset(), f"{person.name} (single sign-on)"))
            raise NoAccess(
                f"{person.name} is signed in at the identity provider, but has no access to this service; "
                "ask its operator for an access rule"
            )
        await self._token_service.require_boxes(access.tenant)
        return access, identity

    async def _put_token(self, record: TokenRecord) -> None:
        await self._store.run(tokens.put_token(record))
        self._authenticator.forget_token(record.id)

    async def _revoke_token(self, token: TokenRecord) -> None:
        with suppress(NotFound):  # another process was first
            await self._store.run(tokens.revoke_token(token.tenant, token.id))
        self._authenticator.forget_token(token.id)


def _make_provider(config: SingleSignOnConfig) -> "IdentityProvider":
    from api.accounts.single_sign_on.provider import IdentityProvider  # only then: it imports cryptography

    return IdentityProvider(config)


def _read_device_sign_in(answer: Mapping[str, Any]) -> DeviceSignIn:
    """Raises Unavailable."""
    try:
        return msgspec.convert(answer, DeviceSignIn)
    except msgspec.ValidationError as error:
        raise Unavailable(f"the identity provider's answer cannot be read: {error}; sign in with a token") from None


def _principal(record: TokenRecord) -> Principal:
    return Principal(record.id, record.tenant, record.scopes, record.name)


def _refusal(code: str) -> SignInFailed:
    shown = code if code.isascii() and code.isidentifier() and len(code) < 64 else "an unknown error"
    return SignInFailed(_REFUSALS.get(code, f"the identity provider refused the sign-in ({shown}); begin again"))
