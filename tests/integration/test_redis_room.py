"""The control Redis of `shardyard up` on a disk that is full."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from shardyard.service import embedded_redis
from shardyard.service.embedded_redis import EmbeddedRedis
from shardyard.service.processes import ProcessGroup
from shardyard.service.redis_room import RedisRoom
from tests.faults.inject.disk import fill, small_disk
from tests.faults.scene.machine import need
from tests.integration.workers.service import eventually

pytestmark = pytest.mark.integration

WRITES = 300


@pytest.fixture
def manager() -> Iterator[ProcessGroup]:
    manager = ProcessGroup(say=print)
    yield manager
    manager.stop("control")


@pytest.fixture
def server(tmp_path: Path, manager: ProcessGroup) -> Iterator[EmbeddedRedis]:
    need("mounts")
    with small_disk(tmp_path / "data", "64m") as disk:
        server = embedded_redis.prepare_redis("control", disk, embedded_redis.find_server())
        manager.start(server.service)
        embedded_redis.wait_until_it_answers(server)
        yield server
        manager.stop("control")


def room_of(server: EmbeddedRedis) -> tuple[RedisRoom, list[str]]:
    said: list[str] = []
    return RedisRoom(server, 1 << 30, said.append), said


def test_a_server_with_room_takes_writes_on_a_full_disk_and_has_them_when_it_is_killed_and_started_again(
    server: EmbeddedRedis, manager: ProcessGroup
) -> None:
    room, said = room_of(server)
    room.keep()
    fill(server.directory.parent)
    with redis.Redis.from_url(server.url) as client:
        for number in range(WRITES):
            client.set(f"k{number}", "v" * 300)
        os.kill(manager.pid("control"), signal.SIGKILL)
        manager.watch(5)
        while "control" not in manager._running:
            manager.watch(0.05)
        embedded_redis.wait_until_it_answers(server)
        assert client.dbsize() == WRITES
        client.set("one", "more")
    assert said == []


def test_without_room_a_server_ends_at_a_write_that_a_full_disk_refuses(
    server: EmbeddedRedis, manager: ProcessGroup
) -> None:
    fill(server.directory.parent)
    with redis.Redis.from_url(server.url, retry=None) as client, pytest.raises(redis.RedisError):
        client.set("k", "v" * 100_000)
    manager.watch(5)
    assert "control" in manager._restarts


def test_what_was_used_up_is_allocated_again_and_a_disk_that_has_nothing_left_is_named_once(
    server: EmbeddedRedis,
) -> None:
    room, said = room_of(server)
    (file,) = (server.directory / "appendonlydir").glob("*.incr.aof")

    def ahead() -> int:
        status = file.stat()
        return status.st_blocks * 512 - status.st_size

    room.keep()
    whole = ahead()
    assert whole > 700_000  # a quarter of the 3.2 MB that are kept of 64 MB
    with redis.Redis.from_url(server.url) as client:
        client.set("k", "v" * (whole * 3 // 4))
        assert ahead() < whole // 2
        room.keep()
        assert ahead() > whole * 3 // 4
        client.set("k", "v" * (whole * 3 // 4))
        filler = fill(server.directory.parent)
        for _ in range(2):
            room.keep()
        assert len(said) == 1
        assert "No space left on device" in said[0]
        filler.unlink()
        room.keep()
        assert ahead() > whole * 3 // 4


def test_while_the_disk_is_low_the_server_does_not_rewrite_its_file_by_itself(server: EmbeddedRedis) -> None:
    option = "auto-aof-rewrite-percentage"
    room, _ = room_of(server)
    room.keep()
    filler = fill(server.directory.parent)
    room.keep()
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        assert client.config_get(option) == {option: "0"}
        filler.unlink()
        room.keep()
        assert client.config_get(option) == {option: "100"}
        client.bgrewriteaof()
        files = server.directory / "appendonlydir"
        (new,) = eventually(lambda: list(files.glob("*.2.incr.aof")), "the file of a rewrite")
        room.keep()
        assert new.stat().st_blocks * 512 > 700_000
