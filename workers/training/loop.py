"""The training loop. A reader should know it from any PyTorch tutorial."""

import time
from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from jobs.spec import Component, RecipeProgram
from jobs.telemetry import Outline, Result
from workers.training.context import RankContext, RejectedByWorker, Stopped
from workers.training.placement import moved
from workers.training.probe.recorder import sampled
from workers.training.probe.shapes import rows_of, shape_of
from workers.training.strategies import Strategy

Loss = Callable[[Any, Any], torch.Tensor]
RATE_SECONDS = 1.0


@dataclass(slots=True)
class Run:
    """Everything that the loop works with. `loss` and `optimizer` are there when the mode is train."""

    program: RecipeProgram
    context: RankContext
    strategy: Strategy
    loader: DataLoader[Any]
    loss: Loss | None = None
    optimizer: Optimizer | None = None
    evaluation: DataLoader[Any] | None = None
    steps_done: int = 0
    metrics: dict[str, float] = field(default_factory=dict)


def train(run: Run) -> Result:
    """Train for `epochs`, or until `max_steps`. The result's loss is the last step's, averaged over ranks.

    Raises:
        Stopped: the rank was told to stop.
    """
    run.strategy.model.train()
    rate, loss = _Rate(run), None
    for epoch in range(run.program.epochs):
        for inputs, target, waited in _batches(run, epoch):
            _require_target(run, target)
            loss = train_step(run, epoch, inputs, target, waited)
            _report_loss(run, loss)
            _after_step(run, rate, inputs)
        _report_learning_rate(run)
        if run.evaluation is not None and (epoch + 1) % cast(Any, run.program.evaluate).every_epochs == 0:
            evaluate(run, epoch)
        if _is_over(run):
            break
    return Result(None if loss is None else _mean_over_ranks(run, loss), run.metrics)


def train_step(run: Run, epoch: int, inputs: Any, target: Any, waited: float) -> torch.Tensor:
    assert run.optimizer is not None
    assert run.loss is not None
    with run.strategy.recorder.step("train", epoch, waited):
        run.optimizer.zero_grad()
        outputs = run.strategy.model(inputs)
        loss = run.loss(outputs, moved(target, _device_of(outputs)))
        with run.strategy.recorder.backward():
            loss.backward()  # type: ignore[no-untyped-call]
        run.optimizer.step()
    return loss.detach()


@torch.no_grad()
def forward(run: Run) -> Result:
    """Call the model on every batch and look at nothing but the split (the tutorials' loop)."""
    run.strategy.model.eval()
    rate = _Rate(run)
    for epoch in range(run.program.epochs):
        for inputs, _, waited in _batches(run, epoch):
            with run.strategy.recorder.step("forward", epoch, waited):
                run.strategy.model(inputs)
            _after_step(run, rate, inputs)
        if _is_over(run):
            break
    return Result(None, {})


@torch.no_grad()
def evaluate(run: Run, epoch: int) -> None:
    """Loss and accuracy over the evaluation data, each row counted once whatever the number of ranks.

    `eval_loss` is the mean of the batches' losses weighted by their rows; `accuracy` is the share of
    rows whose largest output is the target, where outputs are (N, classes) and targets whole numbers.
    """
    assert run.evaluation is not None
    assert run.loss is not None
    sums = torch.zeros(3, dtype=torch.float64)  # rows, loss times rows, correct
    classifies = True
    with run.strategy.evaluated() as model:
        model.eval()
        for batch in run.evaluation:
            inputs, target = _pair(moved(batch, run.strategy.device))
            with run.strategy.recorder.step("eval", epoch, None):
                outputs = model(inputs)
            rows = rows_of(shape_of(inputs), 0) or 0
            target = moved(target, _device_of(outputs))
            loss = float(run.loss(outputs, target))
            sums += torch.tensor([rows, loss * rows, _correct(outputs, target)], dtype=torch.float64)
            classifies = classifies and _is_classification(outputs, target)
        model.train()
    total = run.strategy.total(sums.to(run.strategy.device)).tolist()
    _report_evaluation(run, total, classifies)


# -- parts -----------------------------------------------------------------------------------------


def _batches(run: Run, epoch: int) -> Iterator[tuple[Any, Any, float]]:
    """Input, target and the milliseconds that were spent waiting for them, until the steps run out."""
    if isinstance(run.loader.sampler, DistributedSampler):
        run.loader.sampler.set_epoch(epoch)
    began = time.perf_counter()
    for batch in run.loader:
        inputs, target = _pair(batch)
        inputs = moved(inputs, run.strategy.device)
        yield inputs, target, (time.perf_counter() - began) * 1000.0
        if _is_over(run):
            return
        began = time.perf_counter()


