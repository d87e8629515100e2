"""The service of browser sessions: a token is sent once, and a cookie stands for it from then on."""

from dataclasses import replace

from api.http import audit
from api.http.auth import Authenticator, Principal
from api.schemas.requests import parse_sign_in
from jobs.protocol.names import DEFAULT_TENANT
from jobs.store.accounts import sessions, tokens
from jobs.store.accounts.tokens import Scope
from jobs.store.client import AsyncRedisStore
from shardyard.contract.errors import Unauthenticated
from shardyard.contract.responses import Caller


class SessionService:
    def __init__(self, control: AsyncRedisStore, authenticator: Authenticator) -> None:
        self._store = control
        self._authenticator = authenticator

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


def describe_caller(who: Principal) -> Caller:
    return Caller(token=who.token, tenant=who.tenant, scopes=sorted(who.scopes), operator=who.tenant == DEFAULT_TENANT)
