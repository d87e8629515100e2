"""Webhooks in the control Redis: which events are written with which change, and in which order they are given out."""

from typing import Any

import pytest

from jobs import store
from jobs.model.state import StateReason
from jobs.store.accounts import webhooks
from jobs.store.accounts.webhooks import (
    MAX_WEBHOOKS,
    DeliveryOutcome,
    PostedFinding,
    TakenBatch,
    TakenWork,
    WebhookRecord,
)
from shardyard.contract.errors import Conflict, NotFound, WebhookQuota
from tests.integration.store.world import TENANT, World

pytestmark = pytest.mark.integration

OUTBOX = f"sy:webhook_outbox:{TENANT}"
MAX_OUTBOX_BYTES = 8 * 1024 * 1024


def a_webhook(webhook: str = "wh_1", *kinds: str, tenant: str = TENANT, **fields: Any) -> WebhookRecord:
    known: dict[str, Any] = {"name": "", "url": "https://example.com/", "format": "json", "sealed": b"\0sealed\xff"}
    return WebhookRecord(tenant=tenant, id=webhook, kinds=kinds or ("*",), **known | fields)


def add(world: World, *args: str, **fields: Any) -> WebhookRecord:
    webhook = a_webhook(*args, **fields)
    world.run(webhooks.put_webhook(webhook))
    return webhook


def take(world: World, *, who: str = "sender", hold: float = 60.0, most: int = 10, lanes: int = 8) -> TakenWork:
    call = webhooks.take_deliveries(who, lead_seconds=30, hold_seconds=hold, webhooks=most, lanes=lanes)
    return world.run(call)


def settle(world: World, batch: TakenBatch, *, arrived: bool = True, most_tries: int = 5, **kwargs: Any) -> Any:
    outcomes = [
        DeliveryOutcome(each.id, arrived, 200 if arrived else 500, "" if arrived else "it said 500")
        for each in batch.deliveries
    ]
    more: dict[str, Any] = {"pause_seconds": 0.0, "most_seconds": 3600.0} | kwargs
    call = webhooks.settle_deliveries(batch.webhook.tenant, batch.webhook.id, outcomes, most_tries=most_tries, **more)
    return world.run(call)


def deliver_all(world: World) -> list[tuple[str, str]]:
    """Kind and subject of all that can be sent, in the order in which it is given out."""
    found = []
    while batches := take(world).batches:
        for batch in batches:
            found += [(each.event.kind, each.event.subject) for each in batch.deliveries]
            settle(world, batch)
    return found


def listed(world: World, part: Any = "all", webhook: str = "wh_1") -> list[tuple[str, str, int]]:
    rows = world.run(webhooks.list_deliveries(TENANT, webhook, part)).deliveries
    return [(row.event.kind, row.state.state, row.state.tries) for row in rows]


def run_to_its_end(world: World, job: str) -> None:
    world.dispatch()
    attempt = world.claim(job)
    world.mark(attempt)
    world.finish(attempt)


# -- what is written -------------------------------------------------------------------------------


def test_each_change_of_a_job_is_an_event_and_they_come_in_order(world: World) -> None:
    world.node()
    add(world, "wh_1", "job.*")
    job = world.submit(name="trial", labels={"team": "vision"})
    run_to_its_end(world, job)
    rows = world.run(webhooks.list_deliveries(TENANT, "wh_1", "all")).deliveries
    first = rows[-1].event
    assert (first.kind, first.subject, first.missed) == ("job.queued", f"job:{job}", 0)
    assert first.data == {
        "id": job,
        "name": "trial",
        "state": "queued",
        "previous": "",
        "reason": "waiting_for_devices",
        "message": "",
        "pool": "default",
        "labels": {"team": "vision"},
        "attempt": 0,
        "version": 1,
    }
    assert deliver_all(world) == [
        (f"job.{state}", f"job:{job}") for state in ("queued", "starting", "running", "succeeded")
    ]
    assert listed(world, "done") == [
        (f"job.{state}", "done", 1) for state in ("succeeded", "running", "starting", "queued")
    ]


def test_a_tenant_without_webhooks_leaves_nothing_behind(world: World) -> None:
    world.node()
    run_to_its_end(world, world.submit())
    assert not world.redis.keys("sy:webhook*")
    assert not world.redis.keys("sy:delivery:*")


def test_only_the_kinds_that_a_webhook_wants_are_kept_for_it(world: World) -> None:
    world.node()
    add(world, "wh_1", "job.failed", "job.succeeded")
    add(world, "wh_2", "node.*")
    add(world, "wh_3", "*", tenant="rival")
    job = world.submit()
    run_to_its_end(world, job)
    assert deliver_all(world) == [("job.succeeded", f"job:{job}")]


