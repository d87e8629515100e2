"""Servers and a Sentinel that speak TLS alone, with a password for the Sentinel. The server of the tests has no TLS, so
this takes the system's."""

import asyncio
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest

from api.background.celery_client import CeleryHintSender
from api.data.redis_pool import connect as connect_async
from jobs import store
from jobs.model.settings import Settings
from jobs.store import AttemptId, Hint
from jobs.store.acl import RedisRole, RedisServerKind, user_name
from jobs.store.client import AsyncRedisStore, RedisStore
from jobs.store.connections.sentinels import replicas_of
from shardyard.contract.errors import Unavailable
from shardyard.service.redis_users import user_lines
from tests.support.samples.certificates import make_certificate
from tests.support.servers.sentinel_group import NAME, PATIENCE_SECONDS, SENTINEL_PASSWORD, USERS, free_ports

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ASKED = "of-the-sentinel"


@dataclass
class EncryptedGroup:
    """`processes` are the primary, its replica, and their Sentinel."""

    processes: list[subprocess.Popen[bytes]]
    port: int
    authority: Path

    def url(self, role: RedisRole, password: str = ASKED, **options: str) -> str:
        query = "".join(f"&{name}={quote(value, safe='')}" for name, value in options.items())
        login = f"{user_name(role)}:of-{role}"
        return f"rediss+sentinel://{login}@127.0.0.1:{self.port}/{NAME}?sentinel_password={password}{query}"

    def trusted_url(self, role: RedisRole) -> str:
        return self.url(role, ssl_ca_certs=str(self.authority))


@pytest.fixture
def encrypted(tmp_path: Path) -> Iterator[EncryptedGroup]:
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("there is no redis-server, which has TLS")
    certificate, key = make_certificate(tmp_path / "certificate")
    tls = f"port 0\nbind 127.0.0.1\ntls-cert-file {certificate}\ntls-key-file {key}\ntls-ca-cert-file {certificate}\n"
    tls += "tls-auth-clients no\ntls-replication yes\n"
    users = [*user_lines({role: f"of-{role}" for role in RedisRole}, list(RedisServerKind)), *USERS]
    first, second, sentinel = free_ports(3)
    with ExitStack() as stack:
        processes = []

        def start(port: int, lines: str, *arguments: str) -> None:
            directory = tmp_path / f"{port}"
            directory.mkdir()
            (directory / "redis.conf").write_text(f"{tls}dir {directory}\ntls-port {port}\n{lines}")
            (directory / "users.acl").write_text("\n".join([*users, ""]))
            log = stack.enter_context((directory / "log").open("wb"))
            process = subprocess.Popen([program, str(directory / "redis.conf"), *arguments], stdout=log, stderr=log)
            stack.callback(process.wait, PATIENCE_SECONDS)
            stack.callback(process.kill)
            processes.append(process)

        for port in (first, second):
            follows = f"replicaof 127.0.0.1 {first}\n" if port == second else ""
            acl = f"aclfile {tmp_path}/{port}/users.acl\nmasteruser replica\nmasterauth for-replicas\n"
            start(port, f"{acl}appendonly yes\nappendfsync always\nrepl-diskless-sync-delay 0\n{follows}")
        start(
            sentinel,
            f"requirepass {ASKED}\nsentinel monitor {NAME} 127.0.0.1 {first} 1\nsentinel auth-user {NAME} sentinel\n"
            f"sentinel auth-pass {NAME} {SENTINEL_PASSWORD}\nsentinel down-after-milliseconds {NAME} 1000\n"
            f"sentinel failover-timeout {NAME} 10000\n",
            "--sentinel",
        )
        yield EncryptedGroup(processes, sentinel, certificate)


def lead(control: RedisStore) -> bool:
    """Whether a change was confirmed."""
    try:
        control.run(store.acquire_lead("a test", 60.0))
    except Unavailable:
        return False
    return True


def eventually(control: RedisStore) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not lead(control):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_calls_and_hints_pass_before_and_after_a_failover(encrypted: EncryptedGroup) -> None:
    control = RedisStore.from_url(encrypted.trusted_url(RedisRole.API))
    eventually(control)

    async def count() -> object:
        shared = AsyncRedisStore(
            connect_async(encrypted.trusted_url(RedisRole.API)), replicas_of(encrypted.trusted_url(RedisRole.API))
        )
        try:
            return await shared.run(store.count_jobs("t"))
        finally:
            await shared.close()

    assert asyncio.run(count()) is not None
    sender = CeleryHintSender(Settings.model_validate({"redis_url": encrypted.trusted_url(RedisRole.API)}))
    sender.send(Hint("n1", AttemptId("t", "j", 1)))
    sender.close()
    encrypted.processes[0].kill()
    control.close()
    alone = RedisStore.from_url(f"{encrypted.trusted_url(RedisRole.API)}&replicas=0")  # nobody is left to confirm
    eventually(alone)
    alone.close()


def test_who_trusts_nobody_or_has_no_password_for_the_sentinel_is_refused(encrypted: EncryptedGroup) -> None:
    known = RedisStore.from_url(encrypted.trusted_url(RedisRole.API))
    eventually(known)
    known.close()
    for url in (
        encrypted.url(RedisRole.API),
        encrypted.url(RedisRole.API, password="wrong", ssl_ca_certs=str(encrypted.authority)),
    ):
        control = RedisStore.from_url(url)
        with pytest.raises(Exception, match=r"does not answer|WRONGPASS|invalid username-password|Authentication"):
            control.run(store.count_jobs("t"))
        control.close()
