"""Sessions of the dashboard: a browser holds a random id in place of a token, and Redis knows whose it is.

Redis keeps the SHA-256 of the id. A session ends by itself; it is good only as long as its token is.
"""

import secrets

from jobs.protocol.names import session_key
from jobs.store.call import Call, call_function, ignore_reply
from jobs.store.tokens import hash_secret

SESSION_SECONDS = 12 * 3600
#: An id as `new_id` makes it has 43 characters; anything longer is none.
MAX_ID_LENGTH = 64


def new_session_id() -> str:
    return secrets.token_urlsafe(32)


def begin_session(session: str, token: str) -> Call[None]:
    """Begin a session of the token with the id `token`."""
    return call_function(
        "put_session", ignore_reply, digest=hash_secret(session), token=token, ttl_seconds=SESSION_SECONDS
    )


def read_session(session: str) -> Call[str | None]:
    """Id of the token that a session belongs to; None where it has ended, or never was."""
    return Call(("GET", session_key(hash_secret(session))), lambda reply: reply.decode() if reply else None)


def end_session(session: str) -> Call[None]:
    return Call(("DEL", session_key(hash_secret(session))), ignore_reply)