def test_a_reason_that_changes_within_a_state_is_no_event(world: World) -> None:
    world.node()
    add(world, "wh_1", "job.*")
    job = world.submit()
    world.dispatch()
    world.mark(world.claim(job))
    deliver_all(world)
    world.run(store.cancel(TENANT, job))
    assert deliver_all(world) == []


def test_a_message_of_any_length_and_text_is_cut_in_an_event(world: World) -> None:
    world.node()
    add(world, "wh_1", "job.failed")
    job = world.submit()
    world.dispatch()
    attempt = world.claim(job)
    text = '"\\\n\u2028' + "\u20ac" * 5000
    world.run(store.finish(attempt, "c", StateReason.RANK_FAILED, text))
    (row,) = world.run(webhooks.list_deliveries(TENANT, "wh_1", "all")).deliveries
    message = row.event.data["message"]
    assert message.startswith('"\\\n\u2028\u20ac')
    assert 1000 < len(message.encode()) <= 1024


def test_nodes_that_come_and_go_and_their_devices_are_events_for_everybody(world: World) -> None:
    add(world, "wh_1", "node.*", "device.*")
    add(world, "wh_2", "node.down", tenant="rival")
    node = world.node()
    world.node()  # registers again, and was alive
    world.run(store.quarantine_device(node, 1, "flaky"))
    world.run(store.unquarantine(node, 1))
    world.run(store.take_down_node(node, None))
    world.run(store.take_down_node(node, None))
    world.run(store.renew_node(node, "i1"))
    assert listed(world)[::-1] == [
        ("node.up", "waiting", 0),
        ("device.quarantined", "waiting", 0),
        ("device.released", "waiting", 0),
        ("node.down", "waiting", 0),
        ("node.up", "waiting", 0),
    ]
    quarantined = world.run(webhooks.list_deliveries(TENANT, "wh_1", "all")).deliveries[3].event
    assert quarantined.data == {"node": node, "pool": "default", "device": 1, "reason": "flaky"}
    (theirs,) = world.run(webhooks.list_deliveries("rival", "wh_2", "all")).deliveries
    assert (theirs.event.kind, theirs.event.data["reason"]) == ("node.down", "its worker has left")


def test_a_finding_of_a_running_attempt_is_an_event_once_for_its_code_and_device(world: World) -> None:
    world.node()
    attempt = world.running()
    idle, hot = PostedFinding("warning", "idle-devices", None, "2 of 4"), PostedFinding("warning", "hot", 1, '"hot"')
    assert world.run(webhooks.post_finding(attempt, "c", idle))  # nobody wants it
    add(world, "wh_1", "finding.*")
    for finding in (idle, hot, PostedFinding("warning", "hot", 2, "x" * 5000), idle, hot):
        assert world.run(webhooks.post_finding(attempt, "c", finding))
    rows = world.run(webhooks.list_deliveries(TENANT, "wh_1", "all")).deliveries[::-1]
    assert [(row.event.data["code"], row.event.data["device"]) for row in rows] == [
        ("idle-devices", None),
        ("hot", 1),
        ("hot", 2),
    ]
    assert rows[1].event.kind == "finding.new"
    assert rows[1].event.subject == f"job:{attempt.job}"
    assert rows[1].event.data["message"] == '"hot"'
    assert len(rows[2].event.data["message"]) == 1024
    assert not world.run(webhooks.post_finding(attempt, "another", hot))
    assert world.finish(attempt)
    assert not world.run(webhooks.post_finding(attempt, "c", hot))


# -- who gets what, when ---------------------------------------------------------------------------


def test_the_next_event_of_a_job_waits_until_the_one_before_has_arrived(world: World) -> None:
    world.node()
    add(world)
    jobs = [world.submit(), world.submit()]
    for job in jobs:
        world.run(store.cancel(TENANT, job))
    (batch,) = take(world).batches
    assert [(each.event.kind, each.event.subject) for each in batch.deliveries] == [
        ("job.queued", f"job:{job}") for job in jobs
    ]
    settle(world, batch, arrived=False)
    (again,) = take(world).batches
    assert [each.id for each in again.deliveries] == [each.id for each in batch.deliveries]
    settle(world, again)
    assert deliver_all(world) == [("job.cancelled", f"job:{job}") for job in jobs]


