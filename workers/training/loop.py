"""The training loop, written as in any PyTorch tutorial."""

import time
from collections.abc import Iterator, Sized
from itertools import islice
from typing import Any, cast

import torch
from torch.nn.utils import clip_grad_norm_
from torch.utils.data.distributed import DistributedSampler

from jobs.model.spec import ComponentSpec
from jobs.protocol.records import FLOP_STEP, Outline, Result
from shardyard.script.sampler import ShareSampler
from workers.probe.shapes import rows_of, shape_of
from workers.probe.step_records import is_sampled
from workers.runtime.context import RejectedByWorker, StopTraining
from workers.training import batch_shares
from workers.training.batch_shares import count_rows, split_pair
from workers.training.checkpoint import data_position, protocol
from workers.training.placement import move_tensors
from workers.training.run_state import TrainingRun

RATE_SECONDS = 1.0


def train(run: TrainingRun) -> Result:
    """Train for `epochs`, or until `max_steps`. The result's loss is the last step's, averaged over ranks.

    A resumed run begins where it was saved, which is right after an optimizer step.

    Raises:
        StopTraining: the rank was told to stop.
    """
    run.strategy.model.train()
    rate, total_steps = _RateReporter(run), make_outline(run).total_steps
    counted = run.progress.steps_done + FLOP_STEP
    while not run.progress.is_over:
        for batches, waited in _step_batches(run, run.progress.epoch):
            take_step = _count_flop if run.progress.steps_done == counted else train_step
            run.progress.last_loss = take_step(run, run.progress.epoch, batches, waited)
            _report_loss(run, run.progress.last_loss, batch_shares.rank_weight(run, len(batches)))
            if run.moves_rate_every_step:
                _move_learning_rate(run, run.progress.steps_done)
            _after_step(run, rate, batches)
            protocol.after_step(run, total_steps)
        if not run.moves_rate_every_step and run.progress.steps_done:
            _move_learning_rate(run, run.progress.steps_done - 1)
        if run.evaluation is not None and (run.progress.epoch + 1) % cast(Any, run.program.evaluate).every_epochs == 0:
            evaluate(run, run.progress.epoch)
        run.progress.is_over = _is_over(run) or run.progress.epoch + 1 == run.program.epochs
        if not run.progress.is_over:
            run.progress.epoch, run.progress.batches_done = run.progress.epoch + 1, 0
    run.send_pending_loss()
    protocol.save_at_end(run)
    return Result(
        None if run.progress.last_loss is None else _mean_over_ranks(run, run.progress.last_loss), run.progress.metrics
    )


def train_step(run: TrainingRun, epoch: int, batches: list[Any], waited: float) -> torch.Tensor:
    """One optimizer step over one batch, or over several whose gradients add up to those of all their rows at once."""
    optimizer, strategy, scaler = run.optimizer, run.strategy, run.scaler
    assert optimizer is not None
    proof = run.proof if run.proof is not None and run.proof.is_due and run.proof.begin(run, batches) else None
    with strategy.recorder.step("train", epoch, waited):
        optimizer.zero_grad()
        loss = _add_all_gradients(run, batches)
        if proof is not None:
            proof.keep_gradients(run)
        if run.program.clip_grad_norm is not None:
            if scaler is not None:
                scaler.unscale_(optimizer)
            clip_grad_norm_(strategy.model.parameters(), run.program.clip_grad_norm)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
    if proof is not None:
        proof.compare(run)
    return loss


def _count_flop(run: TrainingRun, epoch: int, batches: list[Any], waited: float) -> torch.Tensor:
    """The step in which floating-point operations are counted."""
    with run.strategy.recorder.count_flop(run.strategy.model):
        return train_step(run, epoch, batches, waited)


def _add_all_gradients(run: TrainingRun, batches: list[Any]) -> torch.Tensor:
    *others, last = zip(batches, batch_shares.loss_weights(run, batches), strict=True)
    if not others:
        return _add_gradients(run, *last)
    losses = []
    for batch, weight in others:
        with run.strategy.alone():
            losses.append(_add_gradients(run, batch, weight, alone=True))
    losses.append(_add_gradients(run, *last))
    return torch.stack(losses).sum()


def _add_gradients(run: TrainingRun, batch: Any, weight: float = 1.0, *, alone: bool = False) -> torch.Tensor:
    strategy, measure = run.strategy, run.loss
    assert measure is not None
    inputs, target = split_pair(batch)
    if target is None:
        _require_no_target(run)
    if run.sampler is not None and not count_rows(batch):
        loss = _add_nothing(run, inputs)
    elif run.is_plain:  # nothing to move to a device, and no autocast
        loss = measure(strategy.model(inputs), target)
    else:
        with run.autocast:
            outputs = strategy.model(move_tensors(inputs, strategy.device))
            loss = measure(outputs, move_tensors(target, _device_of(outputs)))
    if weight != 1.0:
        loss = loss * weight
    strategy.recorder.backward((loss if run.scaler is None else run.scaler.scale(loss)).backward, alone=alone)
    return loss.detach()


