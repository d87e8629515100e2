"""Bearer tokens: `sy_<id>_<secret>`. Redis keeps the SHA-256 of the secret, never the secret.

The secret is 256 random bits, so a plain hash is enough: there is nothing to guess, and a slow hash
would only slow the service down.
"""

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

from jobs.model.records import TokenRecord
from jobs.protocol.names import token_key, tokens_key
from jobs.store.call import Call, call_function, ignore_reply, raise_if_missing, read_hash
from shardyard.contract.errors import NotFound

PREFIX = "sy"
#: The id of the token that the operator sets, which may have any form.
OPERATOR_ID = "admin"
MIN_OPERATOR_LENGTH = 20
MAX_TEXT_LENGTH = 512
#: Keys that one step of a search for tenants looks at.
SCANNED_KEYS = 1_000


class Scope(StrEnum):
    """What a token may do. Each scope of people includes those before it; `node` and `join` stand for themselves."""

    READ = "read"
    SUBMIT = "submit"
    PRIORITY = "priority"
    ADMIN = "admin"
    NODE = "node"
    JOIN = "join"


#: Scopes of people and their programs: admin implies all of them, priority implies submit, submit implies read.
PEOPLES_SCOPES = (Scope.READ, Scope.SUBMIT, Scope.PRIORITY, Scope.ADMIN)
#: Scopes of machines, which each stand alone in a token.
MACHINES_SCOPES = (Scope.NODE, Scope.JOIN)
#: What covers each scope. Nobody but a node may do what a node may.
_COVERING = {wanted: frozenset(map(str, PEOPLES_SCOPES[i:])) for i, wanted in enumerate(PEOPLES_SCOPES)}
_COVERING |= {wanted: frozenset({str(wanted)}) for wanted in MACHINES_SCOPES}


def covers_scope(granted: Iterable[str], wanted: Scope) -> bool:
    """Whether scopes that were granted cover the one that is wanted."""
    return not _COVERING[wanted].isdisjoint(granted)


def issue_token(
    tenant: str,
    scopes: Iterable[Scope],
    name: str,
    *,
    created: int,
    expires: int | None = None,
    identity: str = "",
    node: str = "",
) -> tuple[str, TokenRecord]:
    """A new token: its text, to be shown once, and what is stored. Times are microseconds since the epoch. `node` is
    the one that a token with the scope `node` is for, or `join`."""
    token, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
    granted = frozenset(str(scope) for scope in scopes)
    record = TokenRecord(token, tenant, granted, hash_secret(secret), name, created, expires, identity, node)
    return f"{PREFIX}_{token}_{secret}", record


def operator_token(text: str, tenant: str) -> TokenRecord:
    """The record of the admin token that the operator set.

    Raises:
        ValueError: it is too short to be safe, or holds characters that a header cannot carry.
    """
    if not MIN_OPERATOR_LENGTH <= len(text) <= MAX_TEXT_LENGTH:
        raise ValueError(f"the admin token must have {MIN_OPERATOR_LENGTH} to {MAX_TEXT_LENGTH} characters")
    if not (text.isascii() and text.isprintable()) or " " in text:
        raise ValueError("the admin token may hold printable ASCII characters only, and no space")
    token, secret = split_token(text)
    return TokenRecord(token, tenant, frozenset({str(Scope.ADMIN)}), hash_secret(secret), "operator", 0, None)


def split_token(text: str) -> tuple[str, str]:
    """Id and secret of a token's text. A text of another form than ours can only be the operator's."""
    prefix, _, rest = text.partition("_")
    token, _, secret = rest.partition("_")
    if prefix == PREFIX and token and secret and token.isalnum() and token.isascii():
        return token, secret
    return OPERATOR_ID, text


def hash_secret(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def hash_token(text: str) -> str:
    """The digest that the record of a token with this text has."""
    return hash_secret(split_token(text)[1])


def verify_secret(record: TokenRecord, secret: str, *, now: int) -> bool:
    """Whether `secret` is the token's, compared in constant time, and the token has not expired."""
    same = hmac.compare_digest(record.digest, hash_secret(secret))
    return same and not is_expired(record, now=now)


def same_text(one: str, other: str) -> bool:
    """Whether two secrets are the same, in a time that does not tell how much of them is."""
    return hmac.compare_digest(one.encode(), other.encode("utf-8", "surrogatepass"))


def is_expired(record: TokenRecord, *, now: int) -> bool:
    return record.expires is not None and now >= record.expires


# -- calls on the control Redis --------------------------------------------------------------------


def put_token(record: TokenRecord) -> Call[None]:
    fields: dict[str, str | int] = {
        "tenant": record.tenant,
        "scopes": ",".join(sorted(record.scopes)),
        "digest": record.digest,
        "name": record.name,
        "created": record.created,
        "expires": "" if record.expires is None else record.expires,
    }
    if record.identity:
        fields["identity"] = record.identity
    if record.node:
        fields["node"] = record.node
    flat = [part for pair in fields.items() for part in pair]
    return call_function("put_token", ignore_reply, *flat, token=record.id, tenant=record.tenant)


def read_token(token: str) -> Call[TokenRecord | None]:
    return Call(
        ("HGETALL", token_key(token)), lambda reply: TokenRecord.from_fields(token, read_hash(reply)) if reply else None
    )


def list_tokens(tenant: str) -> Call[tuple[TokenRecord, ...]]:
    """All tokens of a tenant, oldest first."""

    def decode(reply: Sequence[Any]) -> tuple[TokenRecord, ...]:
        records = (TokenRecord.from_fields(token.decode(), read_hash(fields)) for token, fields in reply)
        return tuple(sorted(records, key=lambda record: (record.created, record.id)))

    return call_function("list_tokens", decode, tenant=tenant)


def scan_tenants(cursor: int) -> Call[tuple[int, tuple[str, ...]]]:
    """Some tenants that have tokens, and the cursor of the next call; 0: those were all. Begin with 0. A tenant may
    come twice."""

    def decode(reply: Sequence[Any]) -> tuple[int, tuple[str, ...]]:
        following, keys = reply
        return int(following), tuple(key.decode().removeprefix(tokens_key("")) for key in keys)

    return Call(("SCAN", cursor, "MATCH", tokens_key("*"), "COUNT", SCANNED_KEYS), decode)


def revoke_token(tenant: str, token: str) -> Call[None]:
    """Forget a token. Raises NotFound on execution."""
    decode = raise_if_missing(NotFound(f"there is no token {token!r}"))
    return call_function("delete_token", decode, tenant=tenant, token=token)