def test_a_delivery_of_a_sender_that_was_killed_is_given_out_again_with_its_id(world: World) -> None:
    world.node()
    add(world)
    world.submit()
    (batch,) = take(world, hold=0.0).batches  # and it is never heard of again
    (again,) = take(world).batches
    assert [(each.id, each.tries) for each in again.deliveries] == [(batch.deliveries[0].id, 2)]
    assert take(world).batches == ()  # held for a minute
    settle(world, again)
    settle(world, batch, arrived=False)  # the one before was only frozen, and says so late
    assert listed(world) == [("job.queued", "done", 2)]


def test_one_process_sends_and_another_takes_over_once_its_lead_is_over(world: World) -> None:
    world.node()
    add(world)
    world.submit()
    assert take(world, who="one").is_leader
    other = take(world, who="other")
    assert (other.is_leader, other.batches) == (False, ())
    assert other.wait_seconds is not None
    assert 0 < other.wait_seconds <= 30
    world.redis.delete("sy:leader:webhooks")
    assert take(world, who="other").is_leader


def test_a_delivery_is_given_up_after_its_tries_and_the_next_one_is_sent(world: World) -> None:
    world.node()
    add(world)
    job = world.submit()
    world.run(store.cancel(TENANT, job))
    for expected in (False, False, True):
        (batch,) = take(world).batches
        given_up = settle(world, batch, arrived=False, most_tries=3)
        assert bool(given_up) is expected
    assert listed(world, "dead") == [("job.queued", "dead", 3)]
    assert deliver_all(world) == [("job.cancelled", f"job:{job}")]
    record = world.run(webhooks.read_webhook(TENANT, "wh_1"))
    assert (record.dead, record.waiting, record.problem, record.failing_since) == (1, 0, "", None)


def test_a_delivery_that_is_too_old_is_given_up(world: World) -> None:
    world.node()
    add(world)
    world.submit()
    (batch,) = take(world).batches
    assert settle(world, batch, arrived=False, most_seconds=0.0) == (batch.deliveries[0].id,)
    record = world.run(webhooks.read_webhook(TENANT, "wh_1"))
    assert (record.dead, record.problem) == (1, "it said 500")
    assert record.failing_since is not None


def test_a_dead_letter_is_sent_again_with_its_id_and_all_its_tries(world: World) -> None:
    world.node()
    add(world)
    world.submit()
    (batch,) = take(world).batches
    (dead,) = settle(world, batch, arrived=False, most_tries=1)
    world.run(webhooks.redeliver(TENANT, "wh_1", dead))
    world.run(webhooks.redeliver(TENANT, "wh_1", dead))  # it waits already
    (again,) = take(world).batches
    assert [(each.id, each.tries) for each in again.deliveries] == [(dead, 1)]
    settle(world, again)
    assert listed(world, "dead") == []
    for webhook, delivery in (("wh_1", "gone"), ("wh_2", dead)):
        with pytest.raises(NotFound):
            world.run(webhooks.redeliver(TENANT, webhook, delivery))


def test_a_webhook_that_fails_pauses_and_others_go_on(world: World) -> None:
    world.node()
    add(world, "wh_1")
    add(world, "wh_2")
    world.submit()
    for batch in take(world).batches:
        is_first = batch.webhook.id == "wh_1"
        settle(world, batch, arrived=not is_first, pause_seconds=3600.0 if is_first else 0.0)
    world.submit()
    assert [batch.webhook.id for batch in take(world).batches] == ["wh_2"]
    world.run(webhooks.change_webhook(a_webhook("wh_1"), b"\0sealed\xff"))  # its owner has mended it
    (batch,) = take(world).batches
    assert (batch.webhook.id, len(batch.deliveries)) == ("wh_1", 2)


def test_a_webhook_that_is_not_active_gets_no_new_events_and_keeps_the_old_ones(world: World) -> None:
    world.node()
    add(world)
    job = world.submit()
    world.run(webhooks.change_webhook(a_webhook(active=False), b"\0sealed\xff"))
    world.run(store.cancel(TENANT, job))
    world.run(store.take_down_node("n1", None))
    assert take(world).batches == ()
    with pytest.raises(Conflict, match="not active"):
        world.run(webhooks.post_test(TENANT, "wh_1"))
    world.run(webhooks.change_webhook(a_webhook(active=True), b"\0sealed\xff"))
    assert deliver_all(world) == [("job.queued", f"job:{job}")]


# -- bounds ----------------------------------------------------------------------------------------


