"""fully_shard and accumulated gradients on real ranks, over gloo."""

from typing import Any

import pytest

from jobs.protocol.records import MetricSample, Outcome, Result, Step
from tests.integration.training.ranks import RankRun, report_of, run_ranks
from tests.support.training_runs import DIGITS, VECTORS, run_here, spec_of

pytestmark = pytest.mark.integration

MLP = {"ref": "mlp", "args": {"in_features": 5, "out_features": 2, "hidden": [16]}}


def vectors(rows: int, batch_size: int, **changes: Any) -> dict[str, Any]:
    data = {"ref": "random_vectors", "args": {"rows": rows, "features": 5}, "batch_size": batch_size}
    return {**VECTORS, "model": MLP, "data": data} | changes


def run(program: dict[str, Any], ranks: int, strategy: str) -> list[RankRun]:
    runs = run_ranks(spec_of(program, devices=ranks, strategy=strategy))
    for one in runs:
        (outcome,) = one.of(Outcome)
        assert one.exit_code == outcome.exit_code == 0, outcome.traceback
    return runs


def losses(runs: list[RankRun]) -> list[float]:
    return [metric.value for metric in runs[0].of(MetricSample) if metric.name == "loss" and metric.device == -1]


# -- accumulation ----------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_four_batches_of_eight_on_each_rank_are_one_of_thirty_two(strategy: str) -> None:
    parts: dict[str, Any] = {"epochs": 2, "clip_grad_norm": 0.5}
    added = run(vectors(200, 8, accumulate_steps=4, **parts), 2, strategy)
    whole = run(vectors(200, 32, **parts), 2, strategy)
    assert len(losses(added)) == 8
    assert losses(added) == pytest.approx(losses(whole), rel=1e-5)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_the_same_seed_gives_the_same_losses_bit_for_bit(strategy: str) -> None:
    data = {"ref": "random_vectors", "args": {"rows": 100, "features": 5}, "batch_size": 8, "shuffle": True}
    program = vectors(100, 8, data=data, accumulate_steps=3, clip_grad_norm=0.5)
    first, second = (losses(run(program, 2, strategy)) for _ in range(2))
    assert len(first) == 3
    assert first == second


def test_the_backward_of_batches_that_are_not_synchronised_counts_too() -> None:
    slow = {"rank": 1, "where": "backward", "milliseconds": 60}
    spec = spec_of(vectors(160, 10, accumulate_steps=4, straggler=slow), devices=2, strategy="ddp")
    runs = run_ranks(spec)
    report = report_of(spec, runs, 160)
    assert report.prediction.matches
    assert (report.balance.slowest_device, report.balance.cause) == (1, "compute")
    took = [step.backward_ms[0] or 0.0 for step in runs[1].of(Step)]
    assert 4 * 60 < min(took) < 2 * 4 * 60


# -- fsdp ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_fsdp_has_the_losses_of_ddp(ranks: int) -> None:
    program = vectors(90, 10, epochs=2, optimizer={"ref": "adamw", "args": {"lr": 0.01}}, clip_grad_norm=1.0)
    assert losses(run(program, ranks, "fsdp")) == pytest.approx(losses(run(program, ranks, "ddp")), rel=1e-4)


def test_fsdp_learns_and_evaluates_each_row_once_though_ranks_have_different_numbers_of_batches() -> None:
    data = {"ref": "digits", "args": {"split": "test"}, "batch_size": 17}
    program = {**DIGITS, "epochs": 6, "evaluate": {"data": data, "every_epochs": 3}}
    (result,) = run(program, 3, "fsdp")[0].of(Result)
    assert result.metrics["accuracy"] >= 0.93
    assert (result.metrics["accuracy"] * 360) == pytest.approx(round(result.metrics["accuracy"] * 360))


def test_the_report_of_fsdp_has_every_split_and_says_what_it_cannot_know() -> None:
    spec = spec_of(vectors(90, 30), devices=4, strategy="fsdp")
    report = report_of(spec, run(vectors(90, 30), 4, "fsdp"), 90)
    assert [(pattern.rows, pattern.steps) for pattern in report.patterns] == [((23, 23, 23, 23), 1)]
    assert report.prediction.matches
    assert {finding.code for finding in report.findings} == {"sampler-padding"}
    assert (report.balance.cause, report.balance.slowest_device) == (None, None)
    assert "includes waiting for the other ranks" in report.notes["balance.cause"]
    assert "torch does not time them apart" in report.notes["per_device.comm_ms"]


def test_fsdp_in_bfloat16_stays_near_one_device_in_float32() -> None:
    sharded = run(vectors(80, 20, precision="bfloat16"), 2, "fsdp")
    whole = [m.value for m in run_here(vectors(80, 40))[1].of(MetricSample) if m.name == "loss" and m.device == -1]
    assert losses(sharded) == pytest.approx(whole, rel=0.05)


def test_a_model_that_cannot_be_sharded_is_rejected_with_the_reason() -> None:
    model = {"ref": "tests.integration.training.parts:Scale"}
    runs = run_ranks(spec_of(vectors(10, 5, model=model), devices=2, strategy="fsdp"))
    for one in runs:
        assert "parallelism.strategy: fully_shard does not take this model" in one.of(Outcome)[0].traceback
