"""Authentication and scopes. Access is denied without a valid token, except on the public routes listed here."""

import os
import secrets
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from api.http.exposure import UnsafeToStart, is_loopback
from jobs.model.records import TokenRecord
from jobs.model.settings import Settings
from jobs.protocol.names import DEFAULT_TENANT
from jobs.store.accounts import sessions, tokens
from jobs.store.accounts.sessions import SessionOwner
from jobs.store.accounts.tokens import Scope
from jobs.store.client import AsyncRedisStore
from jobs.support.bounded_cache import keep_newest
from shardyard.contract.errors import Forbidden, Unauthenticated

#: Everything else needs a token. They show whether the service is up and how to use it, the same to everyone.
PUBLIC = frozenset(
    {
        "/healthz",
        "/readyz",
        "/openapi.json",
        "/docs",
        "/docs/problems",
        "/docs/start.js",
        "/docs/swagger-ui-bundle.js",
        "/docs/swagger-ui.css",
        "/help",
        "/v1/sign-in",
        "/v1/sign-in/device",
        "/v1/sign-in/device/token",
        "/v1/sign-in/oidc",
        "/v1/sign-in/oidc/callback",
        "/v1/sign-out",
        "/",
        "/sign-in",
        "/submit",
        "/compare",
        "/groups",
        "/quota",
        "/webhooks",
        "/nodes",
    }
)
#: Pages and files of the dashboard and of the documents: the same for everybody, and without any data.
PUBLIC_PREFIXES = ("/assets/", "/devices/", "/docs/problems/", "/help/", "/jobs/")
#: Methods that change nothing; a token that may read may use them.
SAFE = frozenset({"GET", "HEAD"})

CACHE_SECONDS = 5.0
MAX_CACHED = 4096

SESSION_OVER = "the session has ended; sign in again"


def is_public(path: str) -> bool:
    return path in PUBLIC or path.startswith(PUBLIC_PREFIXES)


@dataclass(frozen=True, slots=True)
class Principal:
    """The bearer of a token. `name` is that of the token; `session` names a browser's session, if it is one, `node` the
    node whose token it is."""

    token: str
    tenant: str
    scopes: frozenset[str]
    name: str = ""
    session: str = ""
    node: str = ""

    @property
    def may_submit(self) -> bool:
        return tokens.covers_scope(self.scopes, Scope.SUBMIT)

    @property
    def may_rank_first(self) -> bool:
        """Whether its jobs may have a priority above 0. Those of the tenant `default` always may: it is the only one
        where there is one, and the operator's where there are several."""
        return self.tenant == DEFAULT_TENANT or tokens.covers_scope(self.scopes, Scope.PRIORITY)

    def require_scope(self, scope: Scope) -> None:
        """Raises:
        Forbidden: the token does not allow it.
        """
        if self.node and scope not in tokens.MACHINES_SCOPES:
            raise Forbidden(f"this token is for node {self.node} alone; use a person's token here")
        if not tokens.covers_scope(self.scopes, scope):
            raise Forbidden(f"this needs a token with the scope {str(scope)!r}")


