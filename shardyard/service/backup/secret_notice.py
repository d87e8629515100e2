"""What a back-up and a restore say about users' secrets: a back-up has them encrypted, and never the key."""

from pathlib import Path

from jobs.store.accounts import tenant_secrets
from jobs.store.client import RedisStore
from jobs.support import secret_keys
from jobs.support.secret_keys import SecretKeys
from shardyard import formatting
from shardyard.contract.errors import SecretKeyUnusable
from shardyard.service.backup.manifest import BackupManifest, EncryptedSecrets


def describe_secrets(secrets: EncryptedSecrets) -> str:
    """What whoever keeps a back-up must know of its secrets."""
    return (
        f"{formatting.count_noun(secrets.count, 'secret')} of users in it, encrypted. The key is not in it: keep a "
        f"copy of {secrets.key_file_left_out} in another place, since without it they are lost"
    )


def find_unreadable_secrets(control: RedisStore, key_file: Path, made: BackupManifest) -> str | None:
    """What to do about secrets of a restored service that cannot be decrypted here; None: there are none."""
    keys: SecretKeys | None = None
    why = "which lacks their key"
    try:
        keys = secret_keys.read_keys(key_file)
    except SecretKeyUnusable as error:
        why = f"which cannot be used ({error.message})" if key_file.exists() else "which is not there"
    total, unreadable = _count_secrets(control, keys)
    if not unreadable:
        return None
    before = f" (it was {made.secrets.key_file_left_out})" if made.secrets is not None else ""
    return (
        f"{unreadable} of {formatting.count_noun(total, 'secret')} cannot be read with {key_file}, {why}: put the file "
        f"of secret keys of the service that was backed up{before} there before this one starts; if it is lost, their "
        "owners must store them again (`shardyard secret put NAME`)"
    )


def _count_secrets(control: RedisStore, keys: SecretKeys | None) -> tuple[int, int]:
    """How many secrets there are, and how many of them the keys do not decrypt."""
    total = unreadable = 0
    for tenant in control.run(tenant_secrets.read_secret_tenants()):
        names = control.run(tenant_secrets.read_secret_names(tenant))
        stored = control.run(tenant_secrets.read_sealed_secrets(tenant, names)) if names else {}
        total += len(stored)
        unreadable += sum(not _is_readable(keys, tenant, name, sealed) for name, sealed in stored.items())
    return total, unreadable


def _is_readable(keys: SecretKeys | None, tenant: str, name: str, sealed: bytes | None) -> bool:
    if keys is None or sealed is None:
        return False
    try:
        secret_keys.decrypt_secret(keys, tenant, name, sealed)
    except SecretKeyUnusable:
        return False
    return True
