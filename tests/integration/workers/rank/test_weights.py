"""Jobs on devices of unlike speed: one takes half as long again for a row as the other."""

from pathlib import Path
from typing import Any

import pytest

from jobs.model.state import JobState
from tests.integration.workers.service import Service

pytestmark = pytest.mark.integration

EXAMPLE = Path(__file__).parents[4] / "examples" / "scripts" / "unlike_devices.py"

#: A row takes 0.2 ms on rank 0 and 0.3 ms on rank 1: they sleep, so that a busy machine hardly changes the ratio.
UNLIKE = """
import os
import time

import torch


class Unlike(torch.nn.Module):
    def __init__(self, milliseconds):
        super().__init__()
        self.layer = torch.nn.Linear(5, 2)
        self.seconds = milliseconds[int(os.environ.get("RANK", "0"))] / 1000

    def forward(self, rows):
        time.sleep(len(rows) * self.seconds)
        return self.layer(rows)
"""
DATA = {"ref": "random_vectors", "args": {"rows": 2000, "features": 5}, "batch_size": 50}


def unlike(service: Service, weights: Any) -> dict[str, Any]:
    """The report of a run on both devices."""
    model = {"ref": "unlike:Unlike", "args": {"milliseconds": [0.2, 0.3]}}
    bundle = service.bundle({"unlike.py": UNLIKE})
    job = service.run_recipe(bundle, model, "ddp", 2, weights, data=DATA, epochs=8, max_steps=160)
    end = service.ended(job, 120)
    assert end.state is JobState.SUCCEEDED, end.error
    return service.report(job)


def test_weights_that_are_measured_fit_the_devices(service: Service) -> None:
    report = unlike(service, "auto")
    told = report["weights"]
    assert told["source"] == "measured"
    assert 1.25 < told["weights"][0] / told["weights"][1] < 1.75
    assert report["prediction"]["matches"], report["prediction"]
    assert told["gradient"]["difference"] <= 1e-5 * told["gradient"]["norm"]
    assert told["predicted_ms"] == pytest.approx(told["seen_ms"], rel=0.3)
    assert told["seen_ms"] < told["even_ms"]
    assert not {"slow-device", "unfitting-weights", "uneven-mean-of-means"} & {
        finding["code"] for finding in report["findings"]
    }


@pytest.mark.slow
def test_a_device_that_always_is_slow_may_get_fewer_rows(service: Service) -> None:
    report = unlike(service, None)
    assert report["weights"] is None
    (slow,) = [finding for finding in report["findings"] if finding["code"] == "slow-device"]
    assert slow["numbers"]["device"] == 1
    assert "set parallelism.weights to [1." in slow["suggestion"]


def test_weights_that_do_not_fit_are_found(service: Service) -> None:
    report = unlike(service, [1, 2])
    (found,) = [finding for finding in report["findings"] if finding["code"] == "unfitting-weights"]
    assert found["suggestion"].startswith("set parallelism.weights to [1.")
    assert "slow-device" not in {finding["code"] for finding in report["findings"]}


def test_a_script_deals_rows_by_the_weights_of_its_job(service: Service) -> None:
    files = {"train.py": EXAMPLE.read_text()}
    job = service.run_script(files, strategy="ddp", devices=2, weights=[3, 2])
    end = service.ended(job, 120)
    assert end.state is JobState.SUCCEEDED, end.error
    report = service.report(job)
    assert {tuple(one["rows"]): one["steps"] for one in report["patterns"]} == {(30, 20): 20, (2, 1): 2}
    assert "uneven-mean-of-means" not in {finding["code"] for finding in report["findings"]}
    assert report["weights"] is None  # what a script does with them is its own
