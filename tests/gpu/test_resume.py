"""A run on a GPU that was broken off goes on from its checkpoint as if nothing had happened."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.samples.saved_runs import attempts, flat, is_step
from workers.runtime.context import RankDevice

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]

PROGRAM: dict[str, Any] = {
    "model": {"ref": "mlp", "args": {"in_features": 5, "hidden": [7], "out_features": 2, "dropout": 0.3}},
    "data": {"ref": "random_vectors", "args": {"rows": 50, "features": 5}, "batch_size": 13, "shuffle": True},
    "loss": {"ref": "cross_entropy"},
    "optimizer": {"ref": "adam", "args": {"lr": 0.01}},
    "epochs": 3,
}


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_a_run_on_a_gpu_draws_what_it_would_have_drawn(precision: str, tmp_path: Path) -> None:
    """Dropout comes from the device's own generator, and the scaler of float16 has a state, too."""
    gpu = (RankDevice(0, "cuda", "cuda:0"),)
    program = PROGRAM | {"precision": precision}
    whole = attempts(tmp_path, program, 5).go(devices=gpu)
    broken = attempts(tmp_path, program, 5).go(is_step("train", 6), devices=gpu).go(devices=gpu)
    for name, tensor in whole.weights.items():
        torch.testing.assert_close(broken.weights[name], tensor)
    assert flat(broken.state["draws"]) == flat(whole.state["draws"])
    assert broken.state["scaler"] == whole.state["scaler"]