def _pair(batch: Any) -> tuple[Any, Any]:
    """(input, target); a batch that is not a pair is all input."""
    if isinstance(batch, (tuple, list)) and len(batch) == 2:
        return batch[0], batch[1]
    return batch, None


def _require_target(run: Run, target: Any) -> None:
    loss = cast(Component, run.program.loss)
    if target is None and ":" not in loss.ref:
        raise RejectedByWorker(
            f"program.data.ref: {run.program.data.ref!r} yields no target, which loss {loss.ref!r} needs; "
            "yield (input, target) pairs"
        )


def _after_step(run: Run, rate: "_Rate", inputs: Any) -> None:
    run.steps_done += 1
    rate.count(rows_of(shape_of(inputs), 0))
    if run.context.stopping():
        raise Stopped(f"told to stop after step {run.steps_done - 1}")


def _is_over(run: Run) -> bool:
    return run.program.max_steps is not None and run.steps_done >= run.program.max_steps


def _report_loss(run: Run, loss: torch.Tensor) -> None:
    """On cuda and under ddp only on the steps chosen beforehand: reading it there waits for device or ranks."""
    costly = run.context.kind == "cuda" or run.context.world_size > 1
    if costly and not sampled(run.steps_done):
        return
    if run.context.world_size > 1:
        run.strategy.recorder.metric("loss", run.steps_done, loss.item(), run.context.devices[0].logical)
    mean = _mean_over_ranks(run, loss)
    if run.context.rank == 0:
        run.strategy.recorder.metric("loss", run.steps_done, mean)


def _mean_over_ranks(run: Run, loss: torch.Tensor) -> float:
    return float(run.strategy.total(loss.clone()).item()) / run.context.world_size


def _report_learning_rate(run: Run) -> None:
    assert run.optimizer is not None
    if run.context.rank == 0 and run.steps_done:
        run.strategy.recorder.metric("learning_rate", run.steps_done - 1, float(run.optimizer.param_groups[0]["lr"]))


def _report_evaluation(run: Run, total: list[float], classifies: bool) -> None:
    rows, loss, correct = total
    if rows == 0:
        return
    run.metrics["eval_loss"] = loss / rows
    if classifies:
        run.metrics["accuracy"] = correct / rows
    if run.context.rank == 0:
        for name, value in run.metrics.items():
            run.strategy.recorder.metric(name, max(run.steps_done - 1, 0), value)


def _is_classification(outputs: Any, target: Any) -> bool:
    return (
        isinstance(outputs, torch.Tensor)
        and isinstance(target, torch.Tensor)
        and outputs.dim() == 2
        and target.dim() == 1
        and not target.is_floating_point()
    )


def _correct(outputs: Any, target: Any) -> int:
    return int((outputs.argmax(dim=1) == target).sum()) if _is_classification(outputs, target) else 0


def _device_of(outputs: Any) -> torch.device:
    return outputs.device if isinstance(outputs, torch.Tensor) else torch.device("cpu")


class _Rate:
    """Rows per second over all ranks, sent by rank 0 about once a second."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._rows = 0
        self._since = time.perf_counter()

    def count(self, rows: int | None) -> None:
        self._rows += (rows or 0) * self._run.context.world_size
        passed = time.perf_counter() - self._since
        if passed >= RATE_SECONDS and self._run.context.rank == 0 and self._rows:
            self._run.strategy.recorder.metric("rows_per_second", self._run.steps_done - 1, self._rows / passed)
            self._rows, self._since = 0, time.perf_counter()


def outline(run: Run) -> Outline:
    """How long the run will be, as far as the length of the data tells."""
    per_epoch = _length(run.loader)
    total = None if per_epoch is None else per_epoch * run.program.epochs
    if run.program.max_steps is not None:
        total = run.program.max_steps if total is None else min(total, run.program.max_steps)
    return Outline(
        epochs=run.program.epochs,
        steps_per_epoch=per_epoch,
        total_steps=total,
        batch_size=run.program.data.batch_size,
        dataset_rows=_length(run.loader.dataset),
    )


def _length(value: Any) -> int | None:
    try:
        return len(cast(Sized, value))
    except TypeError:  # a data set that only iterates
        return None
