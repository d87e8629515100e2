"""Checkpoints of recipes with a real worker, real ranks and a real Redis: what is saved, and what a new attempt makes of
it. A run that was interrupted must be told from one that was not by its attempts alone."""

import json
import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs import checkpoints, layout, metrics, spec, store
from jobs.record import JobRecord
from jobs.state import Reason, State
from tests.integration.workers.service import TENANT, Service, eventually, running_service

pytestmark = pytest.mark.integration

EVERY, STEPS = 20, 60


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(tmp_path_factory.mktemp("service")) as service:
        yield service


def submit(service: Service, strategy: str = "single", devices: int = 1, **changes: Any) -> str:
    """A run of `STEPS` steps that saves every `EVERY`; its slow data give a test the time to interfere."""
    program = {
        "model": {"ref": "mlp", "args": {"in_features": 16, "hidden": [32], "out_features": 4}},
        "data": {"ref": "random_vectors", "args": {"rows": 400, "features": 16}, "batch_size": 8, "shuffle": True},
        "loss": {"ref": "cross_entropy"},
        "optimizer": {"ref": "adam", "args": {"lr": 0.01}},
        "epochs": 10,
        "max_steps": STEPS,
        "seed": 7,
        "checkpoint": {"every_steps": EVERY, "keep": 2},
    } | changes
    body = {"program": program, "parallelism": {"strategy": strategy}, "resources": {"devices": devices}}
    job = service.run(store.submit(TENANT, uuid.uuid4().hex, spec.parse(json.dumps(body)))).job
    service.deliver()
    return job


def kept(service: Service, job: str) -> list[tuple[int, int]]:
    found = checkpoints.kept(layout.checkpoints_dir(service.settings.storage, TENANT, job))
    return [(one.step, one.attempt) for one in found]


def test_a_run_keeps_its_newest_checkpoints_and_leaves_its_weights(service: Service) -> None:
    job = submit(service)
    record = service.ended(job, 60)
    print(service.text(job, stream="service"), record)
    assert record.state is State.SUCCEEDED
    assert kept(service, job) == [(60, 1), (40, 1)]
    assert record.checkpoint is not None
    assert (record.checkpoint["step"], record.checkpoint["attempt"]) == (60, 1)
