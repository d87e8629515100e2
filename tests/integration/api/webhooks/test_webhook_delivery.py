"""Webhooks from a change in the control Redis to a receiver: order, retries, dead letters, kills of senders."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import redis.asyncio
from structlog.testing import capture_logs

from api.webhooks.addresses import AddressRules
from api.webhooks.channels import ChannelOpener
from api.webhooks.mails import MailSettings, MailTransport
from api.webhooks.outgoing import WebhookTransport
from api.webhooks.sealing import WebhookSecrets, seal_secrets
from api.webhooks.sender import SendingPolicy, WebhookSender
from jobs import store
from jobs.model.settings import Settings, parse_networks
from jobs.store.accounts import webhooks
from jobs.store.accounts.webhooks import WebhookRecord
from jobs.store.client import AsyncRedisStore
from jobs.support import secret_keys
from shardyard.webhooks import verify
from tests.integration.store.world import World
from tests.support.servers.webhook_receiver import ReceivedRequest, Receiver, receiving, status

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

SECRET = "whsec_of_these_tests"
#: As the service's, but for the waits.
QUICK = SendingPolicy(
    first_retry_seconds=0.01,
    longest_retry_seconds=0.05,
    longest_pause_seconds=0.02,
    lead_seconds=5.0,
    hold_seconds=30.0,
)


async def resolve(host: str, port: int) -> Sequence[str]:
    return ["127.0.0.1"]


@dataclass(frozen=True)
class Bench:
    """A store with one node, and what senders need."""

    world: World
    url: str
    key_file: Path
    mail: MailSettings | None = None
    mail_tls: ssl.SSLContext | None = None

    def add(self, receiver: Receiver, webhook: str = "wh_1", *kinds: str, tenant: str = "default") -> None:
        address = f"http://hooks.test:{receiver.port}/{webhook}"
        sealed = seal_secrets(self.key_file, tenant, webhook, WebhookSecrets(address, SECRET))
        record = WebhookRecord(
            tenant=tenant, id=webhook, name="", url=address, format="json", kinds=kinds or ("job.*",), sealed=sealed
        )
        self.world.run(webhooks.put_webhook(record))

    def channels(self, control: AsyncRedisStore, transport: WebhookTransport) -> ChannelOpener:
        return ChannelOpener(control, self.key_file, transport, MailTransport(self.mail, tls=self.mail_tls))

    @asynccontextmanager
    async def sending(self, policy: SendingPolicy = QUICK) -> AsyncIterator["asyncio.Task[None]"]:
        """A sender, in a task that a test may cancel."""
        control = AsyncRedisStore(redis.asyncio.Redis.from_url(self.url))
        transport = WebhookTransport(AddressRules(parse_networks("127.0.0.0/8")), resolve)
        task = asyncio.create_task(WebhookSender(control, self.channels(control, transport), policy).run())
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.wait([task])
            await control.close()

    async def wait_until(self, *, waiting: int = 0, dead: int = 0, webhook: str = "wh_1") -> WebhookRecord:
        """Until so many deliveries wait, and so many are dead."""
        async with asyncio.timeout(60):
            while True:
                record = self.world.run(webhooks.read_webhook("default", webhook))
                if (record.waiting, record.dead) == (waiting, dead):
                    return record
                await asyncio.sleep(0.01)

    async def wait_for_problem(self, webhook: str = "wh_1") -> WebhookRecord:
        """Until a delivery has failed."""
        async with asyncio.timeout(60):
            while not (record := self.world.run(webhooks.read_webhook("default", webhook))).problem:
                await asyncio.sleep(0.01)
        return record

    def cancelled_jobs(self, count: int) -> list[str]:
        """Jobs with two events each."""
        jobs = [self.world.submit() for _ in range(count)]
        for job in jobs:
            self.world.run(store.cancel("default", job))
        return jobs


@pytest.fixture
def bench(settings: Settings, tmp_path: Path) -> Bench:
    world = World(settings.control_url())
    world.node()
    key_file = tmp_path / "keys"
    secret_keys.create_key_file(key_file)
    return Bench(world, settings.control_url(), key_file)


def seen(receiver: Receiver) -> dict[str, list[str]]:
    """The states that a receiver heard of each job, in order, without doubles."""
    found: dict[str, list[str]] = {}
    ids = set()
    for event in receiver.events:
        if event.id not in ids:
            ids.add(event.id)
            found.setdefault(event.data["id"], []).append(event.data["state"])
    return found


async def test_each_event_arrives_once_signed_and_in_the_order_of_its_job(bench: Bench) -> None:
    async with receiving() as receiver, bench.sending():
        bench.add(receiver)
        jobs = bench.cancelled_jobs(20)
        requests = await receiver.wait_for(40)
        await bench.wait_until()
    assert len(requests) == 40
    assert seen(receiver) == {job: ["queued", "cancelled"] for job in jobs}
    for request in requests:
        event = verify(SECRET, request.headers["shardyard-signature"], request.body)
        assert (event.id, event.kind, event.webhook) == (
            request.headers["shardyard-delivery"],
            request.headers["shardyard-event"],
            "wh_1",
        )


async def test_a_receiver_that_fails_for_a_while_gets_everything_in_order(bench: Bench) -> None:
    async with receiving() as receiver, bench.sending():
        receiver.answer = status(503)
        bench.add(receiver)
        jobs = bench.cancelled_jobs(5)
        await receiver.wait_for(10)
        receiver.answer = status(204)
        await bench.wait_until()
    assert seen(receiver) == {job: ["queued", "cancelled"] for job in jobs}


async def test_a_receiver_that_is_away_gets_everything_when_it_is_back(bench: Bench) -> None:
    async with receiving() as receiver:
        bench.add(receiver)
    jobs = bench.cancelled_jobs(3)
    async with bench.sending():
        async with asyncio.timeout(60):
            while not bench.world.run(webhooks.read_webhook("default", "wh_1")).problem:
                await asyncio.sleep(0.01)
        async with receiving(port=receiver.port) as again:
            record = await bench.wait_until()
    assert seen(again) == {job: ["queued", "cancelled"] for job in jobs}
    assert (record.problem, record.failing_since) == ("", None)


async def test_a_sender_that_is_killed_before_it_settles_sends_again_with_the_same_ids(bench: Bench) -> None:
    """The receiver holds its answer, as a sender's process dies: nobody knows whether it has arrived."""
    released, policy = asyncio.Event(), replace(QUICK, hold_seconds=0.5, lead_seconds=0.3)

    async def wait_for_the_test(_: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        await released.wait()

    async with receiving() as receiver:
        receiver.answer = wait_for_the_test
        bench.add(receiver)
        (job,) = bench.cancelled_jobs(1)
        async with bench.sending(policy) as first:
            await receiver.wait_for(1)
            first.cancel()  # as a kill: it settles nothing
        receiver.answer = status(204)
        async with bench.sending(policy):
            await bench.wait_until()
    ids = [event.id for event in receiver.events]
    assert len(ids) == 3
    assert ids[0] == ids[1] != ids[2]
    assert seen(receiver) == {job: ["queued", "cancelled"]}


async def test_nothing_is_lost_when_senders_are_killed_again_and_again(bench: Bench) -> None:
    policy = replace(QUICK, hold_seconds=0.3, lead_seconds=0.2)
    async with receiving() as receiver:
        bench.add(receiver)
        jobs = bench.cancelled_jobs(30)
        for count in range(1, 30, 5):
            async with bench.sending(policy) as sender:
                await receiver.wait_for(count)
                sender.cancel()
        async with bench.sending(policy):
            await bench.wait_until()
    assert seen(receiver) == {job: ["queued", "cancelled"] for job in jobs}


async def test_two_senders_at_a_time_send_each_event_once(bench: Bench) -> None:
    async with receiving() as receiver, bench.sending(), bench.sending():
        bench.add(receiver)
        jobs = bench.cancelled_jobs(20)
        await bench.wait_until()
    assert len(receiver.requests) == 40
    assert seen(receiver) == {job: ["queued", "cancelled"] for job in jobs}


async def test_what_cannot_be_delivered_is_a_dead_letter_that_can_be_sent_again(bench: Bench) -> None:
    policy = replace(QUICK, most_tries=3)
    async with receiving() as receiver, bench.sending(policy):
        receiver.answer = status(500)
        bench.add(receiver)
        (job,) = bench.cancelled_jobs(1)
        await bench.wait_until(dead=2)
        assert len(receiver.requests) == 6
        dead = bench.world.run(webhooks.list_deliveries("default", "wh_1", "dead")).deliveries
        assert [(row.event.data["state"], row.state.status, row.state.problem) for row in dead] == [
            ("cancelled", 500, "it answered 500"),
            ("queued", 500, "it answered 500"),
        ]
        receiver.answer = status(204)
        receiver.requests.clear()
        for row in dead[::-1]:
            bench.world.run(webhooks.redeliver("default", "wh_1", row.id))
        await bench.wait_until()
    assert seen(receiver) == {job: ["queued", "cancelled"]}
    assert {event.id for event in receiver.events} == {row.id for row in dead}


async def test_one_job_that_is_refused_does_not_hold_up_the_others(bench: Bench) -> None:
    async with receiving() as receiver, bench.sending():
        refused = bench.world.submit(name="refused")

        async def refuse_one(request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
            await status(400 if request.event.data["name"] == "refused" else 204)(request, writer)

        receiver.answer = refuse_one
        bench.add(receiver)
        bench.world.run(store.cancel("default", refused))
        jobs = bench.cancelled_jobs(5)
        await bench.wait_until(waiting=1)
        states = seen(receiver)
        assert {job: states[job] for job in jobs} == {job: ["queued", "cancelled"] for job in jobs}


async def test_a_slow_receiver_does_not_hold_up_another_tenants(bench: Bench) -> None:
    async def never(_: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with receiving() as slow, receiving() as quick, bench.sending():
        slow.answer = never
        bench.add(slow, "wh_slow", tenant="rival")
        bench.add(quick)
        bench.world.run(webhooks.post_test("rival", "wh_slow"))
        await slow.wait_for(1)
        bench.cancelled_jobs(2)
        await quick.wait_for(4)


async def test_a_secret_that_cannot_be_decrypted_is_a_failure_that_says_so(bench: Bench) -> None:
    async with receiving() as receiver:
        bench.add(receiver)
        bench.key_file.unlink()
        secret_keys.create_key_file(bench.key_file)
        bench.world.submit()
        async with bench.sending(replace(QUICK, most_tries=1)):
            record = await bench.wait_until(dead=1)
    assert "cannot decrypt" in record.problem
    assert receiver.connections == 0


async def test_neither_address_nor_secret_is_in_the_log_of_the_service(bench: Bench) -> None:
    with capture_logs() as logged:
        async with receiving() as receiver, bench.sending(replace(QUICK, most_tries=2)):
            receiver.answer = status(500, body=SECRET.encode())
            bench.add(receiver)
            bench.world.submit()
            await bench.wait_until(dead=1)
            port = receiver.port
    assert [entry["event"] for entry in logged] == ["webhook_failed", "webhook_given_up"]
    assert SECRET not in str(logged)
    assert f"hooks.test:{port}" not in str(logged)


async def test_neither_address_nor_secret_is_in_redis_or_in_a_back_up_in_clear_text(bench: Bench) -> None:
    async with receiving() as receiver:
        bench.add(receiver)
    bench.world.submit()
    dumped = b"".join(value for entry in bench.world.run(store.dump_keys()) for value in entry.values)
    assert b"wh_1" in dumped
    assert SECRET.encode() not in dumped
    keys = bench.world.redis.keys("*")
    assert SECRET.encode() not in b"".join(bench.world.redis.dump(key) or b"" for key in keys)


async def test_while_redis_is_away_a_sender_waits(bench: Bench) -> None:
    with capture_logs() as logged:
        async with bench.sending() as sender:
            pass
        control = AsyncRedisStore(redis.asyncio.Redis.from_url("redis://127.0.0.1:1"))
        transport = WebhookTransport(AddressRules(), resolve)
        lonely = asyncio.create_task(WebhookSender(control, bench.channels(control, transport), QUICK).run())
        async with asyncio.timeout(30):
            while not any(entry["event"] == "webhooks_wait" for entry in logged):
                await asyncio.sleep(0.01)
        assert not lonely.done()
        lonely.cancel()
        await asyncio.wait([lonely])
        await control.close()
    assert sender.cancelled()


def test_waits_grow_and_have_a_bound_and_jitter() -> None:
    policy = SendingPolicy()
    for tries, most in ((1, 5), (2, 10), (5, 80), (24, 3600), (10_000, 3600)):
        waits = {policy.retry_seconds(tries) for _ in range(50)}
        assert most / 2 <= min(waits) < max(waits) <= most


async def test_a_process_that_leaves_gives_its_lead_back(bench: Bench) -> None:
    async with bench.sending():
        async with asyncio.timeout(30):
            while not bench.world.redis.exists("sy:leader:webhooks"):
                await asyncio.sleep(0.01)
    async with asyncio.timeout(1):
        while bench.world.redis.exists("sy:leader:webhooks"):
            await asyncio.sleep(0.001)
