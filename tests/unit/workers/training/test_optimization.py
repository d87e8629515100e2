"""Accumulation, clipping, schedules and precision: what one optimizer step does."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from jobs.protocol.records import BatchSplit, MetricSample, Outline, Step
from tests.support.training_runs import FORWARD, VECTORS, Kept, context_of, report_here, run_here, spec_of
from workers.runtime.context import RejectedByWorker
from workers.training import entry, loop


def losses(sink: Kept) -> list[float]:
    return [metric.value for metric in sink.of(MetricSample) if metric.name == "loss" and metric.device == -1]


def rates(sink: Kept) -> list[float]:
    return [metric.value for metric in sink.of(MetricSample) if metric.name == "learning_rate"]


def vectors(rows: int, batch_size: int, **changes: Any) -> dict[str, Any]:
    data = {"ref": "random_vectors", "args": {"rows": rows, "features": 5}, "batch_size": batch_size}
    return {**VECTORS, "data": data} | changes


# -- accumulation ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("strategy", "devices"), [("single", 1), ("dp", 3)])
@pytest.mark.parametrize("rows", [128, 100, 37])
@pytest.mark.parametrize("loss", [{"ref": "cross_entropy"}, {"ref": "cross_entropy", "args": {"reduction": "sum"}}])
def test_four_batches_of_eight_are_one_of_thirty_two(
    strategy: str, devices: int, rows: int, loss: dict[str, Any]
) -> None:
    optimizer = {"ref": "sgd", "args": {"lr": 0.01, "momentum": 0.9}}
    parts = {"epochs": 3, "loss": loss, "optimizer": optimizer}
    _, added = run_here(vectors(rows, 8, accumulate_steps=4, **parts), devices=devices, strategy=strategy)
    _, whole = run_here(vectors(rows, 32, **parts), devices=devices, strategy=strategy)
    assert losses(added) == pytest.approx(losses(whole), rel=1e-5)
    assert len(losses(added)) == 3 * math.ceil(rows / 32)


@pytest.mark.parametrize(("strategy", "devices"), [("single", 1), ("dp", 3)])
def test_the_same_seed_gives_the_same_losses_bit_for_bit(strategy: str, devices: int) -> None:
    data = {**vectors(100, 8)["data"], "shuffle": True}
    program = {**VECTORS, "data": data, "accumulate_steps": 3, "clip_grad_norm": 0.5, "precision": "bfloat16"}
    first, second = (losses(run_here(program, devices=devices, strategy=strategy)[1]) for _ in range(2))
    assert first == second
    assert len(first) == 5


def test_a_step_names_the_split_of_each_of_its_batches_and_sums_their_times() -> None:
    _, sink = run_here(vectors(100, 8, accumulate_steps=4), devices=3, strategy="dp")
    assert [step.splits for step in sink.of(Step)] == [(0, 0, 0, 0)] * 3 + [(1,)]
    assert [split.rows for split in sink.of(BatchSplit)] == [(3, 3, 2), (2, 2, 0)]
    assert sink.of(Outline)[0].steps_per_epoch == 4
    assert all(None not in step.backward_ms for step in sink.of(Step)[:3])


@pytest.mark.parametrize(
    ("strategy", "devices", "batch", "steps"),
    [("dp", 3, 8, 4), ("dp", 8, 30, 2), ("dp", 4, 7, 5), ("single", 1, 10, 3), ("dp", 2, 100, 9)],
)
@pytest.mark.parametrize("max_steps", [None, 3])
def test_what_was_planned_is_what_is_observed(
    strategy: str, devices: int, batch: int, steps: int, max_steps: int | None
) -> None:
    program = vectors(100, batch, accumulate_steps=steps, epochs=2, max_steps=max_steps)
    report = report_here(spec_of(program, devices=devices, strategy=strategy), 100)
    assert report.prediction.differences == []
    assert report.prediction.matches


def test_max_steps_counts_optimizer_steps() -> None:
    _, sink = run_here(vectors(100, 10, accumulate_steps=3, max_steps=2))
    assert [len(step.splits) for step in sink.of(Step)] == [3, 3]
    assert sink.of(Outline)[0].total_steps == 2


# -- clipping --------------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize(("clip", "moved"), [(0.01, 0.01), (1e6, None)])
def test_gradients_are_cut_to_the_norm_before_the_step(accumulate: int, clip: float, moved: float | None) -> None:
    optimizer = {"ref": "sgd", "args": {"lr": 1.0}}
    program = vectors(30, 10, optimizer=optimizer, clip_grad_norm=clip, accumulate_steps=accumulate, max_steps=1)
    spec = spec_of(program)
    run = entry.prepare_run(spec, context_of(1, Kept()))
    before = nn.utils.parameters_to_vector(run.strategy.model.parameters()).detach().clone()
    loop.train(run)
    step = float((nn.utils.parameters_to_vector(run.strategy.model.parameters()) - before).norm().detach())
    assert step > 0.1 if moved is None else step == pytest.approx(moved, rel=1e-3)


# -- schedules -------------------------------------------------------------------------------------


def test_the_learning_rate_moves_after_every_epoch() -> None:
    scheduler = {"ref": "step_lr", "args": {"step_size": 1, "gamma": 0.5}}
    _, sink = run_here(vectors(40, 10, scheduler=scheduler, epochs=4))
    assert rates(sink) == pytest.approx([0.1, 0.05, 0.025, 0.0125])


def test_the_learning_rate_moves_after_every_step_when_asked_to() -> None:
    scheduler = {"ref": "linear_lr", "args": {"start_factor": 0.25, "total_iters": 3}, "every": "step"}
    _, sink = run_here(vectors(40, 10, scheduler=scheduler))
    seen = [metric.value for metric in sink.of(MetricSample) if metric.name == "learning_rate"]
    assert seen[:4] == pytest.approx([0.025, 0.05, 0.075, 0.1])


def test_a_scheduler_may_be_anybodys() -> None:
    scheduler = {"ref": "torch.optim.lr_scheduler:ExponentialLR", "args": {"gamma": 0.1}}
    _, sink = run_here(vectors(40, 10, scheduler=scheduler, epochs=2))
    assert rates(sink) == pytest.approx([0.1, 0.01])


@pytest.mark.parametrize(
    ("scheduler", "message"),
    [
        ({"ref": "step"}, "program.scheduler.ref: unknown 'step'"),
        ({"ref": "step_lr"}, "program.scheduler.args: step_lr does not take them"),
        ({"ref": "one_cycle_lr", "args": {"max_lr": 0.1}}, "program.scheduler.args: one_cycle_lr does not take them"),
    ],
)
def test_a_scheduler_that_cannot_be_made_is_rejected(scheduler: dict[str, Any], message: str) -> None:
    with pytest.raises(RejectedByWorker, match=message):
        run_here(vectors(40, 10, scheduler=scheduler))


# -- precision -------------------------------------------------------------------------------------


class Dtypes(nn.Module):
    """Notes in what its layer computed."""

    seen: list[torch.dtype]

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 2)
        type(self).seen = []

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.fc(rows)
        self.seen.append(outputs.dtype)
        return outputs


@pytest.mark.parametrize(("strategy", "devices"), [("single", 1), ("dp", 2)])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("mode", ["train", "forward"])
def test_every_replica_computes_in_the_precision_of_the_spec(
    strategy: str, devices: int, precision: str, mode: str
) -> None:
    program = VECTORS if mode == "train" else FORWARD
    model = {"ref": "tests.unit.workers.training.test_optimization:Dtypes"}
    run_here({**program, "model": model, "precision": precision}, devices=devices, strategy=strategy)
    assert set(Dtypes.seen) == {getattr(torch, precision)}
    assert len(Dtypes.seen) == 4 * devices


def test_bfloat16_learns_what_float32_learns() -> None:
    program = vectors(100, 20, epochs=5, evaluate={"data": {"ref": "random_vectors", "args": VECTORS["data"]["args"]}})
    exact, rounded = run_here(program)[0], run_here({**program, "precision": "bfloat16"})[0]
    assert rounded.loss == pytest.approx(exact.loss, rel=0.05)
    assert rounded.loss != exact.loss
    assert rounded.metrics["accuracy"] == pytest.approx(exact.metrics["accuracy"], abs=0.03)


def test_float16_is_refused_where_there_is_no_gpu() -> None:
    with pytest.raises(RejectedByWorker, match=r'program\.precision: "float16" needs cuda.*use "bfloat16"'):
        run_here({**VECTORS, "precision": "float16"})
