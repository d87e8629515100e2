"""The secret fields of a webhook, encrypted with the keys of the service's secrets."""

from pathlib import Path

import msgspec

from jobs.store.accounts.webhooks import WebhookRecord, seal_name
from jobs.support import secret_keys
from shardyard.contract.errors import SecretKeyUnusable


class WebhookSecrets(msgspec.Struct, frozen=True):
    """The whole address, which may have a token in it, and what deliveries are signed with: `secret`, and until
    `former_until`, in seconds since the epoch, `former_secret` as well."""

    url: str
    secret: str
    former_secret: str = ""
    former_until: float = 0.0

    def former_at(self, now: float) -> str:
        """The secret that is still used beside the newest one; '' where none is."""
        return self.former_secret if now < self.former_until else ""

    def __repr__(self) -> str:
        return "WebhookSecrets(...)"


def seal_secrets(key_file: Path, tenant: str, webhook: str, secrets: WebhookSecrets) -> bytes:
    """Raises SecretKeyUnusable."""
    keys = secret_keys.read_keys(key_file)
    return secret_keys.encrypt_secret(keys, tenant, seal_name(webhook), msgspec.json.encode(secrets).decode())


def unseal_secrets(key_file: Path, webhook: WebhookRecord) -> WebhookSecrets:
    """Raises SecretKeyUnusable."""
    keys = secret_keys.read_keys(key_file)
    try:
        text = secret_keys.decrypt_secret(keys, webhook.tenant, seal_name(webhook.id), webhook.sealed)
        return msgspec.json.decode(text, type=WebhookSecrets)
    except (SecretKeyUnusable, msgspec.MsgspecError):
        raise SecretKeyUnusable(
            f"the address and secret of the webhook {webhook.id} cannot be decrypted: put the file of secret keys that "
            "it was made with in its place, or add the webhook again"
        ) from None
