"""The primary of the control Redis dies for good while calls are made: Sentinels choose another, and what was answered
is there."""

import asyncio
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from kombu.entity import Queue

from api.background.celery_client import CeleryHintSender
from api.background.history_watch import FILE, HistoryWatch
from api.data.redis_pool import connect as connect_async
from jobs import store
from jobs.model.settings import Settings
from jobs.protocol.names import node_queue
from jobs.scheduling.celery_config import celery_config
from jobs.store import AttemptId, Hint
from jobs.store.acl import RedisRole
from jobs.store.client import AsyncRedisStore, RedisStore, connect
from jobs.store.connections.sentinels import replicas_of
from shardyard.contract.errors import Unavailable
from shardyard.service.backup.source import connect_control
from tests.support.samples.job_records import a_spec, node_info
from tests.support.servers.sentinel_group import PATIENCE_SECONDS, SentinelGroup

pytestmark = pytest.mark.integration

TENANT = "t"


@contextmanager
def store_of(group: SentinelGroup, role: RedisRole = RedisRole.API, **options: object) -> Iterator[RedisStore]:
    control = RedisStore.from_url(group.url_of(role, **options))
    try:
        yield control
    finally:
        control.close()


def add_node(control: RedisStore) -> None:
    control.run(store.register_node("n1", "i", "default", "127.0.0.1", node_info(4), home="state-dir"))


def submit(job: str) -> store.Call[Any]:
    return store.submit(TENANT, job, a_spec(), idempotency_key=job)


def listed(control: RedisStore) -> set[str]:
    return {record.id for record in control.run(store.list_jobs(TENANT, store.JobFilter(), limit=1_000_000)).jobs}


def test_what_was_answered_is_there_when_another_server_has_taken_over(group: SentinelGroup) -> None:
    """From threads, with the users of roles: submits go on until each was answered, as clients with a key do."""
    answered: list[str] = []
    refused = threading.Event()
    enough = threading.Event()

    def submit_on() -> None:
        with store_of(group) as control:
            while not enough.is_set():
                job = str(uuid.uuid4())
                deadline = time.monotonic() + PATIENCE_SECONDS
                while True:
                    try:
                        control.run(submit(job))
                        break
                    except Unavailable:
                        refused.set()
                        assert time.monotonic() < deadline, group.explain()
                answered.append(job)

    with store_of(group) as control:
        add_node(control)
        submitting = threading.Thread(target=submit_on)
        submitting.start()
        try:
            wait_for(lambda: len(answered) > 20)
            killed = group.kill_primary()
            group.await_other_primary(killed)
            before = len(answered)
            wait_for(lambda: len(answered) > before + 20)
        finally:
            enough.set()
            submitting.join(2 * PATIENCE_SECONDS)
        assert refused.is_set()  # some were on their way when it died
        assert listed(control) == set(answered)


def test_a_change_that_no_replica_has_is_not_answered_and_is_made_again_where_it_was_lost(group: SentinelGroup) -> None:
    first, second = str(uuid.uuid4()), str(uuid.uuid4())
    with store_of(group) as control:
        add_node(control)
        control.run(submit(first))
        group.sever_replicas()
        with pytest.raises(Unavailable, match="0 of 1 replicas"):
            control.run(submit(second))
        assert listed(control) == {first, second}  # on this server alone; reading needs no replica
        group.await_other_primary(group.kill_primary())
        wait_for(lambda: answers(control))
        assert listed(control) == {first}
        group.heal()
        assert control.run(submit(second)).created  # it was lost, so the same key makes it anew
        assert listed(control) == {first, second}


@pytest.mark.slow
def test_a_server_that_lost_its_replicas_refuses_what_it_could_lose(group: SentinelGroup) -> None:
    with store_of(group, replicas=0) as control, group.servers[group.primary()].client() as server:
        add_node(control)
        server.config_set("min-replicas-to-write", 1)
        try:
            group.sever_replicas()
            wait_for(lambda: server.info("replication")["min_slaves_good_slaves"] == 0)
            with pytest.raises(Unavailable, match="refuses requests for now"):
                control.run(submit(str(uuid.uuid4())))
            assert listed(control) == set()
        finally:
            server.config_set("min-replicas-to-write", 0)


@pytest.mark.slow
def test_what_was_lost_all_the_same_is_noticed_also_after_a_restart(group: SentinelGroup, tmp_path: Path) -> None:
    losses: list[str] = []
    with store_of(group, replicas=0) as control:
        watch = HistoryWatch(control, tmp_path, lambda: losses.append("running"))
        add_node(control)
        control.run(submit(str(uuid.uuid4())))
        watch.compare()
        group.sever_replicas()
        control.run(submit(str(uuid.uuid4())))  # answered, since no replica is asked
        watch.compare()
        known = (tmp_path / FILE).read_text()
        group.await_other_primary(group.kill_primary())
        wait_for(lambda: answers(control))
        HistoryWatch(control, tmp_path, lambda: losses.append("restarted")).compare()
        watch.compare()
        assert losses == ["restarted", "running"]
        assert (tmp_path / FILE).read_text() < known
        watch.compare()
        HistoryWatch(control, tmp_path, lambda: losses.append("again")).compare()
        assert len(losses) == 2  # each says it once


