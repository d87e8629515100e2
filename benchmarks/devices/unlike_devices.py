"""Two devices of unlike speed, planted: how much of the sum of their speeds training reaches, with weights and without.

A row takes 2 ms on rank 0 and 3 ms on rank 1, which is 3 to 2. The model sleeps so long for each row of a batch, so
that the ratio is the same on every machine, busy or not; what a step takes beside it is real. The sum of the speeds is
833 rows a second. Rows divided evenly can reach 80 % of it, since the faster device waits for the other. The rate is
that of the report, by the clock.
"""

import io
import zipfile
from functools import partial
from typing import Any

from benchmarks.harness.comparing import Figure, Say, Scale, at_least, in_turns
from benchmarks.harness.service import Service, service
from shardyard.contract.report import Report

TITLE = "Two devices of 3 to 2, of the sum of their speeds"
WEIGHTS, AUTO, EVEN = "weights 3, 2", "weights measured before the first step", "equally many rows"
ROW_MS = (2.0, 3.0)
BATCH = 50
GOAL = 0.90
MODEL = """
import os
import time

import torch


class Unlike(torch.nn.Module):
    def __init__(self, row_ms):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
        self.seconds = row_ms[int(os.environ.get("RANK", "0"))] / 1000

    def forward(self, rows):
        time.sleep(len(rows) * self.seconds)
        return self.layers(rows)
"""


def run(scale: Scale, say: Say) -> list[Figure]:
    steps = scale.pick(200, 20)
    with service("cpu:2") as running:
        bundle = _upload(running)
        sides: dict[str, Any] = {WEIGHTS: [3, 2], AUTO: "auto", EVEN: None}
        samples = in_turns(
            {name: partial(_share_of_speeds, running, bundle, how, steps) for name, how in sides.items()},
            scale.rounds_of(3, 1),
            say=say,
        )
    return [Figure("rows a second, of the sum of speeds", "", samples, [at_least(GOAL)], lower_is_better=False)]


def _upload(running: Service) -> str:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as bundle:
        bundle.writestr("unlike.py", MODEL)
    packed.seek(0)
    return running.client.upload_bundle(packed).id


def _share_of_speeds(running: Service, bundle: str, weights: Any, steps: int) -> float:
    data = {"ref": "random_vectors", "args": {"rows": 2 * BATCH * steps, "features": 64, "classes": 10}}
    program = {
        "model": {"ref": "unlike:Unlike", "args": {"row_ms": list(ROW_MS)}},
        "data": {**data, "batch_size": BATCH},
        "loss": {"ref": "cross_entropy"},
        "optimizer": {"ref": "sgd", "args": {"lr": 0.01}},
        "bundle": bundle,
    }
    parallelism = {"strategy": "ddp"} | ({} if weights is None else {"weights": weights})
    job = running.client.submit({"program": program, "resources": {"devices": 2}, "parallelism": parallelism})
    report: Report = job.wait(timeout=300).report().data
    rate = sum(device.rows_per_second or 0.0 for device in report.per_device)
    return rate / sum(1000 / each for each in ROW_MS)
