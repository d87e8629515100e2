"""The service of webhooks: creates, changes and lists those of a tenant, and shows what became of their deliveries."""

import asyncio
import re
import secrets as random_secrets
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec

from api.http import audit, cursors
from api.http.auth import Principal
from api.schemas.webhook_requests import (
    NewWebhookRequest,
    WebhookChange,
    parse_new_webhook,
    parse_webhook_change,
    parse_webhook_rotation,
)
from api.webhooks import views
from api.webhooks.addresses import AddressRules
from api.webhooks.mails import MailTransport
from api.webhooks.sealing import WebhookSecrets, seal_secrets, unseal_secrets
from api.webhooks.targets import WantedTarget, check_events, check_target
from jobs.store.accounts import webhooks
from jobs.store.accounts.tenant_secrets import read_secret_names
from jobs.store.accounts.webhooks import DeliveryPart, WebhookRecord
from jobs.store.client import AsyncRedisStore
from shardyard.contract.errors import Conflict, FieldError, InvalidRequest, MalformedCursor, NotFound
from shardyard.contract.webhooks import DeliveryList, NewWebhook, PostedDelivery, WebhookList, WebhookView

_WEBHOOK = re.compile(r"wh_[0-9a-f]{16}")
_DELIVERY = re.compile(r"[0-9a-f-]{1,80}")
#: A change that meets another one is made again with what that has left.
CHANGE_TRIES = 4
#: How the store calls what callers ask for.
PARTS: dict[str, DeliveryPart] = {"all": "all", "delivered": "done", "dead": "dead"}


