from collections.abc import Iterator

import pytest

from tests.integration.workers.box_modes import MODES, BoxMode, boxed_service
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


@pytest.fixture(scope="module", params=[MODES[0], pytest.param(MODES[1], marks=pytest.mark.slow), MODES[2]])
def mode(request: pytest.FixtureRequest) -> BoxMode:
    found: BoxMode = request.param
    return found


@pytest.fixture(scope="module")
def boxing(mode: BoxMode) -> Iterator[Service]:
    with boxed_service(mode) as service:
        yield service


@pytest.fixture
def boxed(boxing: Service) -> Iterator[Service]:
    """A worker that puts a box of this mode around jobs, shared as `service` is."""
    yield boxing
    try:
        boxing.leaves_nothing()
    finally:
        boxing.end_all()
