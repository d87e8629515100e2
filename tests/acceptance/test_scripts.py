"""A user with scripts of their own, a terminal, and nothing else."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.harness import Up

pytestmark = pytest.mark.acceptance

TRAIN = """
import argparse, os, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from helpers.model import Model

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
args = parser.parse_args()
torch.manual_seed(0)
data = DataLoader(TensorDataset(torch.randn(100, 5)), batch_size=30)
model = Model()
if torch.cuda.device_count() > 1:
    model = nn.DataParallel(model)
if torch.cuda.is_available():
    model.to("cuda:0")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(args.epochs):
    for (batch,) in data:
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.6f}")
if "SHARDYARD_OUTPUT_DIR" in os.environ:
    torch.save(model.state_dict(), os.path.join(os.environ["SHARDYARD_OUTPUT_DIR"], "model.pt"))
"""
MODEL = """
from torch import nn

class Model(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(5, 2))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A checkout as people have them."""
    root = tmp_path / "project"
    for file, text in {
        "train.py": TRAIN,
        "helpers/__init__.py": "",
        "helpers/model.py": MODEL,
        "broken.py": "raise SystemExit('no data here')",
        ".gitignore": "data/\n",
        "data/huge.bin": "not to be sent",
        ".venv/pyvenv.cfg": "",
        ".git/HEAD": "ref: refs/heads/main",
    }.items():
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text(text)
    return root


@pytest.mark.slow
def test_a_script_runs_as_a_job_from_its_checkout_and_prints_what_it_prints_alone(up: Up, project: Path) -> None:
    up.start()
    variables = os.environ | {"SHARDYARD_DATA_DIR": str(up.data_dir)}

    def typed(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *command], cwd=project, env=variables, capture_output=True, text=True, timeout=100
        )

    def submit(*options: str) -> subprocess.CompletedProcess[str]:
        return typed("-m", "shardyard", "submit", *options)

    alone = typed("train.py", "--epochs", "2").stdout.splitlines()
    assert len(alone) == 2

    first = submit("--script", "train.py", "--", "--epochs", "2")
    assert first.returncode == 0, first.stderr
    assert [line.removeprefix("0| ") for line in first.stdout.splitlines() if line.startswith("0| ")] == alone
    assert "uploaded" in first.stderr
    assert "left out: .venv/ (a Python environment), data/ (.gitignore)" in first.stderr

    rehearsed = submit("--script", "train.py", "--strategy", "dp", "--devices", "3", "--rehearse", "--json")
    assert rehearsed.returncode == 0, rehearsed.stdout
    assert rehearsed.stderr == ""
    status = json.loads(rehearsed.stdout)
    assert (status["state"], status["rehearsal"]) == ("succeeded", True)

    assert up.client is not None
    job = up.client.job(status["id"])
    patterns = job.report().patterns
    assert [(pattern.rows, pattern.steps) for pattern in patterns] == [((10, 10, 10), 3), ((4, 4, 2), 1)]
    kept = [one.path for one in job.artifacts()]
    assert "artifacts/model.pt" in kept
    sent = {file.path for file in up.client.bundle(status["spec"]["program"]["bundle"]).files}
    assert sent == {".gitignore", "broken.py", "helpers/__init__.py", "helpers/model.py", "train.py"}

    failed = submit("--script", "broken.py")
    assert failed.returncode == 1
    assert "rank 0: no data here" in failed.stdout
    assert "uploaded" not in failed.stderr  # the same files are there already
