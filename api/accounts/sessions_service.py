"""The service of browser sessions: a token is sent once, and a cookie stands for it from then on."""

import time
from contextlib import suppress
from dataclasses import replace
from urllib.parse import urlsplit

from api.accounts.tokens_service import TokenService
from api.http import audit
from api.http.auth import Authenticator, Principal
from api.schemas.account_requests import parse_sign_in
from jobs.protocol.names import DEFAULT_TENANT
from jobs.store.accounts import sessions, tokens
from jobs.store.accounts.tokens import Scope
from jobs.store.client import AsyncRedisStore
from shardyard.contract.errors import Forbidden, NotFound, Unauthenticated
from shardyard.contract.responses import Caller, SignInCode, at

#: Hosts that a browser reaches without leaving its machine.
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
CODE_OVER = (
    "this sign-in link has already been used, or has expired; sign in with a token, or start `shardyard up` again"
)


class SessionService:
    def __init__(self, control: AsyncRedisStore, authenticator: Authenticator, token_service: TokenService) -> None:
        self._store = control
        self._authenticator = authenticator
        self._token_service = token_service

    async def begin_session(self, body: bytes, origin: str) -> str:
        """Id of a new session, for the cookie. `origin` is that of the page that asks, "" where it does not say.

        Raises:
            InvalidRequest: there is no token in the body, and no code.
            Unauthenticated: the token, or the code, is not valid.
            Forbidden: the token is a node's, or the code comes over a line that others can read.
        """
        wanted = parse_sign_in(body)
        if wanted.code is not None:
            who, digest = await self._redeem_code(wanted.code, origin)
        else:
            text = (wanted.token or "").strip()
            who, digest = await self._authenticator.authenticate_token(text), tokens.hash_token(text)
        who.require_scope(Scope.READ)
        session = sessions.new_session_id()
        await self._store.run(sessions.begin_session(session, who.token, digest))
        audit.log_audit_event(replace(who, session=sessions.name_session(session)), "signed_in")
        return session

    async def issue_code(self, who: Principal, header: str, origin: str) -> SignInCode:
        """A code for the bearer of the token in an Authorization header, which a browser at `origin` may sign in with.

        Raises:
            Forbidden: it is a session's, or what is sent to `origin` could be read on its way.
        """
        if who.session:
            raise Forbidden("a session cannot make sign-in links; send a token")
        _require_private(origin)
        code = sessions.new_session_id()
        expires = time.time_ns() // 1000 + sessions.CODE_SECONDS * 1_000_000
        digest = tokens.hash_token(header.partition(" ")[2].strip())
        await self._store.run(sessions.put_sign_in_code(code, who.token, digest))
        audit.log_audit_event(who, "sign_in_code_issued")
        return SignInCode(code=code, expires_at=at(expires))

    async def _redeem_code(self, code: str, origin: str) -> tuple[Principal, str]:
        """Who a code signs in, and the digest of the token; the code is used up. Raises Unauthenticated, Forbidden."""
        _require_private(origin)
        owner = await self._store.run(sessions.take_sign_in_code(code))
        if owner is None:
            raise Unauthenticated(CODE_OVER)
        return await self._authenticator.authenticate_code(owner, code)

    async def end_session(self, session: str) -> None:
        """A session that has ended, or never was, is no error, and no entry of the audit."""
        try:
            who = await self._authenticator.authenticate_session(session)
        except Unauthenticated:
            who = None
        if 0 < len(session) <= sessions.MAX_ID_LENGTH:
            await self._store.run(sessions.end_session(session))
        if who is not None:
            audit.log_audit_event(who, audit.ENDED_SESSION)

    async def end_login(self, header: str) -> None:
        """Revoke the token of an Authorization header. One that has ended is no error.

        Raises:
            Forbidden: no sign-in of a command line made it.
        """
        try:
            who = await self._authenticator.authenticate_header(header)
        except Unauthenticated:
            return
        record = await self._store.run(tokens.read_token(who.token))
        if record is not None and record.identity:
            with suppress(NotFound):  # a repeat of this request was first
                await self._token_service.revoke_token(who, who.token)
        elif record is not None or who.token == tokens.OPERATOR_ID:
            raise Forbidden("signing out ends what `shardyard login` made; an administrator revokes other tokens")


def _require_private(origin: str) -> None:
    """Raises Forbidden where others could read what a browser sends to this origin."""
    found = urlsplit(origin)
    if found.scheme != "https" and found.hostname not in _LOOPBACK:
        raise Forbidden("sign-in links are for browsers on the service's own machine, and for HTTPS; use a token here")


def describe_caller(who: Principal) -> Caller:
    return Caller(token=who.token, tenant=who.tenant, scopes=sorted(who.scopes), operator=who.tenant == DEFAULT_TENANT)
