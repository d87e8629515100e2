"""Webhooks over HTTP."""

import logging
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from api.background import secret_rotation
from api.webhooks.sealing import unseal_secrets
from jobs.model.settings import Settings
from jobs.store.accounts import webhooks
from jobs.store.accounts.tokens import Scope
from jobs.store.accounts.webhooks import MAX_WEBHOOKS, DeliveryOutcome
from jobs.support import secret_keys
from shardyard.webhooks import verify
from tests.integration.api.conftest import Api, running
from tests.support.servers.webhook_receiver import receiving

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

URL = "https://hooks.example.com/shardyard"


@pytest.fixture(autouse=True)
def key_file(settings: Settings) -> Path:
    secret_keys.create_key_file(settings.secret_keys())
    return settings.secret_keys()


async def create(api: Api, url: str = URL, headers: Any = None, **fields: Any) -> Any:
    return await api.client.post("/v1/webhooks", json={"url": url} | fields, headers=headers)


async def created(api: Api, url: str = URL, **fields: Any) -> dict[str, Any]:
    answer = await create(api, url, **fields)
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


def settle_all(api: Api, webhook: str, *, arrived: bool) -> list[str]:
    """As a sender would: what is due has arrived, or is given up."""
    call = webhooks.take_deliveries("a test", lead_seconds=60, hold_seconds=60, webhooks=10, lanes=100)
    (batch,) = api.control.run(call).batches
    outcomes = [DeliveryOutcome(each.id, arrived, 204 if arrived else 500) for each in batch.deliveries]
    api.control.run(
        webhooks.settle_deliveries("default", webhook, outcomes, pause_seconds=0, most_tries=1, most_seconds=60)
    )
    return [outcome.delivery for outcome in outcomes]


@pytest.fixture
async def lonely(api: Api) -> Api:
    """An API whose own sender does not lead, so that what is posted stays."""
    api.control.client.set("sy:leader:webhooks", "a test", px=600_000)
    return api


# -- create, list, change, delete ------------------------------------------------------------------


async def test_a_webhook_shows_its_secret_once(api: Api, key_file: Path) -> None:
    answer = await create(api, events=["job.failed", "node.*", "job.failed"], name="pager")
    made = answer.json()
    assert (answer.status_code, answer.headers["cache-control"]) == (201, "no-store")
    secret = made.pop("secret")
    assert secret.startswith("whsec_")
    assert (made["name"], made["url"], made["format"], made["events"], made["active"]) == (
        "pager",
        URL,
        "json",
        ["job.failed", "node.*"],
        True,
    )
    assert await api.get("/v1/webhooks") == {"webhooks": [made], "total": 1}
    assert await api.get(f"/v1/webhooks/{made['id']}") == made
    record = api.control.run(webhooks.read_webhook("default", made["id"]))
    assert unseal_secrets(key_file, record).secret == secret
    stored = b"".join(api.control.client.dump(key) or b"" for key in api.control.client.keys("*"))
    assert secret.encode() not in stored


async def test_what_is_secret_of_an_address_is_in_no_answer_and_not_in_redis(api: Api, key_file: Path) -> None:
    slack = await created(api, "https://hooks.slack.com/services/T0/B0/sEcReT", format="slack")
    query = await created(api, "https://example.com/hook?token=sEcReT")
    assert (slack["url"], query["url"]) == ("https://hooks.slack.com/...", "https://example.com/hook?...")
    assert "sEcReT" not in (await api.client.get("/v1/webhooks")).text
    stored = b"".join(api.control.client.dump(key) or b"" for key in api.control.client.keys("*"))
    assert b"sEcReT" not in stored
    record = api.control.run(webhooks.read_webhook("default", slack["id"]))
    assert unseal_secrets(key_file, record).url == "https://hooks.slack.com/services/T0/B0/sEcReT"