def test_a_full_outbox_counts_what_is_missing_and_the_next_event_says_it(world: World) -> None:
    world.node()
    add(world)
    world.submit()
    used = int(world.redis.hget(OUTBOX, "bytes") or 0)
    world.redis.hset(OUTBOX, "bytes", MAX_OUTBOX_BYTES)
    world.submit()
    world.submit()
    with pytest.raises(WebhookQuota):
        world.run(webhooks.post_test(TENANT, "wh_1"))
    assert len(listed(world)) == 1
    world.redis.hset(OUTBOX, "bytes", used)
    job = world.submit()
    newest = world.run(webhooks.list_deliveries(TENANT, "wh_1", "all", limit=1)).deliveries[0]
    assert (newest.event.subject, newest.event.missed) == (f"job:{job}", 3)
    world.submit()
    assert world.run(webhooks.list_deliveries(TENANT, "wh_1", "all", limit=1)).deliveries[0].event.missed == 0
    assert world.run(webhooks.read_webhook(TENANT, "wh_1")).missed == 3


def test_what_has_arrived_and_then_dead_letters_make_room_for_new_events(world: World) -> None:
    world.node()
    add(world)
    for arrived in (True, False):
        world.submit()
        (batch,) = take(world).batches
        settle(world, batch, arrived=arrived, most_tries=1)
    world.redis.hset(OUTBOX, "bytes", MAX_OUTBOX_BYTES)
    world.submit()
    assert listed(world) == [("job.queued", "waiting", 0), ("job.queued", "dead", 1)]
    world.redis.hset(OUTBOX, "bytes", MAX_OUTBOX_BYTES)
    world.submit()
    assert listed(world) == [("job.queued", "waiting", 0)] * 2


def test_the_bytes_of_an_outbox_are_given_back(world: World) -> None:
    world.node()
    add(world)
    for _ in range(60):
        world.submit()
    assert int(world.redis.hget(OUTBOX, "bytes") or 0) > 60 * 512
    deliver_all(world)
    assert len(listed(world, "done")) == 50
    world.run(webhooks.delete_webhook(TENANT, "wh_1"))
    assert world.redis.hget(OUTBOX, "bytes") == b"0"
    assert world.redis.keys("sy:delivery:*") == []
    assert world.redis.keys("sy:webhook*") == [OUTBOX.encode()]
    assert world.run(webhooks.read_webhook_tenants()) == ()


def test_what_was_taken_of_a_webhook_that_is_deleted_meanwhile_is_forgotten(world: World) -> None:
    world.node()
    add(world)
    world.submit()
    (batch,) = take(world).batches
    world.run(webhooks.delete_webhook(TENANT, "wh_1"))
    assert settle(world, batch) == ()
    assert not world.redis.exists("sy:webhook_due")
    with pytest.raises(NotFound):
        world.run(webhooks.list_deliveries(TENANT, "wh_1", "all"))


def test_a_tenant_has_a_number_of_webhooks_at_most(world: World) -> None:
    for number in range(MAX_WEBHOOKS):
        add(world, f"wh_{number}")
    with pytest.raises(WebhookQuota, match=f"there may be {MAX_WEBHOOKS} webhooks"):
        add(world, "wh_more")
    add(world, "wh_theirs", tenant="rival")
    assert len(world.run(webhooks.list_webhooks(TENANT))) == MAX_WEBHOOKS


# -- restarts and versions -------------------------------------------------------------------------


def test_what_waits_survives_a_back_up_and_the_lead_does_not(world: World) -> None:
    world.node()
    add(world)
    world.submit()
    take(world)
    kept = {entry.key.decode() for entry in world.run(store.dump_keys())}
    assert {f"sy:delivery:{part}:{TENANT}/wh_1" for part in ("events", "states", "all", "queue", "due")} <= kept
    assert "sy:leader:webhooks" not in kept


def test_a_job_of_a_version_without_webhooks_has_events_from_its_next_change_on(world: World) -> None:
    world.node()
    job = world.submit()
    assert not world.redis.keys("sy:webhook*")
    add(world, "wh_1", "job.*")
    run_to_its_end(world, job)
    assert [kind for kind, _ in deliver_all(world)] == ["job.starting", "job.running", "job.succeeded"]


def test_a_secret_that_has_changed_meanwhile_is_not_encrypted_anew(world: World) -> None:
    webhook = add(world)
    assert world.run(webhooks.reseal_webhook(webhook, b"anew"))
    assert not world.run(webhooks.reseal_webhook(webhook, b"late"))
    assert world.run(webhooks.read_webhook(TENANT, "wh_1")).sealed == b"anew"
