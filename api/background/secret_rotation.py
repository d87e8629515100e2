"""Re-encrypts secrets once their key is no longer the newest, so that an operator can remove the older key."""

from pathlib import Path

import structlog

from jobs.store.accounts import tenant_secrets, webhooks
from jobs.store.client import RedisStore
from jobs.support import secret_keys
from jobs.support.secret_keys import SecretKeys
from shardyard.contract.errors import SecretKeyUnusable

log = structlog.get_logger(__name__)


def rotate_secrets(control: RedisStore, key_file: Path) -> None:
    """Encrypt every secret with the newest key of the file. Those that cannot be read are logged and left alone."""
    tenants = control.run(tenant_secrets.read_secret_tenants())
    owners = control.run(webhooks.read_webhook_tenants())
    if not tenants and not owners:
        return
    try:
        keys = secret_keys.read_keys(key_file)
    except SecretKeyUnusable as error:
        log.error("secrets_unreadable", tenants=len({*tenants, *owners}), error=error.message)
        return
    for tenant in tenants:
        rotated = _rotate_tenant(control, keys, tenant)
        if rotated:
            log.info("secrets_reencrypted", for_tenant=tenant, secrets=rotated)
    for tenant in owners:
        rotated = _rotate_webhooks(control, keys, tenant)
        if rotated:
            log.info("webhooks_reencrypted", for_tenant=tenant, webhooks=rotated)


def _rotate_tenant(control: RedisStore, keys: SecretKeys, tenant: str) -> int:
    """Returns how many secrets of the tenant got the newest key."""
    records = control.run(tenant_secrets.list_secrets(tenant))
    older = [record.name for record in records if record.head != keys.newest_head]
    stored = control.run(tenant_secrets.read_sealed_secrets(tenant, older)) if older else {}
    rotated = 0
    for name, sealed in stored.items():
        if sealed is None:
            continue
        try:
            value = secret_keys.decrypt_secret(keys, tenant, name, sealed)
        except SecretKeyUnusable as error:
            log.error("secret_unreadable", for_tenant=tenant, secret=name, error=error.message)
            continue
        anew = secret_keys.encrypt_secret(keys, tenant, name, value)
        rotated += control.run(tenant_secrets.replace_sealed_secret(tenant, name, sealed, anew))
    return rotated


def _rotate_webhooks(control: RedisStore, keys: SecretKeys, tenant: str) -> int:
    """Returns how many webhooks of the tenant got the newest key."""
    rotated = 0
    for webhook in control.run(webhooks.list_webhooks(tenant)):
        if webhook.sealed.startswith(keys.newest_head):
            continue
        name = webhooks.seal_name(webhook.id)
        try:
            value = secret_keys.decrypt_secret(keys, tenant, name, webhook.sealed)
        except SecretKeyUnusable as error:
            log.error("webhook_unreadable", for_tenant=tenant, webhook=webhook.id, error=error.message)
            continue
        anew = secret_keys.encrypt_secret(keys, tenant, name, value)
        rotated += control.run(webhooks.reseal_webhook(webhook, anew))
    return rotated
