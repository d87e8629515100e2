"""One service with all GPUs of this machine, for all tests of this directory.

SHARDYARD_GPU_TEST_DEVICES=cpu:1 tries the tests themselves where there is no card; what only CUDA has fails then.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardyard.client import Client, Job
from tests.acceptance.harness import Up
from workers.node.devices import discover_devices

ROOT = Path(__file__).parents[2]
#: The first CUDA context of a machine takes tens of seconds where the driver is cold.
JOB_SECONDS = 120.0


DEVICES = os.environ.get("SHARDYARD_GPU_TEST_DEVICES", "auto")


@pytest.fixture(scope="session", autouse=True)
def card() -> None:
    """Skips every test of this directory where there is no CUDA device."""
    if DEVICES == "auto" and not any(device.kind == "cuda" for device in discover_devices("auto")):
        pytest.skip("needs a CUDA device, and this machine has none; `make gpu-test` runs these where there is one")


@pytest.fixture(scope="session")
def gpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    up = Up(tmp_path_factory.mktemp("gpus"), "--devices", DEVICES)
    yield up.start()
    up.close()


class Runner:
    """Submits jobs and waits for their end."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def recipe(self, example: str, **changes: Any) -> Job:
        """A spec of examples/jobs on one device, with the fields of `changes` replaced; nested fields join with __."""
        spec = json.loads((ROOT / "examples" / "jobs" / f"{example}.json").read_text())
        spec["resources"] = {"devices": 1}
        for path, value in changes.items():
            *parents, last = path.split("__")
            inner = spec
            for name in parents:
                inner = inner.setdefault(name, {})
            inner[last] = value
        return self.client.submit(spec).wait(JOB_SECONDS, check=False)

    def script(self, path: Path, text: str, *arguments: str, **options: Any) -> Job:
        path.write_text(text)
        return self.client.submit_script(path, list(arguments), **options).wait(JOB_SECONDS, check=False)


@pytest.fixture
def run(gpus: Client) -> Runner:
    return Runner(gpus)


def printed(job: Job) -> str:
    """All that the job wrote to its output."""
    return "\n".join(line.text for line in job.logs())


def explain(job: Job) -> str:
    """For the message of a failed assertion."""
    status = job.status
    return f"{status.state}: {status.reason.message}; {status.error}\n{printed(job)[-3000:]}"
