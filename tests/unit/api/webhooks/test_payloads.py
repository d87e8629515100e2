"""What receivers get of an event."""

import json
from typing import Any

import httpx
import pytest

from api.webhooks.payloads import (
    MAX_CONTEXT,
    MAX_DESCRIPTION,
    MAX_LINE,
    NothingToSend,
    describe_event,
    render_github,
    render_json,
    render_slack,
)
from api.webhooks.sealing import WebhookSecrets
from api.webhooks.targets import shown_url
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
SECRETS = WebhookSecrets("https://example.com/hook", "whsec_x")
COMMIT = "0123456789abcdef0123456789abcdef01234567"
NODE = {"node": "host-a", "pool": "default", "device": None, "reason": ""}


def an_event(kind: str = "job.failed", data: dict[str, Any] | None = None, missed: int = 0) -> StoredEvent:
    return StoredEvent(kind, "job:01980000", AT, missed, JOB if data is None else data)


def test_a_delivery_in_json_is_signed_and_can_be_verified_and_read() -> None:
    sent = render_json("wh_1", "d-1", an_event(missed=2), SECRETS, now=1000)
    headers, body = sent.headers, sent.body
    assert (sent.method, sent.url) == ("POST", SECRETS.url)
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
    sent = render_slack("d-1", an_event(), SECRETS)
    assert json.loads(sent.body) == {
        "text": "&lt;trial&gt; &amp; error (01980000) is failed: rank 0 ended: &lt;!channel&gt;"
    }
    assert "Shardyard-Signature" not in sent.headers


def test_while_a_secret_is_replaced_deliveries_fit_both() -> None:
    secrets = WebhookSecrets(SECRETS.url, "new", "old", former_until=2000.0)
    during = render_json("wh_1", "d-1", an_event(), secrets, now=1999)
    for secret in ("new", "old"):
        webhooks.verify(secret, during.headers["Shardyard-Signature"], during.body, now=1999)
    after = render_json("wh_1", "d-1", an_event(), secrets, now=2000)
    webhooks.verify("new", after.headers["Shardyard-Signature"], after.body, now=2000)
    with pytest.raises(webhooks.InvalidSignature):
        webhooks.verify("old", after.headers["Shardyard-Signature"], after.body, now=2000)


def a_job(**fields: Any) -> StoredEvent:
    return an_event(data=JOB | {"labels": {"git-commit": COMMIT}} | fields)


@pytest.mark.parametrize(
    ("state", "status"),
    [
        ("queued", "pending"),
        ("starting", "pending"),
        ("running", "pending"),
        ("succeeded", "success"),
        ("failed", "failure"),
        ("cancelled", "error"),
    ],
)
def test_github_gets_a_status_of_the_commit_that_a_job_names(state: str, status: str) -> None:
    sent = render_github("d-1", a_job(state=state), "https://ghe.test/api/v3/", "acme/vision", "t0ken")
    assert (sent.method, sent.url) == ("POST", f"https://ghe.test/api/v3/repos/acme/vision/statuses/{COMMIT}")
    assert sent.headers["Authorization"] == "Bearer t0ken"
    assert json.loads(sent.body) == {
        "state": status,
        "context": "shardyard/<trial> & error",
        "description": f"{state}: rank 0 ended: <!channel>",
    }
    assert "t0ken" not in repr(sent)


def test_a_status_of_a_commit_is_as_long_as_github_takes_it() -> None:
    sent = json.loads(render_github("d", a_job(name="n" * 900, message="m" * 900), "https://x.test", "a/b", "t").body)
    assert (len(sent["context"]), len(sent["description"])) == (MAX_CONTEXT, MAX_DESCRIPTION)


@pytest.mark.parametrize("commit", [None, "", "main", "a" * 39, "../" * 14, "a" * 40 + "/x", "a" * 40 + "\n"])
def test_a_job_without_the_whole_id_of_a_commit_has_no_status(commit: str | None) -> None:
    labels = {} if commit is None else {"git-commit": commit}
    with pytest.raises(NothingToSend, match="git-commit"):
        render_github("d-1", a_job(labels=labels), "https://x.test", "acme/vision", "t")


def test_a_test_of_github_looks_at_the_repository() -> None:
    sent = render_github("d-1", an_event("webhook.test", {}), "https://x.test", "acme/vision", "t")
    assert (sent.method, sent.url, sent.body) == ("GET", "https://x.test/repos/acme/vision", b"")


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
