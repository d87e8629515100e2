"""The training loop. A reader should know it from any PyTorch tutorial."""

import time
from collections.abc import Iterator, Sized
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import Any, cast

import torch
from torch.nn.utils import clip_grad_norm_
from torch.utils.data.distributed import DistributedSampler

from jobs.spec import Component
from jobs.telemetry import Outline, Result
from workers.training import position, saving
from workers.training.context import RejectedByWorker, Stopped
from workers.training.placement import moved
from workers.training.probe.recorder import sampled
from workers.training.probe.shapes import rows_of, shape_of
from workers.training.run import Run

#: Input and target; a target that the data lacks is None.
Batch = tuple[Any, Any]
RATE_SECONDS = 1.0


def train(run: Run) -> Result:
    """Train for `epochs`, or until `max_steps`. The result's loss is the last step's, averaged over ranks.

    A run that was saved begins where it was, which is right after an optimizer step.

    Raises:
        Stopped: the rank was told to stop.
    """
    run.strategy.model.train()
    rate, total_steps = _Rate(run), outline(run).total_steps
    while not run.over:
        for batches, waited in _groups(run, run.epoch):
            run.last_loss = train_step(run, run.epoch, batches, waited)
            _report_loss(run, run.last_loss)
            _move_learning_rate(run, "step", run.steps_done)
            _after_step(run, rate, batches)
            saving.after_step(run, total_steps)
        _move_learning_rate(run, "epoch", run.steps_done - 1)
        if run.evaluation is not None and (run.epoch + 1) % cast(Any, run.program.evaluate).every_epochs == 0:
            evaluate(run, run.epoch)
        run.over = _is_over(run) or run.epoch + 1 == run.program.epochs
        if not run.over:
            run.epoch, run.batches_done = run.epoch + 1, 0
    saving.at_end(run)
    return Result(None if run.last_loss is None else _mean_over_ranks(run, run.last_loss), run.metrics)


def train_step(run: Run, epoch: int, batches: list[Batch], waited: float) -> torch.Tensor:
    """One optimizer step over one batch, or over several whose gradients add up to those of all their rows at once."""
    assert run.optimizer is not None
    *others, last = zip(batches, _weights(run, batches), strict=True)
    with run.strategy.recorder.step("train", epoch, waited):
        run.optimizer.zero_grad()
        losses = []
        for batch, weight in others:
            with run.strategy.alone():
                losses.append(_add_gradients(run, batch, weight, alone=True))
        losses.append(_add_gradients(run, *last, alone=False))
        if run.program.clip_grad_norm is not None:
            run.scaler.unscale_(run.optimizer)
            clip_grad_norm_(run.strategy.model.parameters(), run.program.clip_grad_norm)
        run.scaler.step(run.optimizer)
        run.scaler.update()
    return losses[0] if len(losses) == 1 else torch.stack(losses).sum()


def _add_gradients(run: Run, batch: Batch, weight: float, *, alone: bool) -> torch.Tensor:
    assert run.loss is not None
    inputs, target = batch
    with _precision(run):
        outputs = run.strategy.model(moved(inputs, run.strategy.device))
        loss = run.loss(outputs, moved(target, _device_of(outputs)))
        if weight != 1:
            loss = loss * weight
    with run.strategy.recorder.backward(alone=alone):
        run.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
    return loss.detach()


