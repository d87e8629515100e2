"""What is sent of an event: headers and body, by the format of the webhook."""

from collections.abc import Mapping
from typing import Any

import msgspec

from jobs.store.accounts.webhooks import StoredEvent
from shardyard.contract.responses import at
from shardyard.contract.webhooks import DELIVERY_HEADER, EVENT_HEADER, SIGNATURE_HEADER, WebhookEvent
from shardyard.webhooks import sign

USER_AGENT = "Shardyard-Webhooks"
#: Of a line in a chat.
MAX_LINE = 600


def render_delivery(
    form: str, webhook: str, delivery: str, event: StoredEvent, secret: str, *, now: float | None = None
) -> tuple[Mapping[str, str], bytes]:
    """Headers and body of a delivery in a format. Each try is signed anew, since receivers refuse old signatures."""
    if form == "slack":
        return _headers(delivery, event), msgspec.json.encode({"text": _escape_slack(describe_event(event))})
    body = msgspec.json.encode(
        WebhookEvent(
            id=delivery,
            kind=event.kind,
            at=at(event.at),
            webhook=webhook,
            missed=event.missed,
            data=event.data,
        )
    )
    return {**_headers(delivery, event), SIGNATURE_HEADER: sign(secret, body, now=now)}, body


def _headers(delivery: str, event: StoredEvent) -> dict[str, str]:
    return {
        "Content-Type": "application/json",
        "User-Agent": USER_AGENT,
        DELIVERY_HEADER: delivery,
        EVENT_HEADER: event.kind,
    }


def describe_event(event: StoredEvent) -> str:
    """An event in one line for people."""
    data, group = event.data, event.kind.partition(".")[0]
    line = {"job": _job_line, "finding": _finding_line, "node": _node_line, "device": _node_line}.get(
        group, _other_line
    )
    text = line(event.kind, data)
    if event.missed:
        text += f" ({event.missed} events before this one are missing)"
    return text if len(text) <= MAX_LINE else text[: MAX_LINE - 1] + "…"


def _job_line(_: str, data: Mapping[str, Any]) -> str:
    name = data.get("name") or "job"
    why = data.get("message") or data.get("reason", "")
    return f"{name} ({data.get('id', '')}) is {data.get('state', '')}" + (f": {why}" if why else "")


def _finding_line(_: str, data: Mapping[str, Any]) -> str:
    name = data.get("name") or "job"
    return f"{name} ({data.get('id', '')}): [{data.get('level', '')}] {data.get('code', '')}: {data.get('message', '')}"


def _node_line(kind: str, data: Mapping[str, Any]) -> str:
    what = f"node {data.get('node', '')}"
    if data.get("device") is not None:
        what = f"device {data['device']} of {what}"
    reason = data.get("reason")
    return f"{what}: {kind.partition('.')[2]}" + (f" ({reason})" if reason else "")


def _other_line(kind: str, _: Mapping[str, Any]) -> str:
    return "this is a test of your webhook" if kind == "webhook.test" else kind


_LINES = {"job": _job_line, "finding": _finding_line, "node": _node_line, "device": _node_line}


def _escape_slack(text: str) -> str:
    """Slack's own marks as text: an event must not call a channel or hide a link."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
