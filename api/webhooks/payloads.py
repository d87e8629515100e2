"""What is sent for an event: headers and body, by the format of the webhook."""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from api.webhooks.sealing import WebhookSecrets
from jobs.store.accounts.webhooks import StoredEvent
from shardyard.contract.responses import at
from shardyard.contract.webhooks import DELIVERY_HEADER, EVENT_HEADER, SIGNATURE_HEADER, TEST_KIND, WebhookEvent
from shardyard.webhooks import sign

USER_AGENT = "Shardyard-Webhooks"
#: Of a line in a chat.
MAX_LINE = 600
#: Of a status of a commit, as GitHub limits them.
MAX_DESCRIPTION, MAX_CONTEXT = 140, 255
#: The label of a job that names its commit.
COMMIT_LABEL: Final = "git-commit"
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_COMMIT_STATES: Final[Mapping[str, str]] = {
    "queued": "pending",
    "starting": "pending",
    "running": "pending",
    "succeeded": "success",
    "failed": "failure",
    "cancelled": "error",
}


@dataclass(frozen=True, slots=True)
class OutgoingRequest:
    """A request to a receiver. Headers may have a token in them."""

    method: str
    url: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = b""


class NothingToSend(Exception):
    """A format has no message of an event; the text says why."""


def render_json(
    webhook: str, delivery: str, event: StoredEvent, secrets: WebhookSecrets, *, now: float | None = None
) -> OutgoingRequest:
    """Each try is signed anew, since receivers refuse old signatures."""
    at_seconds = time.time() if now is None else now
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
    signature = sign(secrets.secret, body, former=secrets.former_at(at_seconds), now=at_seconds)
    return OutgoingRequest("POST", secrets.url, {**_headers(delivery, event), SIGNATURE_HEADER: signature}, body)


def render_slack(delivery: str, event: StoredEvent, secrets: WebhookSecrets, link: str = "") -> OutgoingRequest:
    """`link` is the page of the job, if there is one."""
    text = _escape_slack(describe_event(event))
    body = msgspec.json.encode({"text": f"{text}\n<{_escape_slack(link)}|Open the job>" if link else text})
    return OutgoingRequest("POST", secrets.url, _headers(delivery, event), body)


def render_github(
    delivery: str, event: StoredEvent, url: str, repo: str, token: str, link: str = ""
) -> OutgoingRequest:
    """A status of the commit that the job's label names, with the `link` to the job's page, if there is one; of a test,
    a look at the repository.

    Raises:
        NothingToSend: the event is of no job, or its job names no commit.
    """
    headers = {
        **_headers(delivery, event),
        "Accept": "application/vnd.github+json",
        "X-GitHub-Api-Version": "2022-11-28",
        "Authorization": f"Bearer {token}",
    }
    base = f"{url.rstrip('/')}/repos/{repo}"
    if event.kind == TEST_KIND:
        return OutgoingRequest("GET", base, headers)
    state = _COMMIT_STATES.get(str(event.data.get("state")))
    if state is None:
        raise NothingToSend("not sent: a commit has a status of jobs only")
    commit = str((event.data.get("labels") or {}).get(COMMIT_LABEL, "")).lower()
    if _COMMIT.fullmatch(commit) is None:
        raise NothingToSend(f"not sent: the job has no label {COMMIT_LABEL} with the whole id of a commit")
    why = event.data.get("message") or event.data.get("reason") or ""
    description = f"{event.data.get('state')}: {why}" if why else str(event.data.get("state"))
    status = {
        "state": state,
        "context": f"shardyard/{event.data.get('name') or 'job'}"[:MAX_CONTEXT],
        "description": _cut(description, MAX_DESCRIPTION),
    }
    if link:
        status["target_url"] = link
    return OutgoingRequest("POST", f"{base}/statuses/{commit}", headers, msgspec.json.encode(status))


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
    return _cut(text, MAX_LINE)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


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


def _escape_slack(text: str) -> str:
    """Slack's own marks as text: an event must not call a channel or hide a link."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
