"""Devices with weights, and ranks with unequal rows: a run is that of one device on the batches of all."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from jobs.protocol.records import MetricSample, Outcome, Result
from tests.integration.training.ranks import Saving, report_of, run_ranks
from tests.support.training_runs import VECTORS, report_here, run_here, spec_of

pytestmark = pytest.mark.integration

DOUBLE: dict[str, Any] = {
    "model": {"ref": "tests.integration.training.parts:double_model"},
    "data": {"ref": "tests.integration.training.parts:double_vectors", "args": {"rows": 62}, "batch_size": 9},
    "loss": {"ref": "mse"},
    "optimizer": {"ref": "sgd", "args": {"lr": 0.2, "momentum": 0.9}},
    "epochs": 2,
    "clip_grad_norm": 0.3,
    "checkpoint": {"every_steps": 1000},
}


def double(batch: int, **data: Any) -> dict[str, Any]:
    return {**DOUBLE, "data": {**DOUBLE["data"], "batch_size": batch, **data}}


def trained(directory: Path, program: dict[str, Any], devices: int, **how: Any) -> dict[str, torch.Tensor]:
    """The parameters at the end of a run."""
    directory.mkdir()
    runs = run_ranks(spec_of(program, devices=devices, **how), saving=Saving(directory))
    assert [run.exit_code for run in runs] == [0] * len(runs), [run.of(Outcome)[-1].traceback for run in runs]
    last = max((path for path in directory.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    return load_file(last / "model.safetensors")


def assert_close(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in other.items():
        assert tensor.dtype == torch.float64
        assert (one[name] - tensor).norm() <= 1e-6 * tensor.norm(), name


@pytest.mark.parametrize(
    ("strategy", "weights", "extra"),
    [
        ("ddp", [3, 2], {}),
        ("ddp", None, {"accumulate_steps": 2}),
        pytest.param("ddp", [5, 1, 2], {"accumulate_steps": 3}, marks=pytest.mark.slow),
        pytest.param("fsdp", [1, 4], {}, marks=pytest.mark.slow),
    ],
)
def test_weighed_ranks_train_as_one_device_on_the_whole_batches(
    strategy: str, weights: list[float] | None, extra: dict[str, Any], tmp_path: Path
) -> None:
    ranks = 2 if weights is None else len(weights)
    how = {} if weights is None else {"weights": weights}
    weighed = trained(tmp_path / "w", double(9, uneven="weigh") | extra, ranks, strategy=strategy, **how)
    assert_close(weighed, trained(tmp_path / "one", double(9 * ranks) | extra, 1, strategy="single"))


def test_a_rank_without_a_row_in_the_last_step_takes_part(tmp_path: Path) -> None:
    program = double(20, uneven="weigh")  # 62 rows: 40 and 20, and the last two rows on three ranks
    spec = spec_of(double(20, uneven="weigh"), devices=3, strategy="ddp")
    weighed = trained(tmp_path / "w", program, 3, strategy="ddp")
    assert_close(weighed, trained(tmp_path / "one", double(60), 1, strategy="single"))
    report = report_of(spec, run_ranks(spec), 62)
    assert {pattern.rows: pattern.steps for pattern in report.patterns} == {(20, 20, 20): 2, (1, 1, 0): 2}
    assert report.prediction.matches
    assert "uneven-mean-of-means" not in {finding.code for finding in report.findings}


def test_the_loss_of_weighed_ranks_is_the_mean_over_all_rows() -> None:
    program = {**double(9, uneven="weigh"), "checkpoint": None}
    runs = run_ranks(spec_of(program, devices=2, strategy="ddp", weights=[3, 2]))
    alone, sink = run_here({**double(18), "checkpoint": None})
    (result,) = runs[0].of(Result)
    assert result.loss == pytest.approx(alone.loss, rel=1e-9)
    together, one = (
        {point.step: point.value for point in points if point.name == "loss" and point.device == -1}
        for points in (runs[0].of(MetricSample), sink.of(MetricSample))
    )
    assert together
    for step, value in together.items():
        assert value == pytest.approx(one[step], rel=1e-9)


@pytest.mark.parametrize("functional", [False, True])
def test_dp_scatters_by_weights_and_trains_as_one_device(functional: bool, tmp_path: Path) -> None:
    spec = spec_of(double(25) | {"checkpoint": None}, devices=2, strategy="dp", weights=[3, 2], functional=functional)
    report = report_here(spec, 62)
    assert {pattern.rows: pattern.steps for pattern in report.patterns} == {(15, 10): 4, (7, 5): 2}
    assert report.prediction.matches
    assert not {"ragged-batch", "ragged-last-batch"} & {finding.code for finding in report.findings}
    weighed = trained(tmp_path / "w", double(25), 2, strategy="dp", weights=[3, 2], functional=functional)
    assert_close(weighed, trained(tmp_path / "one", double(25), 1, strategy="single"))


def test_uneven_rows_are_dropped() -> None:
    spec = spec_of(double(9, uneven="drop") | {"checkpoint": None, "epochs": 1}, devices=4, strategy="ddp")
    report = report_of(spec, run_ranks(spec), 62)
    assert {pattern.rows: pattern.steps for pattern in report.patterns} == {(9, 9, 9, 9): 1, (6, 6, 6, 6): 1}
    assert report.prediction.matches
    (finding,) = [one for one in report.findings if one.code == "dropped-rows"]
    assert "2 of 62 rows" in finding.message


@pytest.mark.parametrize(("strategy", "fit"), [("ddp", 1e-12), pytest.param("fsdp", 1e-12, marks=pytest.mark.slow)])
def test_a_run_proves_its_gradient_on_the_first_unequal_step(strategy: str, fit: float) -> None:
    spec = spec_of(double(9, uneven="weigh") | {"checkpoint": None}, devices=2, strategy=strategy, weights=[3, 2])
    weights = report_of(spec, run_ranks(spec), 62).weights
    assert weights is not None
    assert (weights.weights, weights.source) == ((3.0, 2.0), "spec")
    assert weights.gradient is not None
    assert (weights.gradient.step, weights.gradient.rows) == (0, 18)
    assert 0 <= weights.gradient.difference <= fit * weights.gradient.norm


def test_without_weights_the_first_unequal_step_is_the_last_of_the_epoch() -> None:
    spec = spec_of(double(20, uneven="weigh") | {"checkpoint": None}, devices=3, strategy="ddp")
    weights = report_of(spec, run_ranks(spec), 62).weights
    assert weights is not None
    assert weights.weights is None
    assert weights.gradient is not None
    assert (weights.gradient.step, weights.gradient.rows) == (1, 2)
    assert weights.gradient.difference <= 1e-12 * weights.gradient.norm


def test_dp_proves_its_gradient_too_and_dropout_is_named_as_what_makes_it_differ() -> None:
    report = report_here(spec_of(double(25) | {"checkpoint": None}, devices=2, strategy="dp", weights=[3, 2]), 62)
    assert report.weights is not None
    assert report.weights.gradient is not None
    assert report.weights.gradient.difference <= 1e-12 * report.weights.gradient.norm
    dropping = {**VECTORS, "model": {"ref": "mlp", "args": {"in_features": 5, "out_features": 2, "dropout": 0.5}}}
    report = report_here(spec_of(dropping, devices=2, strategy="dp", weights=[3, 2]), 100)
    assert "dropout" in report.notes["weights.gradient"]