def _add_nothing(run: TrainingRun, inputs: Any) -> torch.Tensor:
    """The loss of a batch without rows: other ranks have some, and wait for this one's gradients."""
    model = run.strategy.model
    with batch_shares.without_statistics(model), run.autocast:
        return batch_shares.empty_loss(model(move_tensors(inputs, run.strategy.device)))


@torch.no_grad()
def forward(run: TrainingRun) -> Result:
    """Call the model on every batch, only to observe the split (the tutorials' loop)."""
    run.strategy.model.eval()
    rate = _RateReporter(run)
    for epoch in range(run.program.epochs):
        run.progress.batches_done = 0
        for batches, waited in _step_batches(run, epoch):
            inputs, _ = split_pair(batches[0])
            with run.strategy.recorder.step("forward", epoch, waited), run.autocast:
                run.strategy.model(move_tensors(inputs, run.strategy.device))
            _after_step(run, rate, batches)
            if run.context.stopping():
                raise StopTraining(f"told to stop after step {run.progress.steps_done - 1}")
        if _is_over(run):
            break
    return Result(None, {})


@torch.no_grad()
def evaluate(run: TrainingRun, epoch: int) -> None:
    """Loss and accuracy over the evaluation data, each row counted once whatever the number of ranks.

    `eval_loss` is the mean of the batches' losses weighted by their rows; `accuracy` is the share of
    rows whose largest output is the target, where outputs are (N, classes) and targets whole numbers.
    """
    assert run.evaluation is not None
    assert run.loss is not None
    run.send_pending_loss()
    sums = torch.zeros(3, dtype=torch.float64)  # rows, loss times rows, correct
    classifies = True
    with run.strategy.evaluated() as model:
        model.eval()
        for batch in run.evaluation:
            inputs, target = split_pair(move_tensors(batch, run.strategy.device))
            with run.strategy.recorder.step("eval", epoch, None), run.autocast:
                outputs = model(inputs)
            rows = rows_of(shape_of(inputs), 0) or 0
            target = move_tensors(target, _device_of(outputs))
            with run.autocast:
                loss = float(run.loss(outputs, target))
            sums += torch.tensor([rows, loss * rows, _count_correct(outputs, target)], dtype=torch.float64)
            classifies = classifies and _is_classification(outputs, target)
        model.train()
    total = run.strategy.total(sums.to(run.strategy.device)).tolist()
    _report_evaluation(run, total, classifies)


# -- parts -----------------------------------------------------------------------------------------


def _step_batches(run: TrainingRun, epoch: int) -> Iterator[tuple[list[Any], float]]:
    """The batches of each step, and the milliseconds spent waiting for them, until all steps are done. The remaining
    batches of an epoch make a step too. A straggler that is slow in its input sleeps here."""
    sampler = run.sampler or run.loader.sampler
    if isinstance(sampler, (DistributedSampler, ShareSampler)):
        sampler.set_epoch(epoch)
    batches, count, straggler = (
        data_position.remaining_batches(run),
        run.program.accumulate_steps,
        run.strategy.straggler,
    )
    while not _is_over(run):
        began = time.perf_counter()
        group = list(islice(batches, count))
        if not group:
            return
        if straggler is not None:
            for _ in group:
                straggler.hold_input(straggler.device)
        group = batch_shares.cut_batches(run, group)
        yield group, (time.perf_counter() - began) * 1000.0


def _require_no_target(run: TrainingRun) -> None:
    """Require a target for built-in losses; a user's own loss may need none."""
    loss = cast(ComponentSpec, run.program.loss)
    if ":" not in loss.ref:
        raise RejectedByWorker(
            f"program.data.ref: {run.program.data.ref!r} yields no target, which loss {loss.ref!r} needs; "
            "yield (input, target) pairs"
        )


def _after_step(run: TrainingRun, rate: "_RateReporter", batches: list[Any]) -> None:
    rate.count(batches)
    run.progress.steps_done += 1
    run.progress.batches_done += len(batches)
    if run.profiler.request[0] != run.profiler.seen:
        run.profiler.on_step()


def _is_over(run: TrainingRun) -> bool:
    return run.program.max_steps is not None and run.progress.steps_done >= run.program.max_steps


