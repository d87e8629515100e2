"""Tokens of people who sign in at an identity provider.

Somebody's sessions in browsers belong to one token, whose id follows from who they are; its digest is that of no text,
so it is good for sessions alone. The command line gets tokens of its own. All of them have the person's identity, and
are brought to what the access rules say whenever the person signs in.
"""

import hashlib
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jobs.model.records import TokenRecord
from jobs.store.accounts.tokens import is_expired


@dataclass(frozen=True, slots=True)
class GrantedAccess:
    """What the access rules give somebody."""

    tenant: str
    scopes: frozenset[str]


def identity_of(issuer: str, subject: str) -> str:
    """The id of a person, and of the token of their sessions."""
    return hashlib.sha256(f"{issuer}\n{subject}".encode()).hexdigest()[:16]


def session_token(
    identity: str, name: str, access: GrantedAccess, known: TokenRecord | None, *, now: int, expires: int
) -> TokenRecord:
    """The token of somebody's sessions, made anew or (`known`) for longer. Sessions that began under other rights, or
    before it was revoked or had expired, are not good for it: it has another digest then."""
    is_same = known is not None and known.identity == identity and not is_expired(known, now=now)
    if known is None or not is_same or not _has_access(known, access):
        return TokenRecord(identity, access.tenant, access.scopes, secrets.token_hex(32), name, now, expires, identity)
    return TokenRecord(identity, access.tenant, access.scopes, known.digest, name, known.created, expires, identity)


def outdated_tokens(
    found: Iterable[TokenRecord], identity: str, access: GrantedAccess | None, *, now: int, kept: int
) -> Sequence[TokenRecord]:
    """Of the tokens of one tenant: those of this person that they must not have any more, and that have expired; of
    those for the command line all but the `kept` newest. `access`: what the person may have now, if anything."""
    own = [token for token in found if token.identity == identity]
    good = [token for token in own if _has_access(token, access) and not is_expired(token, now=now)]
    newest = sorted((token for token in good if token.id != identity), key=lambda token: token.created)[-kept:]
    spared = {token.id for token in newest} | {token.id for token in good if token.id == identity}
    return [token for token in own if token.id not in spared]


def _has_access(token: TokenRecord, access: GrantedAccess | None) -> bool:
    return access is not None and token.tenant == access.tenant and token.scopes == access.scopes