async def test_a_webhook_is_changed_field_by_field_and_keeps_its_secret(api: Api, key_file: Path) -> None:
    made = await created(api)
    path = f"/v1/webhooks/{made['id']}"
    changed = (await api.client.patch(path, json={"active": False, "name": "off"})).json()
    assert (changed["active"], changed["name"], changed["url"], changed["events"]) == (False, "off", URL, ["job.*"])
    moved = (await api.client.patch(path, json={"url": "https://new.example.com/x?y=z", "events": ["*"]})).json()
    assert (moved["url"], moved["events"], moved["active"]) == ("https://new.example.com/x?...", ["*"], False)
    record = api.control.run(webhooks.read_webhook("default", made["id"]))
    kept = unseal_secrets(key_file, record)
    assert (kept.url, kept.secret) == ("https://new.example.com/x?y=z", made["secret"])
    assert (await api.client.patch(path, json={})).json() == await api.get(path)


async def test_a_webhook_is_deleted_with_what_waits_for_it(lonely: Api) -> None:
    made = await created(lonely)
    path = f"/v1/webhooks/{made['id']}"
    await lonely.client.post(f"{path}/test")
    assert (await lonely.client.delete(path)).status_code == 204
    for method, rest in (("GET", ""), ("DELETE", ""), ("PATCH", ""), ("POST", "/test"), ("GET", "/deliveries")):
        answer = await lonely.client.request(method, path + rest, content=b"{}" if method == "PATCH" else None)
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), (method, rest)
    assert not lonely.control.client.keys("sy:delivery:*")


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"url": "http://example.com/"}, "url", "https://"),
        ({"url": "https://127.0.0.1/"}, "url", "not public"),
        ({"url": "https://user:pass@example.com/"}, "url", "user and password"),
        ({"url": ""}, "url", ""),
        ({"url": 7}, "url", ""),
        ({"events": []}, "events", ""),
        ({"events": ["job.exploded"]}, "events.0", "job.failed"),
        ({"format": "carrier-pigeon"}, "format", "json"),
        ({"name": "x" * 201}, "name", ""),
        ({"name": "\u202egpj"}, "name", ""),
        ({"evnts": ["*"]}, "evnts", "events"),
    ],
)
async def test_a_wrong_field_is_named(api: Api, fields: dict[str, Any], field: str, words: str) -> None:
    made = await created(api)
    path = f"/v1/webhooks/{made['id']}"
    answers = [await api.client.post("/v1/webhooks", json={"url": URL} | fields)]
    if field != "format":  # which cannot be changed
        answers.append(await api.client.patch(path, json=fields))
    for answer in answers:
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request"), answer.text
        (wrong,) = answer.json()["errors"]
        assert wrong["field"] == field
        assert words in wrong["message"]
        assert "pass@" not in answer.text


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({}, "url", "needs it"),
        ({"format": "slack"}, "url", "needs it"),
        ({"url": URL, "to": ["a@example.com"]}, "to", "has none"),
        ({"format": "github", "repo": "acme/vision"}, "token_secret", "needs it"),
        ({"format": "github", "repo": "acme/vision", "token_secret": "gh"}, "token_secret", "secret put gh"),
        ({"format": "github", "repo": "acme/..", "token_secret": "gh"}, "repo", ""),
        ({"format": "github", "repo": "acme/vision/x", "token_secret": "gh"}, "repo", ""),
        ({"format": "github", "repo": "a/b", "token_secret": "gh", "events": ["node.*"]}, "events.0", "job.*"),
        ({"format": "github", "repo": "a/b", "token_secret": "gh", "url": "https://127.0.0.1/"}, "url", "not public"),
        ({"format": "email"}, "to", "needs it"),
        ({"format": "email", "to": ["a@example.com"]}, "format", "SHARDYARD_MAIL_SERVER"),
        ({"format": "email", "to": ["a@example.com"] * 11}, "to", ""),
        ({"format": "email", "to": ["a@example.com"], "url": URL}, "url", "has none"),
    ],
)
async def test_each_format_has_fields_of_its_own(api: Api, fields: dict[str, Any], field: str, words: str) -> None:
    answer = await api.client.post("/v1/webhooks", json=fields)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request"), answer.text
    (wrong,) = answer.json()["errors"]
    assert wrong["field"] == field
    assert words in wrong["message"]


