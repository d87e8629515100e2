"""Recipes on a real GPU: every strategy, every precision, and rows exact to the last one."""

import math

import pytest

from shardyard.client import Client
from tests.gpu.conftest import Runner, explain

pytestmark = [pytest.mark.gpu, pytest.mark.acceptance, pytest.mark.timeout(240)]

DIGITS_ROWS = 1437


def test_the_node_offers_every_gpu_that_nvml_names(gpus: Client) -> None:
    (node,) = gpus.nodes()
    assert node.devices
    for device in node.devices:
        assert device.kind == "cuda"
        assert device.id.startswith("GPU-")
        assert device.memory_total_bytes is not None
        assert device.memory_total_bytes > 2**30


@pytest.mark.parametrize("strategy", ["single", "dp", "ddp", "fsdp"])
def test_a_recipe_trains_under_each_strategy_and_no_row_is_lost(run: Runner, strategy: str) -> None:
    job = run.recipe("digits-dp3", parallelism__strategy=strategy, program__epochs=2)
    assert job.status.state == "succeeded", explain(job)
    report = job.report()
    (device,) = report.per_device
    assert report.devices[0].id.startswith("GPU-")
    assert device.rows == 2 * DIGITS_ROWS
    assert device.forward_ms is not None
    assert device.forward_ms.p50 > 0
    assert device.memory_peak_bytes is not None
    assert device.memory_peak_bytes > 0


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_one_rank_joins_an_nccl_group(run: Runner, strategy: str) -> None:
    job = run.recipe("digits-ddp2", parallelism__strategy=strategy, parallelism__backend="nccl", program__epochs=1)
    assert job.status.state == "succeeded", explain(job)
    assert job.report().per_device[0].rows == DIGITS_ROWS


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("strategy", ["single", "dp", "ddp"])
def test_mixed_precision_learns(run: Runner, strategy: str, precision: str) -> None:
    """float16 goes through GradScaler."""
    job = run.recipe("digits-dp3", parallelism__strategy=strategy, program__precision=precision, program__epochs=3)
    assert job.status.state == "succeeded", explain(job)
    result = job.status.result
    assert result is not None
    assert math.isfinite(result["loss"])
    (losses,) = job.metrics("loss", device=-1)
    values = [point.value for point in losses.points if point.value is not None]
    assert values[-1] < values[0] / 2


def test_a_model_on_the_cpu_and_the_gpu_moves_its_inputs(run: Runner) -> None:
    job = run.recipe("embedding-on-cpu")
    assert job.status.state == "succeeded", explain(job)


def test_checkpoints_are_saved_and_the_next_attempt_goes_on(run: Runner) -> None:
    """The same losses as a run that was never stopped, although dropout draws from the device's own generator."""
    whole = run.recipe("digits-dp3", parallelism__strategy="single", program__epochs=2)
    saved = run.recipe(
        "digits-dp3", parallelism__strategy="single", program__epochs=2, program__checkpoint={"every_steps": 5}
    )
    assert saved.status.state == "succeeded", explain(saved)
    assert saved.status.checkpoint is not None
    assert saved.status.result == whole.status.result
