from collections.abc import Iterator

import pytest

from tests.integration.workers.service import Service, running_service


@pytest.fixture(scope="package")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(tmp_path_factory.mktemp("service")) as service:
        yield service


@pytest.fixture
def service(shared: Service) -> Iterator[Service]:
    """A worker that tests share. Each leaves it as it found it: no process, no device held, no attempt's directory."""
    yield shared
    try:
        shared.leaves_nothing()
    finally:
        shared.restore()  # so that one failure does not become the next test's
