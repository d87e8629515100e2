"""A Slurm of so many hosts as the file of tests has `HOSTS`, and a service whose pool it supplies."""

from collections.abc import Iterator

import pytest

from tests.faults.scene.machine import need
from tests.faults.scene.slurm_service import SlurmService, slurm_service


@pytest.fixture(scope="module")
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmService]:
    need("slurm")
    with slurm_service(tmp_path_factory.mktemp("slurm"), request.module.HOSTS) as service:
        yield service


@pytest.fixture
def slurm(shared: SlurmService) -> Iterator[SlurmService]:
    yield shared
    try:
        shared.leaves_nothing()
    finally:
        shared.clear()