@torch.no_grad()
def forward(run: Run) -> Result:
    """Call the model on every batch and look at nothing but the split (the tutorials' loop)."""
    run.strategy.model.eval()
    rate = _Rate(run)
    for epoch in range(run.program.epochs):
        for batches, waited in _groups(run, epoch):
            inputs, _ = batches[0]
            with run.strategy.recorder.step("forward", epoch, waited), _precision(run):
                run.strategy.model(moved(inputs, run.strategy.device))
            _after_step(run, rate, batches)
            if run.context.stopping():
                raise Stopped(f"told to stop after step {run.steps_done - 1}")
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
            inputs, target = pair(moved(batch, run.strategy.device))
            with run.strategy.recorder.step("eval", epoch, None), _precision(run):
                outputs = model(inputs)
            rows = rows_of(shape_of(inputs), 0) or 0
            target = moved(target, _device_of(outputs))
            with _precision(run):
                loss = float(run.loss(outputs, target))
            sums += torch.tensor([rows, loss * rows, _correct(outputs, target)], dtype=torch.float64)
            classifies = classifies and _is_classification(outputs, target)
        model.train()
    total = run.strategy.total(sums.to(run.strategy.device)).tolist()
    _report_evaluation(run, total, classifies)


# -- parts -----------------------------------------------------------------------------------------


def _groups(run: Run, epoch: int) -> Iterator[tuple[list[Batch], float]]:
    """The batches of one step after another, and the milliseconds that were spent waiting for them, until the steps
    run out. What is left at the end of the epoch makes a step too."""
    if isinstance(run.loader.sampler, DistributedSampler):
        run.loader.sampler.set_epoch(epoch)
    batches = position.batches(run)
    while not _is_over(run):
        began = time.perf_counter()
        group = [_checked(run, batch) for batch in islice(batches, run.program.accumulate_steps)]
        if not group:
            return
        yield group, (time.perf_counter() - began) * 1000.0


def _checked(run: Run, batch: Any) -> Batch:
    """One batch that has come. A rank that is slow in its input, on purpose, is so here."""
    straggler = run.strategy.straggler
    if straggler is not None:
        straggler.hold_input(straggler.device)
    inputs, target = pair(batch)
    if run.program.mode == "train":
        _require_target(run, target)
    return inputs, target


def _weights(run: Run, batches: list[Batch]) -> list[float]:
    """What each batch's loss counts in that of the step: its share of the rows where losses are means, else all."""
    rows = [rows_of(shape_of(inputs), 0) or 1 for inputs, _ in batches]
    if len(batches) == 1 or getattr(run.loss, "reduction", "mean") == "sum":
        return [1.0] * len(batches)
    return [count / sum(rows) for count in rows]


def _precision(run: Run) -> AbstractContextManager[object]:
    """Autocast in the precision that the spec asks for."""
    if run.program.precision == "float32":
        return nullcontext()
    return torch.autocast(run.context.kind, dtype=getattr(torch, run.program.precision))


def pair(batch: Any) -> Batch:
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


def _after_step(run: Run, rate: "_Rate", batches: list[Batch]) -> None:
    run.steps_done += 1
    run.batches_done += len(batches)
    rate.count(sum(rows_of(shape_of(inputs), 0) or 0 for inputs, _ in batches))


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


def _move_learning_rate(run: Run, every: str, step: int) -> None:
    """Say at what rate `step` was taken, and move on, if it is every step, or every epoch, that the rate moves."""
    assert run.optimizer is not None
    moves = run.program.scheduler.every if run.program.scheduler is not None else "epoch"
    if moves != every or step < 0:
        return
    if run.context.rank == 0 and (every == "epoch" or sampled(step)):
        run.strategy.recorder.metric("learning_rate", step, float(run.optimizer.param_groups[0]["lr"]))
    if run.scheduler is not None:
        run.scheduler.step()


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

    def count(self, rows: int) -> None:
        self._rows += rows * self._run.context.world_size
        passed = time.perf_counter() - self._since
        if passed >= RATE_SECONDS and self._run.context.rank == 0 and self._rows:
            self._run.strategy.recorder.metric("rows_per_second", self._run.steps_done - 1, self._rows / passed)
            self._rows, self._since = 0, time.perf_counter()


def outline(run: Run) -> Outline:
    """How long the run will be, as far as the length of the data tells."""
    batches = _length(run.loader)
    per_epoch = None if batches is None else -(-batches // run.program.accumulate_steps)
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
