"""What receivers get of an event."""

import json
from typing import Any

import httpx
import pytest

from api.webhooks.payloads import MAX_LINE, describe_event, render_delivery
from api.webhooks.views import shown_url
from jobs.store.accounts.webhooks import StoredEvent
from shardyard import webhooks
from shardyard.contract.webhooks import EVENT_KINDS, EVENT_PATTERNS

AT = 1_760_000_000_123_456
JOB: dict[str, Any] = {
    "id": "01980000",
    "name": "<trial> & error",
    "state": "failed",
    "previous": "running",
    "reason": "rank_failed",
    "message": "rank 0 ended: <!channel>",
}
NODE = {"node": "host-a", "pool": "default", "device": None, "reason": ""}


def an_event(kind: str = "job.failed", data: dict[str, Any] | None = None, missed: int = 0) -> StoredEvent:
    return StoredEvent(kind, "job:01980000", AT, missed, JOB if data is None else data)


def test_a_delivery_in_json_is_signed_and_can_be_verified_and_read() -> None:
    headers, body = render_delivery("json", "wh_1", "d-1", an_event(missed=2), "whsec_x", now=1000)
    assert json.loads(body) == {
        "id": "d-1",
        "kind": "job.failed",
        "at": "2025-10-09T08:53:20.123456Z",
        "webhook": "wh_1",
        "missed": 2,
        "data": JOB,
    }
    assert headers["Shardyard-Delivery"] == "d-1"
    assert headers["Shardyard-Event"] == "job.failed"
    event = webhooks.verify("whsec_x", headers["Shardyard-Signature"], body, now=1000)
    assert (event.id, event.data, event.at.microsecond) == ("d-1", JOB, 123456)


def test_slack_gets_a_line_in_which_nothing_is_a_mark() -> None:
    headers, body = render_delivery("slack", "wh_1", "d-1", an_event(), "whsec_x")
    assert json.loads(body) == {
        "text": "&lt;trial&gt; &amp; error (01980000) is failed: rank 0 ended: &lt;!channel&gt;"
    }
    assert "Shardyard-Signature" not in headers


@pytest.mark.parametrize(
    ("kind", "data", "line"),
    [
        ("node.down", NODE | {"reason": "its worker has left"}, "node host-a: down (its worker has left)"),
        ("node.up", NODE, "node host-a: up"),
        ("device.quarantined", NODE | {"device": 3, "reason": "hot"}, "device 3 of node host-a: quarantined (hot)"),
        ("webhook.test", {}, "this is a test of your webhook"),
        ("quota.reached", {}, "quota.reached"),
        (
            "finding.new",
            {"id": "1", "name": "trial", "level": "warning", "code": "idle-devices", "message": "2 of 4"},
            "trial (1): [warning] idle-devices: 2 of 4",
        ),
    ],
)
def test_each_kind_of_event_has_a_line_for_people(kind: str, data: dict[str, Any], line: str) -> None:
    assert describe_event(an_event(kind, data)) == line


def test_a_line_is_cut_and_says_how_many_are_missing() -> None:
    assert describe_event(an_event(missed=3)).endswith("(3 events before this one are missing)")
    assert len(describe_event(an_event(data=JOB | {"message": "x" * 5000}))) == MAX_LINE


def test_what_is_secret_of_an_address_is_not_shown() -> None:
    slack = httpx.URL("https://hooks.slack.com/services/T0/B0/secret?x=1")
    assert shown_url(slack, "slack") == "https://hooks.slack.com/..."
    assert (
        shown_url(httpx.URL("https://example.com:8443/hook?token=secret"), "json")
        == "https://example.com:8443/hook?..."
    )
    assert shown_url(httpx.URL("https://example.com/hook"), "json") == "https://example.com/hook"


def test_the_patterns_are_the_kinds_and_their_groups() -> None:
    groups = dict.fromkeys(f"{kind.partition('.')[0]}.*" for kind in EVENT_KINDS)
    assert ("*", *groups, *EVENT_KINDS) == EVENT_PATTERNS