@pytest.mark.anyio
async def test_one_connection_of_many_tasks_goes_over_to_the_other_server(group: SentinelGroup) -> None:
    url = group.url_of(RedisRole.API)
    control = AsyncRedisStore(connect_async(url), replicas_of(url))
    jobs = [str(uuid.uuid4()) for _ in range(100)]

    async def submit_until_answered(job: str) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                try:
                    await control.run(submit(job))
                    return
                except Unavailable:
                    await asyncio.sleep(0.05)

    with store_of(group) as other:
        add_node(other)
    await asyncio.gather(*map(submit_until_answered, jobs[:50]))
    group.kill_primary()
    await asyncio.gather(*map(submit_until_answered, jobs[50:]))
    found = await control.run(store.list_jobs(TENANT, store.JobFilter(), limit=1_000_000))
    assert {record.id for record in found.jobs} == set(jobs)
    async with asyncio.timeout(PATIENCE_SECONDS):  # what blocks has connections of its own, to the same server
        assert await control.client.xread({"sy:changes": "0-0"}, 1, 1000)
    await control.close()


@pytest.mark.anyio
async def test_of_a_batch_without_confirmation_the_changes_fail_and_the_reading_does_not(group: SentinelGroup) -> None:
    url = group.url_of(RedisRole.API)
    control = AsyncRedisStore(connect_async(url), replicas_of(url))
    with store_of(group) as other:
        add_node(other)
    await control.run(submit(str(uuid.uuid4())))
    group.sever_replicas()
    job = str(uuid.uuid4())
    made, read = await asyncio.gather(
        control.run(submit(job)), control.run(store.count_jobs(TENANT)), return_exceptions=True
    )
    assert isinstance(made, Unavailable)
    assert "0 of 1 replicas" in str(made)
    assert isinstance(read, dict)
    await control.close()


@pytest.mark.slow
def test_hints_travel_through_celery_before_and_after(group: SentinelGroup) -> None:
    sender = CeleryHintSender(Settings.model_validate({"redis_url": group.url_of(RedisRole.API)}))
    app = Celery("reader", set_as_current=False)
    app.conf.update(celery_config(Settings.model_validate({"redis_url": group.url_of(RedisRole.WORKER)})))
    sender.send(Hint("n1", AttemptId(TENANT, "j", 1)))
    assert receive(app) == {"tenant": TENANT, "job": "j", "attempt": 1}
    group.await_other_primary(group.kill_primary())
    wait_for(lambda: sent(sender, Hint("n1", AttemptId(TENANT, "j", 2))))
    assert receive(app) == {"tenant": TENANT, "job": "j", "attempt": 2}
    sender.close()
    app.close()


@pytest.mark.slow
def test_a_client_asks_the_sentinels_that_are_left(group: SentinelGroup) -> None:
    lost = group.sentinels[0]
    lost.kill()
    try:
        with connect(group.url_of(RedisRole.WORKER)) as client:
            assert client.ping()
        with connect_control(group.url) as of_a_backup:
            assert of_a_backup.run(store.count_jobs(TENANT))
    finally:
        lost.start()


def test_without_its_password_a_role_is_refused(group: SentinelGroup) -> None:
    wrong = group.url_of(RedisRole.API).replace(group.role_passwords[RedisRole.API], "wrong")
    with connect(wrong) as client, pytest.raises(redis.AuthenticationError):
        client.ping()


def receive(app: Celery) -> object:
    """The arguments of the next hint for the node."""
    received: list[object] = []
    queues = [Queue(node_queue("n1"))]  # type: ignore[no-untyped-call]

    def take(body: Any, message: Any) -> None:
        received.append(body[1])
        message.ack()

    with app.connection_for_read() as connection:
        with app.amqp.TaskConsumer(connection.default_channel, queues=queues, accept=["json"]) as consumer:
            consumer.register_callback(take)
            connection.drain_events(timeout=PATIENCE_SECONDS)
        connection.default_channel.qos.restore_visible()
    (found,) = received
    return found


def sent(sender: CeleryHintSender, hint: Hint) -> bool:
    try:
        sender.send(hint)
    except Exception:  # noqa: BLE001  (of the broker; whatever it raises, the scheduler sends the hint again)
        return False
    return True


def answers(control: RedisStore) -> bool:
    try:
        control.run(store.count_jobs(TENANT))
    except Unavailable:
        return False
    return True


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
