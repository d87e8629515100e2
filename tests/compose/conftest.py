import os
from collections.abc import Iterator

import pytest

from shardyard.client import Client
from tests.compose.composed import Composed, missing_engine


@pytest.fixture(scope="package")
def composed() -> Iterator[Composed]:
    """The service in containers, once for all tests; `make compose-test` insists on it, other runs do without."""
    missing = missing_engine()
    if missing and os.environ.get("SHARDYARD_REQUIRE_DOCKER"):
        pytest.exit(f"{missing}. These tests run the service in containers, and need Docker with compose 2.", 1)
    if missing:
        pytest.skip(missing)
    composed = Composed()
    try:
        composed.build()
        composed.up()
        yield composed
    except AssertionError:
        print(composed.logs())
        raise
    finally:
        composed.down("--volumes", "--timeout", "10")


@pytest.fixture
def client(composed: Composed) -> Iterator[Client]:
    """The client of an administrator, over the published port. Whatever a test leaves running is cancelled."""
    with composed.client() as client:
        yield client
        for state in ("queued", "starting", "running"):
            for job in client.jobs(state=state):
                job.cancel()
