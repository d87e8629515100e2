"""Webhooks: kinds of events, what the service answers about webhooks, and what receivers get."""

from datetime import datetime
from typing import Any, Literal, get_args

import msgspec

from shardyard.contract.responses import Answer

#: Kinds of events, and when there is one. A webhook names some, or groups of them: `job.*`, `*`.
EVENT_KINDS: dict[str, str] = {
    "job.queued": "a job is submitted, or goes back to the queue",
    "job.starting": "a job has got its devices",
    "job.running": "the first rank of a job is up",
    "job.succeeded": "a job has succeeded",
    "job.failed": "a job has failed",
    "job.cancelled": "a job was cancelled",
    "finding.new": "the report of a running job has a new warning",
    "quota.reached": "a quota is reached",
    "node.up": "a node comes, or comes back",
    "node.down": "a node leaves, or sends no heartbeat any more",
    "device.quarantined": "a device is set apart",
    "device.released": "a device comes back from quarantine",
}
#: The kind of what `POST /v1/webhooks/{webhook}/test` sends, whatever the webhook wants.
TEST_KIND = "webhook.test"
#: What a webhook may name: kinds, and groups of them.
EventPattern = Literal[
    "*",
    "job.*",
    "finding.*",
    "quota.*",
    "node.*",
    "device.*",
    "job.queued",
    "job.starting",
    "job.running",
    "job.succeeded",
    "job.failed",
    "job.cancelled",
    "finding.new",
    "quota.reached",
    "node.up",
    "node.down",
    "device.quarantined",
    "device.released",
]
EVENT_PATTERNS: tuple[str, ...] = get_args(EventPattern)

#: Headers of a delivery.
SIGNATURE_HEADER = "Shardyard-Signature"
DELIVERY_HEADER = "Shardyard-Delivery"
EVENT_HEADER = "Shardyard-Event"


class WebhookEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a delivery in the format `json`. `id` is that of the delivery: drop what comes twice. `missed` counts
    the events before this one that the service had no room for. What `data` has depends on the kind."""

    id: str
    kind: str
    at: datetime
    webhook: str = ""
    missed: int = 0
    data: dict[str, Any] = {}


class WebhookView(Answer, frozen=True, kw_only=True):
    """A webhook without its secret. `url` is shown as far as it is no secret. `repo` and `token_secret` are those of
    the format `github`, `to` that of `email`. Until `former_until`, the secret before this one is used as well.
    `failing_since` is the first of the tries that have failed since one arrived, and `problem` what was wrong with the
    last."""

    id: str
    name: str = ""
    url: str = ""
    format: str = "json"
    events: list[str] = msgspec.field(default_factory=list)
    repo: str = ""
    token_secret: str = ""
    to: list[str] = msgspec.field(default_factory=list)
    active: bool = True
    former_until: datetime | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    delivered_at: datetime | None = None
    failing_since: datetime | None = None
    problem: str = ""
    waiting: int = 0  # deliveries that have not arrived yet
    dead: int = 0  # deliveries that were given up
    missed: int = 0  # events that there was no room for


class NewWebhook(WebhookView, frozen=True, kw_only=True):
    """`secret` is what deliveries are signed with, shown only this once, and not by `repr`, which ends up in logs and
    notebooks."""

    secret: str

    def __repr__(self) -> str:
        return f"NewWebhook(id={self.id!r}, name={self.name!r}, url={self.url!r}, events={self.events!r})"


class WebhookList(Answer, frozen=True):
    webhooks: list[WebhookView]
    total: int | None = None


class DeliveryView(Answer, frozen=True, kw_only=True):
    """One event for one webhook. `state` is waiting, delivered or dead; `status` and `problem` are those of the last
    try."""

    id: str
    kind: str
    state: str
    tries: int = 0
    created_at: datetime | None = None
    tried_at: datetime | None = None
    status: int | None = None
    problem: str = ""
    missed: int = 0
    data: dict[str, Any] = msgspec.field(default_factory=dict)


class DeliveryList(Answer, frozen=True, kw_only=True):
    """Deliveries, the newest first. `total` is how many of that state there are on all pages."""

    deliveries: list[DeliveryView]
    next_cursor: str | None = None
    total: int | None = None
    links: dict[str, str] = msgspec.field(default_factory=dict)  # self, and next unless this is the last page


class PostedDelivery(Answer, frozen=True):
    """A delivery that is on its way."""

    delivery: str
