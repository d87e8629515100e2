"""The embedded Redis servers, as real processes."""

import os
import signal
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from shardyard.service import embedded_redis
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