async def test_a_webhook_of_github_is_made_and_changed(api: Api) -> None:
    await api.client.put("/v1/secrets/gh", json={"value": "t0ken"})
    fields = {"format": "github", "repo": "acme/vision", "token_secret": "gh"}
    made = (await api.client.post("/v1/webhooks", json=fields)).json()
    assert (made["url"], made["repo"], made["token_secret"]) == ("https://api.github.com", "acme/vision", "gh")
    path = f"/v1/webhooks/{made['id']}"
    changed = (await api.client.patch(path, json={"repo": "acme/audio", "name": "ci"})).json()
    assert (changed["repo"], changed["token_secret"], changed["name"]) == ("acme/audio", "gh", "ci")
    for wrong in ({"to": ["a@example.com"]}, {"events": ["*"]}, {"token_secret": "none"}):
        assert (await api.client.patch(path, json=wrong)).status_code == 422, wrong
    assert await api.get(path) == changed | {"updated_at": (await api.get(path))["updated_at"]}


async def test_mails_go_to_the_domains_that_the_operator_allows(settings: Settings, key_file: Path) -> None:
    mail = {"mail_server": "smtp://127.0.0.1:1", "mail_from": "s@example.com", "mail_domains": "example.com"}
    async with running(settings.model_copy(update=mail)) as api:
        made = (await api.client.post("/v1/webhooks", json={"format": "email", "to": ["a@Example.com"]})).json()
        assert (made["to"], made["url"]) == (["a@Example.com"], "mailto:a@Example.com")
        to = ["a@example.com", "b@example.com.evil.test", "c@example.com\r\nBcc: d@e.f"]
        refused = await api.client.post("/v1/webhooks", json={"format": "email", "to": to})
        assert refused.status_code == 422
        assert [each["field"] for each in refused.json()["errors"]] == ["to.1", "to.2"]


async def test_a_secret_is_replaced_while_deliveries_are_signed_with_both(api: Api, key_file: Path) -> None:
    made = await created(api)
    path = f"/v1/webhooks/{made['id']}"
    answer = await api.client.post(f"{path}/rotate", json={"overlap_seconds": 600})
    rotated = answer.json()
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
    assert rotated["secret"] not in ("", made["secret"])
    assert rotated["former_until"] is not None
    secrets = unseal_secrets(key_file, api.control.run(webhooks.read_webhook("default", made["id"])))
    assert (secrets.url, secrets.secret, secrets.former_secret) == (URL, rotated["secret"], made["secret"])
    at_once = (await api.client.post(f"{path}/rotate", json={"overlap_seconds": 0})).json()
    secrets = unseal_secrets(key_file, api.control.run(webhooks.read_webhook("default", made["id"])))
    assert (secrets.secret, secrets.former_secret) == (at_once["secret"], "")
    assert (await api.client.post(f"{path}/rotate")).status_code == 200
    assert (await api.client.post(f"{path}/rotate", json={"overlap_seconds": 10**6})).status_code == 422
    reader = api.token(Scope.READ)
    assert (await api.client.post(f"{path}/rotate", headers=reader)).status_code == 403
    slack = await created(api, "https://hooks.slack.com/services/x", format="slack")
    assert (await api.client.post(f"/v1/webhooks/{slack['id']}/rotate")).status_code == 409


async def test_a_tenant_has_ten_webhooks_at_most(api: Api) -> None:
    for _ in range(MAX_WEBHOOKS):
        await created(api)
    refused = await create(api)
    assert (refused.status_code, refused.json()["code"]) == (409, "webhook_quota")
    theirs = api.token(Scope.SUBMIT, tenant="rival")
    assert (await create(api, headers=theirs)).status_code == 201


