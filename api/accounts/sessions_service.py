"""The service of browser sessions: a token is sent once, and a cookie stands for it from then on."""

from contextlib import suppress
from dataclasses import replace

from api.accounts.tokens_service import TokenService
from api.http import audit
from api.http.auth import Authenticator, Principal
from api.schemas.requests import parse_sign_in
from jobs.protocol.names import DEFAULT_TENANT
from jobs.store.accounts import sessions, tokens
from jobs.store.accounts.tokens import Scope
from jobs.store.client import AsyncRedisStore
from shardyard.contract.errors import Forbidden, NotFound, Unauthenticated
from shardyard.contract.responses import Caller


class SessionService:
    def __init__(self, control: AsyncRedisStore, authenticator: Authenticator, token_service: TokenService) -> None:
        self._store = control
        self._authenticator = authenticator
        self._token_service = token_service

    async def begin_session(self, body: bytes) -> str:
        """Id of a new session, for the cookie.

        Raises:
            InvalidRequest: there is no token in the body.
            Unauthenticated: the token is not valid.
            Forbidden: it is a node's.
        """
        text = parse_sign_in(body)
        who = await self._authenticator.authenticate_token(text)
        who.require_scope(Scope.READ)
        session = sessions.new_session_id()
        await self._store.run(sessions.begin_session(session, who.token, tokens.hash_token(text)))
        audit.log_audit_event(replace(who, session=sessions.name_session(session)), "signed_in")
        return session

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


def describe_caller(who: Principal) -> Caller:
    return Caller(token=who.token, tenant=who.tenant, scopes=sorted(who.scopes), operator=who.tenant == DEFAULT_TENANT)
