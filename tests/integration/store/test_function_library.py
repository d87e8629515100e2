"""The library of functions on a server: loaded when it is missing, kept with the data, one for each version."""

import asyncio
from pathlib import Path

import pytest
import redis.asyncio

from jobs import store
from jobs.store.client import AsyncRedisStore
from jobs.store.function_library import MAX_OTHER_LIBRARIES, function_library
from tests.integration.store.world import World
from tests.support.servers.redis_server import RedisServer

pytestmark = pytest.mark.integration


def libraries(world: World) -> set[str]:
    return {library[1].decode() for library in world.redis.function_list()}


def load_other(world: World, number: int) -> str:
    """As another version of the service does."""
    name = f"shardyard_{number:012x}"
    world.redis.function_load(
        f"#!lua name={name}\nredis.register_function('submit_{number:012x}', function() return 'mine' end)"
    )
    return name


def test_a_library_that_is_missing_is_loaded_by_the_call_that_misses_it(world: World) -> None:
    world.node()
    world.redis.function_flush()
    job = world.submit()
    assert libraries(world) == {function_library().name}
    world.redis.function_flush()
    assert world.dispatch() == [job]


def test_tasks_that_miss_the_library_at_once_all_get_their_replies(world: World, server_url: str) -> None:
    world.redis.function_flush()

    async def count_all() -> list[object]:
        control = AsyncRedisStore(redis.asyncio.Redis.from_url(server_url))
        try:
            return await asyncio.gather(*(control.run(store.count_jobs("default")) for _ in range(50)))
        finally:
            await control.close()

    assert len(asyncio.run(count_all())) == 50
    assert libraries(world) == {function_library().name}


def test_versions_side_by_side_each_call_their_own_functions(world: World) -> None:
    other = load_other(world, 1)
    world.node()
    world.redis.function_delete(function_library().name)
    assert world.submit()
    assert {other, function_library().name} <= libraries(world)
    assert world.redis.fcall(f"submit_{1:012x}", 0) == b"mine"
    world.redis.function_delete(other)


def test_a_server_does_not_keep_every_version_that_ever_was(world: World) -> None:
    world.redis.function_flush()
    others = [load_other(world, number) for number in range(MAX_OTHER_LIBRARIES)]
    world.node()
    assert libraries(world) == {*others, function_library().name}
    world.redis.function_delete(function_library().name)
    load_other(world, MAX_OTHER_LIBRARIES)
    world.node()
    assert libraries(world) == {function_library().name}


def test_the_library_is_there_after_a_restart_and_jobs_go_on(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, appendonly="yes", appendfsync="always")
    server.start()
    world = World(server.url)
    try:
        world.node()
        attempt = world.running()
        server.kill()
        server.start()
        assert libraries(world) == {function_library().name}
        world.redis.config_resetstat()
        assert world.finish(attempt)
        assert "cmdstat_function|load" not in world.redis.info("commandstats")
    finally:
        world.store.close()
        server.close()
