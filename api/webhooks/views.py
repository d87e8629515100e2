"""Webhooks and their deliveries as they are shown."""

import msgspec

from jobs.store.accounts.webhooks import DeliveryRecord, WebhookRecord
from shardyard.contract.responses import at, utc
from shardyard.contract.webhooks import DeliveryView, NewWebhook, WebhookView

#: How the parts of the store are called in answers.
STATES = {"waiting": "waiting", "done": "delivered", "dead": "dead"}


def webhook_view(record: WebhookRecord) -> WebhookView:
    return WebhookView(
        id=record.id,
        name=record.name,
        url=record.url,
        format=record.format,
        events=list(record.kinds),
        repo=record.target.repo,
        token_secret=record.target.token_secret,
        to=list(record.target.to),
        former_until=utc(record.former_until),
        active=record.active,
        created_at=at(record.created),
        updated_at=at(record.updated),
        delivered_at=utc(record.delivered),
        failing_since=utc(record.failing_since),
        problem=record.problem,
        waiting=record.waiting,
        dead=record.dead,
        missed=record.missed,
    )


def new_webhook_view(record: WebhookRecord, secret: str) -> NewWebhook:
    return NewWebhook(**msgspec.structs.asdict(webhook_view(record)), secret=secret)


def delivery_view(record: DeliveryRecord) -> DeliveryView:
    state = record.state
    return DeliveryView(
        id=record.id,
        kind=record.event.kind,
        state=STATES[state.state],
        tries=state.tries,
        created_at=at(record.event.at),
        tried_at=None if state.tried_ms is None else at(state.tried_ms * 1000),
        status=state.status,
        problem=state.problem,
        missed=record.event.missed,
        data=record.event.data,
    )
