"""Calls on the secrets of tenants, which jobs name and only their ranks get. Redis has them encrypted
(`jobs.support.secret_keys`)."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jobs.protocol.names import SECRET_TENANTS, secrets_key
from jobs.store.call import Call, call_function, raise_if_missing
from jobs.support.secret_keys import HEAD_BYTES
from shardyard.contract.errors import NotFound, SecretQuota

#: Secrets that a tenant may have.
MAX_SECRETS = 100
_STORED = re.compile(rb"\d+ \d+ (.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class SecretRecord:
    """A secret without its value. Times are microseconds since the epoch; `head` says which key it is encrypted
    with."""

    name: str
    created: int
    updated: int
    head: bytes = b""


def put_secret(tenant: str, name: str, sealed: bytes) -> Call[tuple[SecretRecord, bool]]:
    """Store a ciphertext; whether the secret is new.

    Raises (on execution):
        SecretQuota: the tenant has `MAX_SECRETS` others.
    """

    def decode(reply: Sequence[bytes]) -> tuple[SecretRecord, bool]:
        status, *times = (part.decode() for part in reply)
        if status == "full":
            raise SecretQuota(
                f"there may be {MAX_SECRETS} secrets; delete one that no job needs (`shardyard secret list`)"
            )
        created, updated = map(int, times)
        return SecretRecord(name, created, updated), status == "created"

    return call_function("put_secret", decode, tenant=tenant, name=name, sealed=sealed, most=MAX_SECRETS)


def list_secrets(tenant: str) -> Call[tuple[SecretRecord, ...]]:
    """All secrets of a tenant, by name."""

    def decode(reply: Sequence[Sequence[bytes]]) -> tuple[SecretRecord, ...]:
        rows = sorted((name.decode(), int(created), int(updated), head) for name, created, updated, head in reply)
        return tuple(SecretRecord(*row) for row in rows)

    return call_function("list_secrets", decode, tenant=tenant, head_bytes=HEAD_BYTES)


def read_secret_names(tenant: str) -> Call[frozenset[str]]:
    return Call(("HKEYS", secrets_key(tenant)), lambda reply: frozenset(name.decode() for name in reply))


def read_sealed_secrets(tenant: str, names: Iterable[str]) -> Call[dict[str, bytes | None]]:
    """The ciphertexts of these secrets; `None` for one that is not there. At least one must be named."""
    wanted = tuple(dict.fromkeys(names))

    def decode(reply: Sequence[bytes | None]) -> dict[str, bytes | None]:
        return {name: _sealed_part(stored) for name, stored in zip(wanted, reply, strict=True)}

    return Call(("HMGET", secrets_key(tenant), *wanted), decode)


def _sealed_part(stored: bytes | None) -> bytes | None:
    found = _STORED.fullmatch(stored) if stored is not None else None
    return found[1] if found is not None else None


def replace_sealed_secret(tenant: str, name: str, older: bytes, sealed: bytes) -> Call[bool]:
    """Store a secret under another key; False where it has changed since `older` was read."""
    return call_function(
        "replace_sealed_secret",
        lambda reply: reply == b"replaced",
        tenant=tenant,
        name=name,
        older=older,
        sealed=sealed,
    )


def read_secret_tenants() -> Call[tuple[str, ...]]:
    return Call(("SMEMBERS", SECRET_TENANTS), lambda reply: tuple(sorted(tenant.decode() for tenant in reply)))


def delete_secret(tenant: str, name: str) -> Call[None]:
    """Forget a secret. Raises NotFound on execution."""
    decode = raise_if_missing(NotFound(f"there is no secret {name!r}"))
    return call_function("delete_secret", decode, tenant=tenant, name=name)
