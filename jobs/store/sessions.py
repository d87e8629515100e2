"""Sessions of the dashboard: a browser holds a random id in place of a token, and Redis knows whose it is.

Redis keeps the SHA-256 of the id. A session ends by itself; it is good only as long as its token is.
"""

import secrets

from jobs.store import Call
from jobs.store.tokens import digest

SESSION_SECONDS = 12 * 3600
#: An id as `new_id` makes it has 43 characters; anything longer is none.
MAX_ID_LENGTH = 64


def new_id() -> str:
    return secrets.token_urlsafe(32)


def put(session: str, token: str) -> Call[None]:
    """Begin a session of the token with the id `token`."""
    return Call("session_put", (digest(session), token, SESSION_SECONDS), lambda reply: None)


def read(session: str) -> Call[str | None]:
    """Id of the token that a session belongs to; None where it has ended, or never was."""
    return Call("session_read", (digest(session),), lambda reply: reply.decode() if reply else None)


def end(session: str) -> Call[None]:
    return Call("session_delete", (digest(session),), lambda reply: None)