async def test_tenants_do_not_meet(lonely: Api) -> None:
    made = await created(lonely)
    path = f"/v1/webhooks/{made['id']}"
    posted = (await lonely.client.post(f"{path}/test")).json()["delivery"]
    theirs = lonely.token(Scope.SUBMIT, tenant="rival")
    assert await lonely.get("/v1/webhooks", headers=theirs) == {"webhooks": [], "total": 0}
    for method, rest in (
        ("GET", ""),
        ("DELETE", ""),
        ("PATCH", ""),
        ("POST", "/test"),
        ("GET", "/deliveries"),
        ("POST", f"/deliveries/{posted}/redeliver"),
    ):
        content = b"{}" if method == "PATCH" else None
        answer = await lonely.client.request(method, path + rest, headers=theirs, content=content)
        assert answer.json()["code"] == "not_found", (method, rest)


async def test_a_token_that_may_only_read_sees_webhooks_and_changes_none(lonely: Api) -> None:
    made = await created(lonely)
    reader = lonely.token(Scope.READ)
    path = f"/v1/webhooks/{made['id']}"
    assert "secret" not in await lonely.get(path, headers=reader)
    for method, rest in (("POST", "/test"), ("DELETE", ""), ("PATCH", "")):
        assert (await lonely.client.request(method, path + rest, headers=reader)).status_code == 403
    assert (await create(lonely, headers=reader)).status_code == 403


async def test_without_a_key_a_webhook_is_refused(api: Api, key_file: Path) -> None:
    key_file.unlink()
    assert (await create(api)).json()["code"] == "secret_key_unusable"
    assert await api.get("/v1/webhooks") == {"webhooks": [], "total": 0}


async def test_what_is_changed_is_in_the_audit_log_without_what_is_secret(api: Api) -> None:
    with capture_logs() as logged:
        made = await created(api, "https://example.com/?token=sEcReT")
        path = f"/v1/webhooks/{made['id']}"
        await api.client.patch(path, json={"url": "https://example.com/?token=sEcReT2"})
        await api.client.delete(path)
    entries = [entry for entry in logged if entry["event"].startswith("webhook_")]
    assert [entry["event"] for entry in entries] == ["webhook_created", "webhook_changed", "webhook_deleted"]
    assert {entry["webhook"] for entry in entries} == {made["id"]}
    assert "sEcReT" not in str(logged)
    assert made["secret"] not in str(logged)


# -- deliveries ------------------------------------------------------------------------------------


async def test_deliveries_are_listed_in_pages_and_dead_letters_by_themselves(lonely: Api) -> None:
    made = await created(lonely)
    path = f"/v1/webhooks/{made['id']}/deliveries"
    test = f"/v1/webhooks/{made['id']}/test"
    await lonely.client.post(test)
    (dead,) = settle_all(lonely, made["id"], arrived=False)
    await lonely.client.post(test)
    (arrived,) = settle_all(lonely, made["id"], arrived=True)
    waiting = (await lonely.client.post(test)).json()["delivery"]
    pages, cursor = [], ""
    while True:
        page = await lonely.get(path, params={"limit": 1, "cursor": cursor})
        pages += page["deliveries"]
        assert page["total"] == 3
        if page["next_cursor"] is None:
            break
        cursor = page["next_cursor"]
    assert [(row["id"], row["kind"], row["state"], row["status"], row["tries"]) for row in pages] == [
        (waiting, "webhook.test", "waiting", None, 0),
        (arrived, "webhook.test", "delivered", 204, 1),
        (dead, "webhook.test", "dead", 500, 1),
    ]
    given_up = await lonely.get(path, params={"state": "dead"})
    assert ([row["id"] for row in given_up["deliveries"]], given_up["total"]) == ([dead], 1)
    assert [row["id"] for row in (await lonely.get(path, params={"state": "delivered"}))["deliveries"]] == [arrived]
    shown = await lonely.get(f"/v1/webhooks/{made['id']}")
    assert (shown["waiting"], shown["dead"], shown["delivered_at"] is not None) == (1, 1, True)
    assert pages[2]["data"] == {"webhook": made["id"]}


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"cursor": "!"}, "malformed_cursor"),
        ({"cursor": "WzB8"}, "malformed_cursor"),
        ({"limit": 101}, "invalid_request"),
        ({"limit": 0}, "invalid_request"),
        ({"state": "waiting"}, "invalid_request"),
    ],
)
async def test_a_wrong_parameter_of_the_list_is_refused(api: Api, params: dict[str, Any], code: str) -> None:
    made = await created(api)
    answer = await api.client.get(f"/v1/webhooks/{made['id']}/deliveries", params=params)
    assert answer.json()["code"] == code


