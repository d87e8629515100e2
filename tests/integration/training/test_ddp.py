"""DistributedDataParallel on real ranks, forked from a warm server, over gloo."""

from typing import Any

import pytest

from jobs.protocol.records import FLOP_STEP, BatchSplit, MetricSample, Outcome, Result, Step
from tests.integration.training.ranks import RankRun, run_ranks
from tests.support.training_runs import DIGITS, VECTORS, run_here, spec_of

pytestmark = pytest.mark.integration


def run_ddp(program: dict[str, Any], ranks: int, **parallelism: Any) -> list[RankRun]:
    runs = run_ranks(spec_of(program, devices=ranks, strategy="ddp", **parallelism))
    for run in runs:
        (outcome,) = run.of(Outcome)
        assert run.exit_code == outcome.exit_code == 0, outcome.traceback
        assert run.records[-1] is outcome
    return runs


def rows_of(run: RankRun, phase: str) -> list[int | None]:
    rows = {split.id: split.rows for split in run.of(BatchSplit)}
    return [sum(row or 0 for row in rows[step.splits[0]]) for step in run.of(Step) if step.phase == phase]


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_digits_are_learned_to_95_percent_and_each_test_image_counts_once(ranks: int) -> None:
    runs = run_ddp(DIGITS, ranks)
    (result,) = runs[0].of(Result)
    assert result.metrics["accuracy"] >= 0.95
    assert (result.metrics["accuracy"] * 360) == pytest.approx(round(result.metrics["accuracy"] * 360))
    assert sum(sum(row or 0 for row in rows_of(run, "eval")) for run in runs) == 360
    assert all(not run.of(Result) for run in runs[1:])


def test_ranks_get_the_rows_of_the_sampler_padding_included() -> None:
    program = {**VECTORS, "data": {"ref": "random_vectors", "args": {"rows": 90, "features": 5}, "batch_size": 30}}
    runs = run_ddp(program, 4)
    assert [rows_of(run, "train") for run in runs] == [[23], [23], [23], [23]]
    assert [run.of(BatchSplit)[0].devices for run in runs] == [(0,), (1,), (2,), (3,)]


def test_computing_and_communicating_are_told_apart_in_the_first_steps_and_every_tenth() -> None:
    for run in run_ddp({**VECTORS, "epochs": 10}, 2):
        steps = run.of(Step)
        assert len(steps) == 20
        assert [step.step for step in steps if step.whole_backward_ms is None] == [FLOP_STEP]
        timed = [step for step in steps if step.comm_ms is not None]
        assert [step.step for step in timed] == [*range(10), 19]
        for step in timed:  # a rank that is held up between forward and backward may seem to compute for no time
            parts = (step.backward_ms[0] or 0.0) + (step.comm_ms or 0.0)
            assert parts == pytest.approx(step.whole_backward_ms or 0.0)
        assert sum(step.backward_ms[0] or 0.0 for step in timed) > 0
        assert sum(step.comm_ms or 0.0 for step in timed) > 0


def test_a_rank_that_is_slow_in_backward_is_found_by_its_own_numbers() -> None:
    program = {**VECTORS, "model": {"ref": "tests.integration.training.parts:SlowOnRank1"}, "epochs": 2}
    fast, slow = ([step.backward_ms[0] or 0.0 for step in run.of(Step)] for run in run_ddp(program, 2))
    assert min(slow[1:]) > 90 > sorted(fast)[len(fast) // 2]


def test_the_mean_loss_is_that_of_one_device_with_all_the_rows() -> None:
    program = {**VECTORS, "data": {"ref": "random_vectors", "args": {"rows": 80, "features": 5}, "batch_size": 20}}
    whole = {**program, "data": {**program["data"], "batch_size": 40}}
    spread, single = run_ddp(program, 2)[0].of(MetricSample), run_here(whole)[1].of(MetricSample)
    assert _loss_of_the_job(spread) == pytest.approx(_loss_of_the_job(single), rel=1e-5)


def _loss_of_the_job(metrics: list[MetricSample]) -> list[float]:
    return [metric.value for metric in metrics if metric.name == "loss" and metric.device == -1]


def test_the_same_seed_gives_the_same_losses_bit_for_bit() -> None:
    program = {**DIGITS, "epochs": 1, "evaluate": None}
    first, second = (
        [(metric.device, metric.step, metric.value) for run in run_ddp(program, 2) for metric in run.of(MetricSample)]
        for _ in range(2)
    )
    assert first == second


def test_a_submodule_alone_is_wrapped_and_evaluated_without_collectives() -> None:
    data = {"ref": "digits", "batch_size": 32}
    program = {**DIGITS, "model": {"ref": "digits_cnn"}, "data": data, "epochs": 1, "max_steps": 3}
    runs = run_ddp({**program, "evaluate": {"data": data}}, 2, module="head")
    assert {split.module for run in runs for split in run.of(BatchSplit)} == {"head"}
    assert all(run.of(BatchSplit)[0].input_shapes == ((32, 512),) for run in runs)
    (result,) = runs[0].of(Result)
    assert set(result.metrics) == {"eval_loss", "accuracy"}


def test_loader_processes_work_in_a_rank() -> None:
    data = {"ref": "random_vectors", "args": {"rows": 100, "features": 5}, "batch_size": 30, "num_workers": 2}
    runs = run_ddp({**VECTORS, "data": data, "epochs": 2}, 2)
    assert [rows_of(run, "train") for run in runs] == [[30, 20, 30, 20]] * 2


def test_forward_mode_runs_under_ddp() -> None:
    program = {"model": VECTORS["model"], "data": VECTORS["data"], "mode": "forward"}
    runs = run_ddp(program, 2)
    assert [rows_of(run, "forward") for run in runs] == [[30, 20]] * 2
