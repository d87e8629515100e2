from collections.abc import Iterator

import pytest

from tests.integration.store.invariants import violations
from tests.integration.store.world import World
from tests.support.servers.redis_server import running_redis


@pytest.fixture(scope="session")
def server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_redis(tmp_path_factory.mktemp("store")) as url:
        yield url


@pytest.fixture
def world(server_url: str) -> Iterator[World]:
    """An empty store. What a test leaves there must satisfy every invariant."""
    world = World(server_url)
    world.redis.flushall()
    yield world
    try:
        assert violations(world.redis) == []
    finally:
        world.store.close()