async def test_a_dead_letter_is_sent_again_and_one_that_is_unknown_is_not_found(lonely: Api) -> None:
    made = await created(lonely)
    path = f"/v1/webhooks/{made['id']}"
    posted = (await lonely.client.post(f"{path}/test")).json()
    settle_all(lonely, made["id"], arrived=False)
    again = await lonely.client.post(f"{path}/deliveries/{posted['delivery']}/redeliver")
    assert (again.status_code, again.json()) == (202, posted)
    assert settle_all(lonely, made["id"], arrived=True) == [posted["delivery"]]
    for unknown in ("0000000009-x", "..%2f..", "x" * 200):
        answer = await lonely.client.post(f"{path}/deliveries/{unknown}/redeliver")
        assert answer.status_code == 404


async def test_a_webhook_that_is_not_active_is_not_tested(api: Api) -> None:
    made = await created(api)
    path = f"/v1/webhooks/{made['id']}"
    await api.client.patch(path, json={"active": False})
    answer = await api.client.post(f"{path}/test")
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")


# -- the whole way ---------------------------------------------------------------------------------


async def test_a_job_reaches_a_receiver_in_a_network_that_the_operator_allows(settings: Settings) -> None:
    allowing = settings.model_copy(update={"webhook_networks": "127.0.0.0/8"})
    async with receiving() as receiver, running(allowing) as api:
        made = await created(api, f"http://127.0.0.1:{receiver.port}/hook")
        api.node()
        job = await api.submit(name="trial")
        requests = await receiver.wait_for(2)  # the scheduler of this process has started it
        events = [
            verify(made["secret"], request.headers["shardyard-signature"], request.body) for request in requests[:2]
        ]
    assert [(event.kind, event.data["id"], event.data["name"]) for event in events] == [
        ("job.queued", job, "trial"),
        ("job.starting", job, "trial"),
    ]


async def test_a_receiver_on_loopback_gets_nothing_without_that(settings: Settings) -> None:
    async with receiving() as receiver, running(settings) as api:
        made = await created(api)
        # As if the name had resolved to a public address when it was made; the check at the delivery counts.
        path = f"/v1/webhooks/{made['id']}"
        refused = await api.client.patch(path, json={"url": f"https://127.0.0.1:{receiver.port}/"})
        assert refused.status_code == 422
        assert receiver.connections == 0


async def test_a_new_key_encrypts_webhooks_anew(api: Api, key_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = await created(api)
    older = api.control.run(webhooks.read_webhook("default", made["id"]))
    secret_keys.add_key(key_file)
    with caplog.at_level(logging.INFO):
        secret_rotation.rotate_secrets(api.control, key_file)
    newer = api.control.run(webhooks.read_webhook("default", made["id"]))
    assert newer.sealed != older.sealed
    assert newer.sealed.startswith(secret_keys.read_keys(key_file).newest_head)
    assert unseal_secrets(key_file, newer).secret == made["secret"]
    secret_rotation.rotate_secrets(api.control, key_file)
    assert api.control.run(webhooks.read_webhook("default", made["id"])).sealed == newer.sealed
