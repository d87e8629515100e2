"""A Redis behind TLS, with a certificate of its own authority, certificates of clients, and a user for each role."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import redis
from celery import Celery
from kombu.connection import Connection
from kombu.entity import Queue

from api.background.celery_client import CeleryHintSender
from api.data.redis_pool import connect as connect_async
from jobs import store
from jobs.model.settings import Settings
from jobs.protocol.names import node_queue
from jobs.scheduling.celery_config import celery_config
from jobs.store import AttemptId, Hint
from jobs.store.acl import RedisRole, RedisServerKind
from jobs.store.client import AsyncRedisStore, RedisStore, connect
from shardyard.contract.errors import Unavailable
from shardyard.service import redis_users
from tests.support.samples.certificates import make_certificate
from tests.support.servers.redis_server import redis_server
from tests.support.servers.tls_front import tls_front

pytestmark = pytest.mark.integration


@dataclass(frozen=True)
class SecuredRedis:
    port: int
    passwords: dict[RedisRole, str]
    server: Path
    client: tuple[Path, Path]

    def url(self, role: RedisRole, **changed: str) -> str:
        login = f"shardyard-{role}:{self.passwords[role]}"
        files = {
            "ssl_cert_reqs": "required",
            "ssl_ca_certs": str(self.server),
            "ssl_certfile": str(self.client[0]),
            "ssl_keyfile": str(self.client[1]),
        }
        chosen = {name: value for name, value in (files | changed).items() if value}
        return f"rediss://{login}@localhost:{self.port}/0?{urlencode(chosen)}"

    def settings(self, role: RedisRole) -> Settings:
        return Settings.model_validate({"redis_url": self.url(role)})


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredRedis]:
    directory = tmp_path_factory.mktemp("tls")
    server, client = make_certificate(directory / "server"), make_certificate(directory / "client")
    passwords = redis_users.make_passwords()
    (directory / "redis").mkdir()
    acl = directory / "redis" / "users.acl"
    users = redis_users.user_lines(passwords, list(RedisServerKind))
    acl.write_text("\n".join([*users, "user default on nopass ~* &* +@all\n"]))
    with (
        redis_server(directory / "redis", aclfile=str(acl)) as running,
        tls_front(running.url.removeprefix("unix://"), server, client[0]) as port,
    ):
        yield SecuredRedis(port, passwords, server[0], client)


def test_calls_pass_from_threads_and_from_asyncio(secured: SecuredRedis) -> None:
    control = RedisStore.from_url(secured.url(RedisRole.API))
    assert control.run(store.count_jobs("t")) is not None
    control.close()

    async def ask() -> object:
        shared = AsyncRedisStore(connect_async(secured.url(RedisRole.API)))
        try:
            return await shared.run(store.count_jobs("t"))
        finally:
            await shared.close()

    assert asyncio.run(ask()) is not None


@pytest.mark.parametrize(
    "changed",
    [{"ssl_certfile": "", "ssl_keyfile": ""}, {"ssl_ca_certs": ""}],
    ids=["without a certificate of its own", "without the server's authority"],
)
def test_who_cannot_prove_itself_or_the_server_is_refused(secured: SecuredRedis, changed: dict[str, str]) -> None:
    control = RedisStore.from_url(secured.url(RedisRole.API, **changed))
    with pytest.raises(Unavailable):
        control.run(store.count_jobs("t"))
    control.close()


def test_without_its_password_a_role_is_refused(secured: SecuredRedis) -> None:
    wrong = secured.url(RedisRole.API).replace(secured.passwords[RedisRole.API], "wrong")
    with connect(wrong) as client, pytest.raises(redis.AuthenticationError):
        client.ping()


def test_a_hint_reaches_a_worker_through_celery_with_the_roles_users(secured: SecuredRedis) -> None:
    sender = CeleryHintSender(secured.settings(RedisRole.API))
    sender.send(Hint("n1", AttemptId("t", "j", 1)))
    sender.close()
    app = Celery("reader", set_as_current=False)
    app.conf.update(celery_config(secured.settings(RedisRole.WORKER)))
    received: list[object] = []
    queues = [Queue(node_queue("n1"))]  # type: ignore[no-untyped-call]
    connection: Connection

    def receive(body: Any, message: Any) -> None:
        received.append(body[1])
        message.ack()

    with app.connection_for_read() as connection:
        with app.amqp.TaskConsumer(connection.default_channel, queues=queues, accept=["json"]) as consumer:
            consumer.register_callback(receive)
            connection.drain_events(timeout=30)  # type: ignore[no-untyped-call]
        connection.default_channel.qos.restore_visible()
    app.close()
    assert received == [{"tenant": "t", "job": "j", "attempt": 1}]
