"""Sessions of the dashboard: a browser holds a random id instead of a token, and Redis knows whose it is.

Redis keeps the SHA-256 of the id. A session ends by itself; it is good only as long as its token is, with the secret
that it had when the session began. The proof of that is made with the session's id, which Redis has not: an operator's
token may be a phrase of his own, whose bare digest would let a reader of Redis try guesses.
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass

from jobs.model.records import TokenRecord
from jobs.protocol.names import session_key, sign_in_code_key
from jobs.store.accounts.tokens import hash_secret
from jobs.store.call import Call, call_function, ignore_reply

SESSION_SECONDS = 12 * 3600
#: How long a code that a browser signs in with is good: from a terminal to a click.
CODE_SECONDS = 15 * 60
#: An id as `new_id` makes it has 43 characters; anything longer is none.
MAX_ID_LENGTH = 64


@dataclass(frozen=True, slots=True)
class SessionOwner:
    """The token that a session belongs to, by its id and by a proof of its secret. A session of an earlier version has
    no proof ("")."""

    token: str
    proof: str


def new_session_id() -> str:
    return secrets.token_urlsafe(32)


def name_session(session: str) -> str:
    """A name of a session, from which nobody learns its id."""
    return hash_secret(session)[:12]


def begin_session(session: str, token: str, digest: str, seconds: int = SESSION_SECONDS) -> Call[None]:
    """Begin a session of the token with the id `token`, whose secret has the SHA-256 `digest`."""
    owner = f"{token} {_prove_digest(session, digest)}"
    return call_function("put_session", ignore_reply, digest=hash_secret(session), owner=owner, ttl_seconds=seconds)


def read_session(session: str) -> Call[SessionOwner | None]:
    """The token that a session belongs to; None where it has ended, or never was."""

    return Call(("GET", session_key(hash_secret(session))), _decode_owner)


def _decode_owner(reply: bytes | None) -> SessionOwner | None:
    if not reply:
        return None
    token, _, proof = reply.decode().partition(" ")
    return SessionOwner(token, proof)


def put_sign_in_code(code: str, token: str, digest: str) -> Call[None]:
    """Have a browser that has the code sign in once, for the token with the id `token` and the SHA-256 `digest`."""
    owner = f"{token} {_prove_digest(code, digest)}"
    return Call(("SET", sign_in_code_key(hash_secret(code)), owner, "EX", CODE_SECONDS), ignore_reply)


def take_sign_in_code(code: str) -> Call[SessionOwner | None]:
    """The token that a code stands for, which is used up by this; None where it is, or never was."""
    return Call(("GETDEL", sign_in_code_key(hash_secret(code))), _decode_owner)


def is_owner(owner: SessionOwner, session: str, record: TokenRecord) -> bool:
    """Whether the session, or the code, began with this very secret: under the id that an operator's tokens share
    there may be another one by now."""
    return hmac.compare_digest(owner.proof, _prove_digest(session, record.digest))


def end_session(session: str) -> Call[None]:
    return Call(("DEL", session_key(hash_secret(session))), ignore_reply, writes=True)


def _prove_digest(session: str, digest: str) -> str:
    return hmac.new(session.encode(), digest.encode(), hashlib.sha256).hexdigest()
