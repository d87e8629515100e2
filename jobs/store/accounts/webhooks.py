"""Calls on webhooks: what tenants want to be notified of, and what is to be sent to them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from jobs.model.records import Fields
from jobs.protocol.names import WEBHOOK_TENANTS
from jobs.store.attempts import AttemptId
from jobs.store.call import Call, Word, call_function, is_ok, raise_if_missing, read_hash
from shardyard.contract.errors import Conflict, NotFound, WebhookQuota

#: Webhooks that a tenant may have.
MAX_WEBHOOKS = 10
#: Deliveries that one answer lists.
MAX_LISTED = 100
_MICROSECONDS = 1_000_000

DeliveryPart = Literal["all", "done", "dead"]


class WebhookTarget(msgspec.Struct, frozen=True, omit_defaults=True):
    """What some formats need beside an address: for `github` a repository and the name of a secret with a token, for
    `email` addresses."""

    repo: str = ""
    token_secret: str = ""
    to: tuple[str, ...] = ()


NO_TARGET = WebhookTarget()


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookRecord:
    """A webhook as it is stored. Times are microseconds since the epoch. `sealed` has what is secret of it, encrypted;
    `url` shows nothing of that. Until `former_until`, deliveries are signed with the secret before this one as well."""

    tenant: str
    id: str
    name: str
    url: str
    format: str
    kinds: tuple[str, ...]
    active: bool = True
    sealed: bytes = field(repr=False)
    target: WebhookTarget = NO_TARGET
    former_until: int | None = None
    created: int = 0
    updated: int = 0
    delivered: int | None = None
    failing_since: int | None = None
    problem: str = ""
    missed: int = 0
    waiting: int = 0
    dead: int = 0

    @classmethod
    def from_fields(cls, tenant: str, webhook: str, fields: Fields, waiting: int = 0, dead: int = 0) -> "WebhookRecord":
        text = {key.decode(): value for key, value in fields.items()}
        words = {key: value.decode() for key, value in text.items() if key not in ("sealed", "target")}
        times = {key: int(words[key]) for key in ("delivered", "failing_since", "former_until") if key in words}
        return cls(
            tenant=tenant,
            id=webhook,
            name=words.get("name", ""),
            url=words["url"],
            format=words["format"],
            kinds=tuple(words["kinds"].split()),
            active=words["active"] == "1",
            sealed=text["sealed"],
            target=msgspec.json.decode(text.get("target", b"{}"), type=WebhookTarget),
            created=int(words["created"]),
            updated=int(words["updated"]),
            problem=words.get("problem", ""),
            missed=int(words.get("missed_ever", 0)),
            waiting=waiting,
            dead=dead,
            **times,
        )


class StoredEvent(msgspec.Struct, frozen=True):
    """What has happened. `missed` counts the events before it that there was no room for; `at` is in microseconds."""

    kind: str
    subject: str
    at: int
    missed: int
    data: dict[str, Any]


class DeliveryState(msgspec.Struct, frozen=True):
    """How far a delivery is: waiting | done | dead. Times are milliseconds since the epoch."""

    state: str
    tries: int
    since_ms: int
    tried_ms: int | None = None
    status: int | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class DeliveryRecord:
    id: str
    event: StoredEvent
    state: DeliveryState


@dataclass(frozen=True, slots=True)
class DeliveryPage:
    deliveries: tuple[DeliveryRecord, ...]
    total: int  # of that part, on all pages


@dataclass(frozen=True, slots=True)
class TakenDelivery:
    """An event that is to be sent now, for the `tries`th time."""

    id: str
    event: StoredEvent
    tries: int


@dataclass(frozen=True, slots=True)
class TakenBatch:
    webhook: WebhookRecord
    deliveries: tuple[TakenDelivery, ...]


@dataclass(frozen=True, slots=True)
class TakenWork:
    """What the caller is to send. `is_leader`: no other process sends. `wait_seconds` is when to ask again,
    None where nothing is due."""

    is_leader: bool
    wait_seconds: float | None
    batches: tuple[TakenBatch, ...] = ()


@dataclass(frozen=True, slots=True)
class DeliveryOutcome:
    """What became of a delivery that was sent. `status` is that of the answer, if there was one."""

    delivery: str
    arrived: bool
    status: int | None = None
    problem: str = ""
    retry_seconds: float = 0.0


def put_webhook(webhook: WebhookRecord) -> Call[None]:
    """Raises (on execution):
    WebhookQuota: the tenant has `MAX_WEBHOOKS` others.
    """

    def decode(reply: bytes) -> None:
        if reply == b"full":
            raise WebhookQuota(f"there may be {MAX_WEBHOOKS} webhooks; remove one (`shardyard webhook list`)")

    return call_function(
        "put_webhook",
        decode,
        *_flat_fields(webhook),
        tenant=webhook.tenant,
        id=webhook.id,
        kinds=_join_kinds(webhook.kinds),
        most=MAX_WEBHOOKS,
    )


def change_webhook(webhook: WebhookRecord, older: bytes) -> Call[bool]:
    """Store what was changed of a webhook; False where its secret is not `older` any more, what was read before.
    Raises NotFound on execution."""
    return call_function(
        "change_webhook",
        _was_changed(webhook),
        *_flat_fields(webhook),
        tenant=webhook.tenant,
        id=webhook.id,
        kinds=_join_kinds(webhook.kinds),
        active="1" if webhook.active else "",
        older=older,
    )


def rotate_webhook(webhook: WebhookRecord, sealed: bytes, former_until: int) -> Call[bool]:
    """Store another secret of a webhook; False where it has changed since it was read. Raises NotFound on execution."""
    return call_function(
        "rotate_webhook",
        _was_changed(webhook),
        tenant=webhook.tenant,
        id=webhook.id,
        older=webhook.sealed,
        sealed=sealed,
        former_until=former_until,
    )


def _was_changed(webhook: WebhookRecord) -> Callable[[bytes], bool]:
    def decode(reply: bytes) -> bool:
        if reply == b"missing":
            raise unknown_webhook(webhook.id)
        return is_ok(reply)

    return decode


def _flat_fields(webhook: WebhookRecord) -> list[Word]:
    fields: list[Word] = ["name", webhook.name, "url", webhook.url, "format", webhook.format, "sealed", webhook.sealed]
    return [*fields, "target", msgspec.json.encode(webhook.target)]


def _join_kinds(kinds: Iterable[str]) -> str:
    """Each between two spaces, as the store searches for them."""
    return f" {' '.join(kinds)} "


def list_webhooks(tenant: str) -> Call[tuple[WebhookRecord, ...]]:
    """All of a tenant, the oldest first."""

    def decode(reply: Sequence[Any]) -> tuple[WebhookRecord, ...]:
        return tuple(sorted(_records(tenant, reply), key=lambda found: (found.created, found.id)))

    return call_function("list_webhooks", decode, tenant=tenant, id="")


def read_webhook(tenant: str, webhook: str) -> Call[WebhookRecord]:
    """Raises NotFound on execution."""

    def decode(reply: Sequence[Any]) -> WebhookRecord:
        found = _records(tenant, reply)
        if not found:
            raise unknown_webhook(webhook)
        return found[0]

    return call_function("list_webhooks", decode, tenant=tenant, id=webhook)


def _records(tenant: str, reply: Sequence[Any]) -> list[WebhookRecord]:
    return [
        WebhookRecord.from_fields(tenant, webhook.decode(), read_hash(fields), waiting, dead)
        for webhook, waiting, dead, fields in reply
    ]


def delete_webhook(tenant: str, webhook: str) -> Call[None]:
    """Forget a webhook, and what waits for it. Raises NotFound on execution."""
    return call_function("delete_webhook", raise_if_missing(unknown_webhook(webhook)), tenant=tenant, id=webhook)


def unknown_webhook(webhook: str) -> NotFound:
    return NotFound(f"there is no webhook {webhook[:64]!r}")


@dataclass(frozen=True, slots=True)
class PostedFinding:
    """A finding of a report, of which webhooks hear. `device` is the one that it is about, if it is about one."""

    level: str
    code: str
    device: int | None
    message: str


def post_finding(attempt: AttemptId, claimant: str, finding: PostedFinding) -> Call[bool]:
    """Post a finding of a running attempt, once. False: the lease is lost."""
    return call_function(
        "post_finding",
        is_ok,
        ref=attempt.job_ref,
        number=attempt.number,
        claimant=claimant,
        level=finding.level,
        code=finding.code,
        device="" if finding.device is None else finding.device,
        message=finding.message,
    )


# -- deliveries ------------------------------------------------------------------------------------


def list_deliveries(
    tenant: str, webhook: str, part: DeliveryPart, *, before: str = "", limit: int = MAX_LISTED
) -> Call[DeliveryPage]:
    """The newest deliveries of a webhook, or those before one of them. Raises NotFound on execution."""

    def decode(reply: Sequence[Any] | None) -> DeliveryPage:
        if reply is None:
            raise unknown_webhook(webhook)
        total, *listed = reply
        found = tuple(
            DeliveryRecord(
                delivery.decode(),
                msgspec.json.decode(event, type=StoredEvent),
                msgspec.json.decode(state, type=DeliveryState),
            )
            for delivery, event, state in listed
        )
        return DeliveryPage(found, total)

    return call_function("list_deliveries", decode, tenant=tenant, id=webhook, part=part, before=before, limit=limit)


def post_test(tenant: str, webhook: str) -> Call[str]:
    """Post an event to a webhook; the id of its delivery.

    Raises (on execution):
        NotFound: there is no such webhook.
        Conflict: it is not active.
        WebhookQuota: what waits for the tenant's webhooks leaves no room.
    """

    def decode(reply: Sequence[bytes]) -> str:
        status, delivery = (part.decode() for part in reply)
        if status == "missing":
            raise unknown_webhook(webhook)
        if status == "inactive":
            raise Conflict("the webhook is not active; activate it first (PATCH with active: true)")
        if status == "full":
            raise WebhookQuota("too many deliveries already wait for your webhooks; look at them, or remove a webhook")
        return delivery

    return call_function("post_test", decode, tenant=tenant, id=webhook)


def redeliver(tenant: str, webhook: str, delivery: str) -> Call[None]:
    """Send a delivery again that has arrived or was given up; one that waits is left as it is.

    Raises (on execution):
        NotFound: there is no such delivery.
    """
    decode = raise_if_missing(NotFound(f"webhook {webhook[:64]!r} has no delivery {delivery[:64]!r}"))
    return call_function("redeliver", decode, tenant=tenant, id=webhook, delivery=delivery)


# -- sending ---------------------------------------------------------------------------------------


def take_deliveries(
    candidate: str, *, lead_seconds: float, hold_seconds: float, webhooks: int, lanes: int
) -> Call[TakenWork]:
    """What is due, for the process that leads; it becomes the caller where none does. What is taken is due again after
    `hold_seconds` where `settle_deliveries` has not said what became of it."""

    def decode(reply: Sequence[Any]) -> TakenWork:
        if len(reply) == 1:
            return TakenWork(False, reply[0] / 1000)
        batches = tuple(map(_taken_batch, reply[2:]))
        return TakenWork(True, None if reply[1] < 0 else reply[1] / _MICROSECONDS, batches)

    return call_function(
        "take_deliveries",
        decode,
        candidate=candidate,
        lead_ms=round(lead_seconds * 1000),
        hold_us=round(hold_seconds * _MICROSECONDS),
        webhooks=webhooks,
        lanes=lanes,
    )


def _taken_batch(reply: Sequence[Any]) -> TakenBatch:
    tenant, webhook, fields, *deliveries = reply
    record = WebhookRecord.from_fields(tenant.decode(), webhook.decode(), read_hash(fields))
    taken = (
        TakenDelivery(delivery.decode(), msgspec.json.decode(event, type=StoredEvent), tries)
        for delivery, event, tries in deliveries
    )
    return TakenBatch(record, tuple(taken))


def settle_deliveries(
    tenant: str,
    webhook: str,
    outcomes: Iterable[DeliveryOutcome],
    *,
    pause_seconds: float,
    most_tries: int,
    most_seconds: float,
) -> Call[tuple[str, ...]]:
    """Say what became of deliveries; the ids of those that were given up. For `pause_seconds` nothing is sent there."""
    words: list[Word] = []
    for outcome in outcomes:
        status = "" if outcome.status is None else outcome.status
        delay = round(outcome.retry_seconds * _MICROSECONDS)
        words += [outcome.delivery, "1" if outcome.arrived else "", status, outcome.problem, delay]
    return call_function(
        "settle_deliveries",
        lambda reply: tuple(delivery.decode() for delivery in reply),
        *words,
        tenant=tenant,
        id=webhook,
        pause_us=round(pause_seconds * _MICROSECONDS),
        most_tries=most_tries,
        most_ms=round(most_seconds * 1000),
    )


def seal_name(webhook: str) -> str:
    """What a webhook's secret is encrypted as: no secret of a tenant can have such a name."""
    return f"webhook:{webhook}"


# -- keys ------------------------------------------------------------------------------------------


def read_webhook_tenants() -> Call[tuple[str, ...]]:
    return Call(("SMEMBERS", WEBHOOK_TENANTS), lambda reply: tuple(sorted(tenant.decode() for tenant in reply)))


def reseal_webhook(webhook: WebhookRecord, sealed: bytes) -> Call[bool]:
    """Store a webhook's secret under another key; False where it has changed since it was read."""
    return call_function(
        "reseal_webhook",
        lambda reply: reply == b"replaced",
        tenant=webhook.tenant,
        id=webhook.id,
        older=webhook.sealed,
        sealed=sealed,
    )
