"""The embedded Redis servers, as real processes."""

import os
import signal
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from jobs.store.acl import RedisRole
from shardyard.service import embedded_redis, service_logs
from shardyard.service.embedded_redis import EmbeddedRedis
from shardyard.service.processes import ProcessGroup, ServiceError

pytestmark = pytest.mark.integration


@pytest.fixture
def manager() -> Iterator[ProcessGroup]:
    manager = ProcessGroup(say=print)
    yield manager
    for name in embedded_redis.SETTINGS:
        manager.stop(name)


def prepared(tmp_path: Path, name: str = "control") -> EmbeddedRedis:
    return embedded_redis.prepare_redis(name, tmp_path, embedded_redis.find_server())


def running(tmp_path: Path, manager: ProcessGroup, name: str = "control") -> EmbeddedRedis:
    server = prepared(tmp_path, name)
    manager.start(server.service)
    embedded_redis.wait_until_it_answers(server, 60)
    return server


def test_every_acknowledged_write_to_control_survives_a_kill(tmp_path: Path, manager: ProcessGroup) -> None:
    server = running(tmp_path, manager)
    acknowledged: list[int] = []
    enough = threading.Event()

    def write_until_it_dies() -> None:
        with redis.Redis.from_url(server.url, retry=None) as client:
            try:
                for number in range(1_000_000):
                    client.set(f"k{number}", number)
                    acknowledged.append(number)
                    if number == 500:
                        enough.set()
            except redis.ConnectionError:
                return

    writer = threading.Thread(target=write_until_it_dies)
    writer.start()
    assert enough.wait(60)
    os.kill(manager.pid("control"), signal.SIGKILL)
    writer.join(60)
    assert not writer.is_alive()

    while "control" not in manager._running or not embedded_redis.redis_answers(server):
        manager.watch(0.05)
    with redis.Redis.from_url(server.url) as client:
        assert client.exists(*(f"k{number}" for number in acknowledged)) == len(acknowledged) > 500


def test_a_second_start_adopts_the_first_server(tmp_path: Path, manager: ProcessGroup) -> None:
    running(tmp_path, manager)
    second = ProcessGroup(say=print)
    assert second.start(prepared(tmp_path).service) == "adopted"
    assert second.pid("control") == manager.pid("control")


def test_the_two_servers_keep_their_promises_about_disk_and_memory(tmp_path: Path, manager: ProcessGroup) -> None:
    wanted = {
        "control": {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"},
        "telemetry": {
            "appendonly": "yes",
            "appendfsync": "everysec",
            "maxmemory": str(512 * 1024 * 1024),
            "maxmemory-policy": "noeviction",
        },
    }
    for name, settings in wanted.items():
        with redis.Redis.from_url(running(tmp_path, manager, name).url, decode_responses=True) as client:
            assert client.config_get(*settings) == settings
            assert int(client.config_get("maxmemory")["maxmemory"]) >= 512 * 1024 * 1024


def test_nobody_gets_in_without_the_password(tmp_path: Path, manager: ProcessGroup) -> None:
    server = running(tmp_path, manager)
    with (
        redis.Redis(unix_socket_path=str(server.socket), retry=Retry(NoBackoff(), 0)) as client,
        pytest.raises(redis.AuthenticationError),
    ):
        client.ping()


def test_passwords_configuration_and_socket_are_private(tmp_path: Path, manager: ProcessGroup) -> None:
    server = running(tmp_path, manager)
    for file in (server.directory / "password", server.directory / "redis.conf"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(server.directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(server.socket.stat().st_mode) == 0o700
    command = Path(f"/proc/{manager.pid('control')}/cmdline").read_text()
    assert server.password not in command


def test_a_password_lost_under_a_running_server_is_a_clear_error(tmp_path: Path, manager: ProcessGroup) -> None:
    server = running(tmp_path, manager)
    (server.directory / "password").unlink()
    with pytest.raises(ServiceError, match="refuses the password in"):
        embedded_redis.redis_answers(prepared(tmp_path))


@pytest.mark.parametrize("directory", ["a directory with spaces", 'quo"te', "percent%20and?mark", "d" * 120])
def test_any_data_directory_works(tmp_path: Path, manager: ProcessGroup, directory: str) -> None:
    server = running(tmp_path / directory, manager)
    with redis.Redis.from_url(server.url) as client:
        assert client.set("k", "v")
    assert len(os.fsencode(server.socket)) <= embedded_redis.MAX_SOCKET_PATH_BYTES


def test_its_log_is_rotated_while_it_runs(
    tmp_path: Path, manager: ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = running(tmp_path, manager)
    log = server.service.log_path
    monkeypatch.setattr(service_logs, "MAX_LOG_BYTES", log.stat().st_size - 1)
    manager.watch(0)
    assert log.with_name("control.log.1").stat().st_size > 0
    with redis.Redis.from_url(server.url) as client:
        assert client.bgrewriteaof()
    deadline = time.monotonic() + 60
    while not (log.exists() and b"rewriting" in log.read_bytes()):
        assert time.monotonic() < deadline
        manager.watch(0.05)


def test_each_role_has_a_user_before_and_after_a_restart_of_the_server(tmp_path: Path, manager: ProcessGroup) -> None:
    for name in embedded_redis.SETTINGS:
        server = running(tmp_path, manager, name)
        for role in RedisRole:
            with redis.Redis.from_url(server.url_of(role)) as client:
                assert client.ping()
                with pytest.raises(redis.exceptions.NoPermissionError):
                    client.config_get("requirepass")
            password = server.directory / f"password-{role}"
            assert stat.S_IMODE(password.stat().st_mode) == 0o600


def test_a_server_of_an_earlier_version_that_still_runs_gets_the_users(tmp_path: Path, manager: ProcessGroup) -> None:
    server = prepared(tmp_path)
    config = server.directory / "redis.conf"
    lines = config.read_text().splitlines(keepends=True)
    config.write_text("".join(line for line in lines if not line.startswith("user ")))
    manager.start(server.service)
    embedded_redis.wait_until_it_answers(server)
    with redis.Redis.from_url(server.url_of(RedisRole.API)) as client:
        with pytest.raises(redis.AuthenticationError):
            client.ping()
        embedded_redis.set_users(server)
        assert client.ping()
