"""`shardyard tune` against every candidate run for itself, on models whose steps cost what they are told to."""

import io
import json
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from shardyard import Client
from shardyard.tuning.candidates import Candidate
from shardyard.tuning.measurements import TuningTrial
from shardyard.tuning.trial_jobs import TrialJobs
from shardyard.tuning.variants import make_space
from tests.acceptance.harness import Up

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]

#: A step of a device takes what it costs anyway, and so much for each of its rows; a rank of several, so much more.
SLEEPY = """
import os, time
from torch import nn

class Sleepy(nn.Module):
    def __init__(self, anyway: float, row: float, together: float) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 2)
        self.row = row
        self.anyway = anyway + (together if int(os.environ.get("WORLD_SIZE", "1")) > 1 else 0.0)

    def forward(self, x):
        time.sleep((self.anyway + self.row * len(x)) / 1000)
        return self.layer(x)
"""
#: Milliseconds: of any step, of a row, and of a step with several ranks.
MODELS = {
    "one device is best": (1.0, 0.05, 60.0),
    "ranks are best": (2.0, 1.0, 2.0),
    "ranks are best with many rows": (4.0, 0.3, 15.0),
    "small steps are as good": (0.1, 1.2, 40.0),
    "steps cost much anyway": (30.0, 0.1, 5.0),
}
STRATEGIES, DEVICES, SIZES = ["single", "ddp", "dp"], [1, 2], [16, 32, 64]
#: Of each candidate, where all are run.
STEPS = 60


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    up = Up(tmp_path_factory.mktemp("tune"), "--devices", "cpu:2")
    yield up
    up.close()


@pytest.fixture(scope="module")
def client(up: Up) -> Client:
    return up.start()


@pytest.fixture(scope="module")
def bundle(client: Client) -> str:
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("sleepy.py", SLEEPY)
    return client.upload_bundle(zipped).id


def a_spec(bundle: str, anyway: float, row: float, together: float) -> dict[str, Any]:
    arguments = {"anyway": anyway, "row": row, "together": together}
    return {
        "resources": {"devices": 2},
        "parallelism": {"strategy": "ddp"},
        "program": {
            "bundle": bundle,
            "model": {"ref": "sleepy:Sleepy", "args": arguments},
            "data": {"ref": "random_vectors", "args": {"rows": 4096, "features": 5}, "batch_size": 16},
            "loss": {"ref": "cross_entropy"},
            "optimizer": {"ref": "sgd", "args": {"lr": 0.01}},
        },
    }


def run_all(client: Client, spec: dict[str, Any]) -> dict[Candidate, float]:
    """Rows per second of every candidate."""
    jobs = TrialJobs(client, spec, {"exhaustive": "yes"}, lambda trial: None)
    space = make_space(spec, STRATEGIES, DEVICES, SIZES)
    trials: list[TuningTrial] = [jobs.run(candidate, STEPS) for candidate in space.spread(len(SIZES))]
    assert [trial.problem for trial in trials if trial.problem] == []
    return {trial.candidate: median(trial.rates) for trial in trials}


@pytest.mark.parametrize("name", MODELS)
def test_the_choice_is_within_a_twentieth_of_the_best_of_all(
    up: Up, client: Client, bundle: str, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("SHARDYARD_URL", "SHARDYARD_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("SHARDYARD_DATA_DIR", str(up.data_dir))
    spec = a_spec(bundle, *MODELS[name])
    (tmp_path / "job.json").write_text(json.dumps(spec))
    options = ["--strategies", ",".join(STRATEGIES), "--devices", "1,2", "--batch-sizes", ",".join(map(str, SIZES))]
    command = [*up.command()[:3], "tune", str(tmp_path / "job.json"), "--steps", "400", *options, "-o", "json"]

    run = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)

    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["steps"] <= 400
    rates = run_all(client, spec)
    chosen = next(one for one in rates if (one.arm.strategy, one.arm.devices, one.rows) == _key(found["chosen"]))
    assert rates[chosen] >= 0.95 * max(rates.values()), (found["reason"], rates)


def _key(candidate: dict[str, Any]) -> tuple[str, int, int]:
    return candidate["strategy"], candidate["devices"], candidate["rows"]
