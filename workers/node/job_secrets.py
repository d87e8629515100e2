"""Reads the secrets of a job that is about to start here."""

from collections.abc import Mapping
from pathlib import Path

from jobs.store.accounts import tenant_secrets
from jobs.store.client import RedisStore
from jobs.support import secret_keys

#: Of all values together, in UTF-8: a program that is started gets about 2 MiB of variables and arguments at most.
MAX_VALUE_BYTES = 512 * 1024


class SecretsUnusable(Exception):
    """A job cannot have the secrets that it names; the message is for its status."""


def read_values(control: RedisStore, key_file: Path, tenant: str, wanted: Mapping[str, str]) -> dict[str, str]:
    """The values by their variables; `wanted` has the names of secrets by variables.

    Raises:
        SecretsUnusable: one is not there any more, or all together are too large.
        SecretKeyUnusable: this host cannot decrypt them.
    """
    if not wanted:
        return {}
    stored = control.run(tenant_secrets.read_sealed_secrets(tenant, wanted.values()))
    for variable, name in wanted.items():
        if stored[name] is None:
            raise SecretsUnusable(
                f"program.secrets.{variable}: the secret {name!r} no longer exists; put it again "
                f"(`shardyard secret put {name}`) and resubmit"
            )
    keys = secret_keys.read_keys(key_file)
    values = {name: secret_keys.decrypt_secret(keys, tenant, name, sealed) for name, sealed in stored.items() if sealed}
    found = {variable: values[name] for variable, name in wanted.items()}
    size = sum(len(value.encode()) for value in found.values())
    if size > MAX_VALUE_BYTES:
        raise SecretsUnusable(
            f"program.secrets: the values have {size:,} bytes together, and a job may have {MAX_VALUE_BYTES:,}; name "
            "fewer or smaller ones"
        )
    return found
