from collections.abc import Iterator

import pytest

from tests.support.servers.sentinel_group import SentinelGroup, sentinel_group


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="package")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SentinelGroup]:
    with sentinel_group(tmp_path_factory.mktemp("sentinels")) as group:
        yield group


@pytest.fixture
def group(started: SentinelGroup) -> SentinelGroup:
    """Three servers, which a test may kill: the next one has them whole and empty again."""
    started.heal()
    with started.servers[started.primary()].client() as client:
        client.flushall()
        client.wait(2, 60_000)
    return started
