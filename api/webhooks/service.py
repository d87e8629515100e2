"""The service of webhooks: creates, changes and lists those of a tenant, and shows what became of their deliveries."""

import asyncio
import re
import secrets as random_secrets
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from api.http import audit, cursors
from api.http.auth import Principal
from api.schemas.requests import NewWebhookRequest, WebhookChange, parse_new_webhook, parse_webhook_change
from api.webhooks import views
from api.webhooks.addresses import AddressRules
from api.webhooks.sealing import WebhookSecrets, seal_secrets, unseal_secrets
from jobs.store.accounts import webhooks
from jobs.store.accounts.webhooks import DeliveryPart, WebhookRecord
from jobs.store.client import AsyncRedisStore
from shardyard.contract.errors import MalformedCursor, NotFound
from shardyard.contract.webhooks import DeliveryList, NewWebhook, PostedDelivery, WebhookList, WebhookView

_WEBHOOK = re.compile(r"wh_[0-9a-f]{16}")
_DELIVERY = re.compile(r"[0-9a-f-]{1,80}")
#: How the store calls what callers ask for.
PARTS: dict[str, DeliveryPart] = {"all": "all", "delivered": "done", "dead": "dead"}


class WebhookService:
    def __init__(self, control: AsyncRedisStore, key_file: Path, rules: AddressRules) -> None:
        self._store = control
        self._key_file = key_file
        self._rules = rules

    async def create_webhook(self, who: Principal, body: bytes) -> NewWebhook:
        """The webhook, with its secret.

        Raises:
            MalformedJson, InvalidRequest: a field is wrong.
            WebhookQuota: the tenant has too many.
            SecretKeyUnusable: this process has no key to encrypt its secret with.
        """
        wanted = parse_new_webhook(body)
        secret = f"whsec_{random_secrets.token_urlsafe(32)}"
        record = await self._seal(self._new_record(who, wanted), WebhookSecrets(wanted.url, secret))
        await self._store.run(webhooks.put_webhook(record))
        audit.log_audit_event(who, "webhook_created", webhook=record.id, events=list(record.kinds))
        stored = await self._store.run(webhooks.read_webhook(who.tenant, record.id))
        return views.new_webhook_view(stored, secret)

    def _new_record(self, who: Principal, wanted: NewWebhookRequest) -> WebhookRecord:
        return WebhookRecord(
            tenant=who.tenant,
            id=f"wh_{random_secrets.token_hex(8)}",
            name=wanted.name,
            url=views.shown_url(self._rules.check_url(wanted.url), wanted.format),
            format=wanted.format,
            kinds=tuple(dict.fromkeys(wanted.events)),
            sealed=b"",
        )

    async def _seal(self, record: WebhookRecord, secrets: WebhookSecrets) -> WebhookRecord:
        sealed = await asyncio.to_thread(seal_secrets, self._key_file, record.tenant, record.id, secrets)
        return replace(record, sealed=sealed)

    async def list_webhooks(self, who: Principal) -> WebhookList:
        records = await self._store.run(webhooks.list_webhooks(who.tenant))
        return WebhookList([views.webhook_view(record) for record in records])

    async def show_webhook(self, who: Principal, webhook: str) -> WebhookView:
        """Raises NotFound."""
        return views.webhook_view(await self._read(who, webhook))

    async def change_webhook(self, who: Principal, webhook: str, body: bytes) -> WebhookView:
        """Raises:
        MalformedJson, InvalidRequest: a field is wrong.
        NotFound: there is no such webhook.
        SecretKeyUnusable: it has another address, and this process has no key to encrypt it with.
        """
        wanted = parse_webhook_change(body)
        record = await self._apply(await self._read(who, webhook), wanted)
        await self._store.run(webhooks.change_webhook(record))
        audit.log_audit_event(who, "webhook_changed", webhook=webhook, fields=sorted(wanted.model_fields_set))
        return await self.show_webhook(who, webhook)

    async def _apply(self, record: WebhookRecord, wanted: WebhookChange) -> WebhookRecord:
        if wanted.events is not None:
            record = replace(record, kinds=tuple(dict.fromkeys(wanted.events)))
        if wanted.name is not None:
            record = replace(record, name=wanted.name)
        if wanted.active is not None:
            record = replace(record, active=wanted.active)
        if wanted.url is not None:
            shown = views.shown_url(self._rules.check_url(wanted.url), record.format)
            known = await asyncio.to_thread(unseal_secrets, self._key_file, record)
            record = await self._seal(replace(record, url=shown), WebhookSecrets(wanted.url, known.secret))
        return record

    async def delete_webhook(self, who: Principal, webhook: str) -> None:
        """Forget a webhook, and what waits for it. Raises NotFound."""
        await self._read(who, webhook)
        with suppress(NotFound):  # it went by this very call, whose first reply was lost
            await self._store.run(webhooks.delete_webhook(who.tenant, webhook))
        audit.log_audit_event(who, "webhook_deleted", webhook=webhook)

    async def post_test(self, who: Principal, webhook: str) -> PostedDelivery:
        """Raises NotFound, Conflict, WebhookQuota."""
        await self._read(who, webhook)
        return PostedDelivery(await self._store.run(webhooks.post_test(who.tenant, webhook)))

    async def list_deliveries(self, who: Principal, webhook: str, state: str, cursor: str, limit: int) -> DeliveryList:
        """Raises NotFound, MalformedCursor."""
        _check_id(webhook)
        before = cursors.decode_text(cursor).decode("ascii", "replace")
        if cursor and _DELIVERY.fullmatch(before) is None:
            raise MalformedCursor("the cursor is not one that this service gave; leave it out to start with the newest")
        call = webhooks.list_deliveries(who.tenant, webhook, PARTS[state], before=before, limit=limit)
        found = await self._store.run(call)
        following = cursors.encode_text(found[-1].id.encode()) if len(found) == limit else None
        return DeliveryList(deliveries=[views.delivery_view(record) for record in found], next_cursor=following)

    async def redeliver(self, who: Principal, webhook: str, delivery: str) -> PostedDelivery:
        """Raises NotFound."""
        _check_id(webhook)
        if _DELIVERY.fullmatch(delivery) is None:
            raise NotFound(f"webhook {webhook!r} has no delivery {delivery[:64]!r}")
        await self._store.run(webhooks.redeliver(who.tenant, webhook, delivery))
        audit.log_audit_event(who, "webhook_redelivered", webhook=webhook, delivery=delivery)
        return PostedDelivery(delivery)

    async def _read(self, who: Principal, webhook: str) -> WebhookRecord:
        _check_id(webhook)
        return await self._store.run(webhooks.read_webhook(who.tenant, webhook))


def _check_id(webhook: str) -> None:
    """What is not of the form of an id reaches no key. Raises NotFound."""
    if _WEBHOOK.fullmatch(webhook) is None:
        raise webhooks.unknown_webhook(webhook)