def _report_loss(run: TrainingRun, loss: torch.Tensor, weight: float) -> None:
    """Report the loss, which has the given weight in the mean over ranks; on cuda and under ddp only on steps chosen
    beforehand, because reading it waits for the device or for ranks. The mean over ranks is computed during the next
    step, and sent after it."""
    context, step = run.context, run.progress.steps_done
    if run.pending_loss is not None:
        run.send_pending_loss()
    if not (run.reads_every_loss or is_sampled(step)):
        return
    if context.world_size == 1:
        run.strategy.recorder.send_metric("loss", step, loss.item())
        return
    if weight:
        run.strategy.recorder.send_metric("loss", step, loss.item() / weight, context.devices[0].logical)
    total = _copy_to_sum(run, loss)
    arrived = run.strategy.begin_total(total)

    def send_mean() -> None:
        arrived()
        if context.rank == 0:
            run.strategy.recorder.send_metric("loss", step, total.item() / context.world_size)

    run.pending_loss = send_mean


def _copy_to_sum(run: TrainingRun, loss: torch.Tensor) -> torch.Tensor:
    """Of one type on all ranks: the loss of no rows may have another than that of some."""
    return loss.clone() if run.sampler is None else loss.to(torch.float64, copy=True)


def _mean_over_ranks(run: TrainingRun, loss: torch.Tensor) -> float:
    if run.context.world_size == 1:
        return loss.item()
    return float(run.strategy.total(_copy_to_sum(run, loss)).item()) / run.context.world_size


def _move_learning_rate(run: TrainingRun, step: int) -> None:
    """Report the learning rate of `step`, and advance the scheduler."""
    assert run.optimizer is not None
    if run.context.rank == 0 and (not run.moves_rate_every_step or is_sampled(step)):
        run.strategy.recorder.send_metric("learning_rate", step, float(run.optimizer.param_groups[0]["lr"]))
    if run.scheduler is not None:
        run.scheduler.step()


def _report_evaluation(run: TrainingRun, total: list[float], classifies: bool) -> None:
    rows, loss, correct = total
    if rows == 0:
        return
    run.progress.metrics["eval_loss"] = loss / rows
    if classifies:
        run.progress.metrics["accuracy"] = correct / rows
    if run.context.rank == 0:
        for name, value in run.progress.metrics.items():
            run.strategy.recorder.send_metric(name, max(run.progress.steps_done - 1, 0), value)


def _is_classification(outputs: Any, target: Any) -> bool:
    return (
        isinstance(outputs, torch.Tensor)
        and isinstance(target, torch.Tensor)
        and outputs.dim() == 2
        and target.dim() == 1
        and not target.is_floating_point()
    )


def _count_correct(outputs: Any, target: Any) -> int:
    return int((outputs.argmax(dim=1) == target).sum()) if _is_classification(outputs, target) else 0


def _device_of(outputs: Any) -> torch.device:
    return outputs.device if isinstance(outputs, torch.Tensor) else torch.device("cpu")


class _RateReporter:
    """Rows per second, about once a second: rank 0 sends those of all ranks, and each rank of a group its own."""

    def __init__(self, run: TrainingRun) -> None:
        self._run = run
        self._rows = self._rows_of_all = 0  # of this rank, and of all
        self._since = time.perf_counter()

    def count(self, batches: list[Any]) -> None:
        own = sum(map(count_rows, batches))
        self._rows += own
        self._rows_of_all += batch_shares.rows_of_all(self._run, own, len(batches))
        passed = time.perf_counter() - self._since
        if passed < RATE_SECONDS or not self._rows:
            return
        context, step, rate = self._run.context, self._run.progress.steps_done, self._rows / passed
        if context.world_size > 1:
            self._run.strategy.recorder.send_metric("rows_per_second", step, rate, context.devices[0].logical)
        if context.rank == 0:
            self._run.strategy.recorder.send_metric("rows_per_second", step, self._rows_of_all / passed)
        self._rows = self._rows_of_all = 0
        self._since = time.perf_counter()


def make_outline(run: TrainingRun) -> Outline:
    """The length of the run, as far as the length of the data is known."""
    batches = _length_of(run.loader)
    per_epoch = None if batches is None else -(-batches // run.program.accumulate_steps)
    total = None if per_epoch is None else per_epoch * run.program.epochs
    if run.program.max_steps is not None:
        total = run.program.max_steps if total is None else min(total, run.program.max_steps)
    return Outline(
        epochs=run.program.epochs,
        steps_per_epoch=per_epoch,
        total_steps=total,
        batch_size=run.program.data.batch_size,
        dataset_rows=_length_of(run.loader.dataset),
        gradient_bytes=run.strategy.gradient_bytes,
    )


def _length_of(value: Any) -> int | None:
    try:
        return len(cast(Sized, value))
    except TypeError:  # an iterable data set
        return None