class WebhookService:
    def __init__(self, control: AsyncRedisStore, key_file: Path, rules: AddressRules, mail: MailTransport) -> None:
        self._store = control
        self._key_file = key_file
        self._rules = rules
        self._mail = mail

    async def create_webhook(self, who: Principal, body: bytes) -> NewWebhook:
        """The webhook, with its secret.

        Raises:
            MalformedJson, InvalidRequest: a field is wrong.
            WebhookQuota: the tenant has too many.
            SecretKeyUnusable: this process has no key to encrypt its secret with.
        """
        wanted = parse_new_webhook(body)
        record, secrets = await self._new_record(who, wanted)
        await self._store.run(webhooks.put_webhook(await self._seal(record, secrets)))
        audit.log_audit_event(who, "webhook_created", webhook=record.id, events=list(record.kinds))
        stored = await self._store.run(webhooks.read_webhook(who.tenant, record.id))
        return views.new_webhook_view(stored, secrets.secret)

    async def _new_record(self, who: Principal, wanted: NewWebhookRequest) -> tuple[WebhookRecord, WebhookSecrets]:
        given = WantedTarget(url=wanted.url, repo=wanted.repo, token_secret=wanted.token_secret, to=wanted.to)
        checked = check_target(wanted.format, given, wanted.events, self._rules, self._mail)
        await self._require_token(who, wanted.token_secret)
        record = WebhookRecord(
            tenant=who.tenant,
            id=f"wh_{random_secrets.token_hex(8)}",
            name=wanted.name,
            url=checked.shown,
            format=wanted.format,
            kinds=tuple(dict.fromkeys(wanted.events)),
            sealed=b"",
            target=checked.target,
        )
        return record, WebhookSecrets(checked.url, _new_secret())

    async def _require_token(self, who: Principal, name: str | None) -> None:
        """Raises InvalidRequest where the tenant has no such secret."""
        if name is not None and name not in await self._store.run(read_secret_names(who.tenant)):
            message = f"there is no secret {name!r}; `shardyard secret put {name}` stores one"
            raise InvalidRequest("the webhook is not valid", fields=(FieldError("token_secret", message),))

    async def _seal(self, record: WebhookRecord, secrets: WebhookSecrets) -> WebhookRecord:
        sealed = await asyncio.to_thread(seal_secrets, self._key_file, record.tenant, record.id, secrets)
        return replace(record, sealed=sealed)

    async def list_webhooks(self, who: Principal) -> WebhookList:
        records = await self._store.run(webhooks.list_webhooks(who.tenant))
        return WebhookList([views.webhook_view(record) for record in records], len(records))

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
        for _ in range(CHANGE_TRIES):
            known = await self._read(who, webhook)
            changed = await self._apply(who, known, wanted)
            if await self._store.run(webhooks.change_webhook(changed, known.sealed)):
                break
        else:
            raise Conflict("the webhook is being changed by others; send the change again")
        audit.log_audit_event(who, "webhook_changed", webhook=webhook, fields=sorted(wanted.model_fields_set))
        return await self.show_webhook(who, webhook)

    async def _apply(self, who: Principal, record: WebhookRecord, wanted: WebhookChange) -> WebhookRecord:
        if wanted.events is not None:
            check_events(record.format, wanted.events)
            record = replace(record, kinds=tuple(dict.fromkeys(wanted.events)))
        if wanted.name is not None:
            record = replace(record, name=wanted.name)
        if wanted.active is not None:
            record = replace(record, active=wanted.active)
        if wanted.model_fields_set & {"url", "repo", "token_secret", "to"}:
            await self._require_token(who, wanted.token_secret)
            record = await self._retarget(record, wanted)
        return record

    async def _retarget(self, record: WebhookRecord, wanted: WebhookChange) -> WebhookRecord:
        """With what is given in place of what it has; checked together."""
        has, secrets = record.target, await asyncio.to_thread(unseal_secrets, self._key_file, record)
        known_url = None if record.format == "email" else secrets.url
        merged = WantedTarget(
            url=wanted.url or known_url,
            repo=wanted.repo or has.repo or None,
            token_secret=wanted.token_secret or has.token_secret or None,
            to=wanted.to or has.to or None,
        )
        checked = check_target(record.format, merged, record.kinds, self._rules, self._mail)
        record = replace(record, url=checked.shown, target=checked.target)
        return await self._seal(record, msgspec.structs.replace(secrets, url=checked.url))

    async def rotate_secret(self, who: Principal, webhook: str, body: bytes) -> NewWebhook:
        """The webhook with another secret; deliveries are signed with the older one as well for a while.

        Raises:
            MalformedJson, InvalidRequest: the body is wrong.
            NotFound: there is no such webhook.
            Conflict: its format has no signatures, or others change it.
            SecretKeyUnusable: this process cannot decrypt its secret.
        """
        overlap = parse_webhook_rotation(body).overlap_seconds
        for _ in range(CHANGE_TRIES):
            record = await self._read(who, webhook)
            if record.format != "json":
                raise Conflict(
                    f"deliveries in the format {record.format} are not signed, so there is no secret to replace"
                )
            known = await asyncio.to_thread(unseal_secrets, self._key_file, record)
            until = time.time() + overlap
            secrets = WebhookSecrets(known.url, _new_secret(), known.secret if overlap else "", until)
            sealed = (await self._seal(record, secrets)).sealed
            if await self._store.run(webhooks.rotate_webhook(record, sealed, round(until * 1_000_000))):
                audit.log_audit_event(who, "webhook_secret_rotated", webhook=webhook, overlap_seconds=overlap)
                return views.new_webhook_view(await self._read(who, webhook), secrets.secret)
        raise Conflict("the webhook is being changed by others; send the request again")

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
            raise MalformedCursor("the cursor was not issued by this service; leave it out to start with the newest")
        call = webhooks.list_deliveries(who.tenant, webhook, PARTS[state], before=before, limit=limit)
        page = await self._store.run(call)
        found = page.deliveries
        following = cursors.encode_text(found[-1].id.encode()) if len(found) == limit else None
        shown = [views.delivery_view(record) for record in found]
        return DeliveryList(deliveries=shown, next_cursor=following, total=page.total)

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


def _new_secret() -> str:
    return f"whsec_{random_secrets.token_urlsafe(32)}"


def _check_id(webhook: str) -> None:
    """What is not of the form of an id reaches no key. Raises NotFound."""
    if _WEBHOOK.fullmatch(webhook) is None:
        raise webhooks.unknown_webhook(webhook)
