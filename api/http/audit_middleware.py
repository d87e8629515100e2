"""Writes the entry of a request into the audit before its answer is sent."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final

from msgspec import structs
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http import audit
from api.http.audit import CHANGES, DOWNLOADS, AuditNotes
from api.http.audit_log import AuditLog
from api.http.audit_repeats import RepeatGuard
from api.http.auth import Principal
from api.http.deps import header_of
from jobs.store.accounts import tokens
from jobs.support.logging_config import current_request
from shardyard.contract.audit import AuditEntry

#: The log sets it.
_NO_TIME: Final = datetime.fromtimestamp(0, UTC)
_REFUSED: Final[Mapping[int, str]] = {
    HTTPStatus.UNAUTHORIZED: audit.TOKEN_REFUSED,
    HTTPStatus.FORBIDDEN: audit.SCOPE_REFUSED,
}


class AuditMiddleware:
    """Knows what was asked by the route, who asked by what `authenticate` has found, and what came of it by the status.
    What may come without end passes `repeats`."""

    def __init__(self, app: ASGIApp, log: AuditLog, repeats: RepeatGuard) -> None:
        self._app = app
        self._log = log
        self._repeats = repeats

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self.run(self._app, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def run(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Have `app` answer a request, and write the entry."""
        notes, answered = AuditNotes(), False

        async def audited(message: Message) -> None:
            nonlocal answered
            if not answered:
                answered = True
                for entry in self._entries(scope, message["status"], notes):
                    if (written := self._log.add(entry)) is not None:
                        await written
            await send(message)

        noted = audit.current_notes.set(notes)
        try:
            await app(scope, receive, audited)
        finally:
            audit.current_notes.reset(noted)
            if not answered:  # the client has left; nothing may wait here
                for entry in self._entries(scope, 0, notes):
                    self._log.add(entry)

    def write_repeats(self, *, at_once: bool = False) -> None:
        """Have entries written for what was counted instead."""
        for entry, count in self._repeats.take_due(at_once=at_once):
            self._log.add(structs.replace(entry, repeated=count))

    def _entries(self, scope: Scope, status: int, notes: AuditNotes) -> Iterator[AuditEntry]:
        """What is to be written of a request."""
        what = scope["method"], getattr(scope.get("route"), "path", "")
        who = notes.who or scope.get("state", {}).get("authenticate_header")
        if notes.actions:
            for action, details in notes.actions:
                yield _describe(scope, status, action, who, details)
        elif status in _REFUSED:
            entry = _describe(scope, status, _REFUSED[status], who, {"route": what[1]} if what[1] else {})
            if who is None:
                entry = structs.replace(entry, token=_claimed_token(scope))
            if self._repeats.admits(entry, (entry.action, entry.tenant, entry.token, entry.address)):
                yield entry
        elif what in DOWNLOADS and 200 <= status < 300:
            entry = _describe(scope, status, DOWNLOADS[what], who, {})
            if self._repeats.admits(entry, (entry.action, entry.tenant, entry.token, entry.path)):
                yield entry
        elif what in CHANGES and who is not None and (status == 0 or 200 <= status < 300 or status >= 500):
            yield _describe(scope, status, CHANGES[what], who, {})


def _describe(scope: Scope, status: int, action: str, who: Principal | None, details: Mapping[str, Any]) -> AuditEntry:
    client = scope.get("client")
    return AuditEntry(
        id="",
        at=_NO_TIME,
        action=action,
        status=int(status),
        method=scope["method"],
        path=scope["path"],
        tenant=who.tenant if who else "",
        token=who.token if who else "",
        token_name=who.name if who else "",
        session=who.session if who else "",
        address=client[0] if client else "",
        request_id=current_request.get(),
        details=dict(details),
    )


def _claimed_token(scope: Scope) -> str:
    """The id of the token that a refused request claims to have; "" where it is not of the form of ours, since it may
    be anything then, a password of another service for one."""
    header = header_of(scope, b"authorization") or ""
    token, _ = tokens.split_token(header.partition(" ")[2].strip()[: tokens.MAX_TEXT_LENGTH])
    return "" if token == tokens.OPERATOR_ID else token[:32]