class Authenticator:
    """Turns a bearer token into a `Principal`. Verified tokens, and the headers that they came in, are remembered for a
    few seconds, so one that is revoked or expires stays good for that long."""

    def __init__(self, store: AsyncRedisStore, operator: TokenRecord) -> None:
        self._store = store
        self._operator = operator
        self._tokens: OrderedDict[str, tuple[TokenRecord, float]] = OrderedDict()
        self._principals: OrderedDict[str, tuple[Principal, float]] = OrderedDict()

    async def authenticate_header(self, header: str | None) -> Principal:
        """Raises:
        Unauthenticated: no token, or not a valid one.
        Unavailable: Redis does not answer.
        """
        header = header or ""
        principal, until = self._principals.get(header, (None, 0.0))
        if principal is not None and time.monotonic() < until:
            return principal
        scheme, _, text = header.partition(" ")
        text = text.strip()
        if scheme.lower() != "bearer" or not text or len(text) > tokens.MAX_TEXT_LENGTH:
            raise Unauthenticated("send a token as `Authorization: Bearer <token>`")
        principal = await self.authenticate_token(text)
        _, until = self._tokens.get(principal.token, (None, time.monotonic() + CACHE_SECONDS))
        keep_newest(self._principals, header, (principal, until), MAX_CACHED)
        return principal

    async def authenticate_token(self, text: str) -> Principal:
        """The bearer of a token, by its text. Raises as `principal` does."""
        token, secret = tokens.split_token(text)
        record = await self._read_token(token)
        if record is None or not tokens.verify_secret(record, secret, now=time.time_ns() // 1000):
            raise Unauthenticated("the token is unknown, revoked or expired")
        return Principal(record.id, record.tenant, record.scopes, record.name, node=record.node)

    async def authenticate_session(self, session: str) -> Principal:
        """The caller of a browser's session. The token is checked again: a session ends with it, and where it has
        another secret by now.

        Raises:
            Unauthenticated: the session has ended, or its token has.
            Unavailable: Redis does not answer.
        """
        if len(session) > sessions.MAX_ID_LENGTH:
            raise Unauthenticated(SESSION_OVER)
        owner = await self._store.run(sessions.read_session(session))
        record = await self._read_token(owner.token) if owner is not None else None
        if owner is None or record is None or tokens.is_expired(record, now=time.time_ns() // 1000):
            raise Unauthenticated(SESSION_OVER)
        if not sessions.is_owner(owner, session, record):
            raise Unauthenticated(SESSION_OVER)
        return Principal(record.id, record.tenant, record.scopes, record.name, sessions.name_session(session))

    async def authenticate_code(self, owner: SessionOwner, code: str) -> tuple[Principal, str]:
        """Who signs in with a code that belongs to `owner`, and the SHA-256 of the token's secret. Raises as
        `authenticate_session`."""
        record = await self._read_token(owner.token)
        if record is None or tokens.is_expired(record, now=time.time_ns() // 1000):
            raise Unauthenticated("the token of this sign-in link is revoked or expired")
        if not sessions.is_owner(owner, code, record):
            raise Unauthenticated("the token of this sign-in link has been replaced")
        return Principal(record.id, record.tenant, record.scopes, record.name, node=record.node), record.digest

    async def name_token(self, token: str) -> str:
        """What people call a token: its name, or its id where it is gone."""
        record = await self._read_token(token)
        return token if record is None else record.name or token

    def forget_token(self, token: str) -> None:
        """Ask Redis again the next time, because the token was revoked."""
        self._tokens.pop(token, None)
        for header in [header for header, (who, _) in self._principals.items() if who.token == token]:
            del self._principals[header]

    async def _read_token(self, token: str) -> TokenRecord | None:
        if token == self._operator.id:
            return self._operator
        record, until = self._tokens.get(token, (None, 0.0))
        if record is not None and time.monotonic() < until:
            return record
        record = await self._store.run(tokens.read_token(token))
        if record is not None:
            keep_newest(self._tokens, token, (record, time.monotonic() + CACHE_SECONDS), MAX_CACHED)
        return record


def load_operator_token(settings: Settings) -> TokenRecord:
    """The admin token: from the settings, else from its file, which is made where only this machine is served.

    Raises:
        UnsafeToStart: others could reach the service and no token is set, or the one that is set is unusable.
    """
    if settings.admin_token is not None:
        return _parse_operator_token(settings.admin_token.get_secret_value(), "SHARDYARD_ADMIN_TOKEN")
    path = (settings.admin_token_file or settings.state_dir / "admin-token").expanduser()
    if path.exists():
        return _parse_operator_token(_read_private(path), f"the admin token in {path}")
    if not is_loopback(settings.host):
        raise UnsafeToStart(
            f"refusing to listen on {settings.host} without an admin token: set SHARDYARD_ADMIN_TOKEN, or "
            "SHARDYARD_ADMIN_TOKEN_FILE to a file that has one, or listen on 127.0.0.1"
        )
    text, _ = tokens.issue_token(DEFAULT_TENANT, {Scope.ADMIN}, "operator", created=0)
    return _parse_operator_token(_write_private(path, text), f"the admin token in {path}")


def _parse_operator_token(text: str, source: str) -> TokenRecord:
    try:
        return tokens.operator_token(text, DEFAULT_TENANT)
    except ValueError as error:
        raise UnsafeToStart(f"{source} cannot be used: {error}") from None


def _read_private(path: Path) -> str:
    if path.stat().st_mode & 0o077:
        raise UnsafeToStart(f"{path} can be read by others; run `chmod 600 {path}`")
    return path.read_text().strip()


def _write_private(path: Path, text: str) -> str:
    """Keep `text` in `path`, unless another process was first; what the file has in the end.

    It is written whole under another name and then linked, so no reader ever sees half a token.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "w") as file:
            file.write(text + "\n")
        with suppress(FileExistsError):
            os.link(part, path)
    finally:
        part.unlink()
    return _read_private(path)
