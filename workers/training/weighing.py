"""Measures how long a row takes on each device, for weights that are not given: `parallelism.weights` "auto".

Before the first step each device trains a copy of the model on a few batches of the size that it would have if all had
equally many rows. Ranks do so at the same time, as in training. What is measured is thrown away, but for the times.
"""

import time
from collections.abc import Callable, Sequence, Sized
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import median
from typing import Any, cast

import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset

from jobs.model.spec import JobSpec
from jobs.protocol.records import RowWeights
from workers.runtime.context import RankContext, RankDevice, RejectedByWorker
from workers.training.batch_shares import split_pair
from workers.training.placement import move_tensors
from workers.training.recipes.data import collate_rows
from workers.training.run_state import Loss
from workers.training.straggler import find_straggler
from workers.training.strategies import PlacedModel, torch_device

#: Batches of each device; those at the beginning are not counted, and no more are begun after some time.
BATCHES, NOT_COUNTED, LONGEST_SECONDS = 20, 3, 10.0
FEWEST = 5
#: Devices whose times differ by no more are the same: that is noise.
SAME = 1.05


@dataclass(frozen=True, slots=True)
class SpeedTrial:
    """What is run on each device: `model` is a copy, which may be changed."""

    spec: JobSpec
    context: RankContext
    dataset: Dataset[Any]
    model: nn.Module
    loss: Loss | None


def settle_weights(trial: SpeedTrial, strategy: PlacedModel, saved: Sequence[float] | None) -> JobSpec:
    """The spec with the weights that this run has, which are put into effect. `saved` are those of the run that is
    resumed: it goes on with them. All ranks call it together."""
    spec, context = trial.spec, trial.context
    told = _find_weights(trial, strategy, saved)
    if context.rank == 0:
        strategy.recorder.emit(told)
    strategy.set_weights(told.weights)
    how = spec.parallelism.model_copy(update={"weights": told.weights})
    return spec.model_copy(update={"parallelism": how})


def _find_weights(trial: SpeedTrial, strategy: PlacedModel, saved: Sequence[float] | None) -> RowWeights:
    spec, context = trial.spec, trial.context
    if spec.weights is not None:
        return RowWeights(spec.weights, "spec")
    if saved is not None:
        return RowWeights(tuple(saved), "checkpoint")
    row_ms = torch.zeros(spec.all_devices, dtype=torch.float64)
    strategy.total(torch.zeros(1, device=strategy.device))  # ranks begin at once
    for device, each in zip(context.devices, measure_rows(trial), strict=True):
        row_ms[device.logical] = each
    known = strategy.total(row_ms.to(strategy.device)).tolist()
    return RowWeights(choose_weights(known), "measured", tuple(known))


def measure_rows(trial: SpeedTrial) -> list[float]:
    """Milliseconds of a row on each device of this rank.

    Raises:
        RejectedByWorker: the data set only iterates, or is empty.
    """
    data, context = trial.spec.recipe.data, trial.context
    if isinstance(trial.dataset, IterableDataset) or not hasattr(trial.dataset, "__len__"):
        raise RejectedByWorker(
            f"parallelism.weights: {data.ref} only iterates, and rows are measured on some of them; list the weights"
        )
    rows = max(1, data.batch_size // (1 if context.world_size > 1 else len(context.devices)))
    rows = min(rows, len(cast(Sized, trial.dataset)))
    if not rows:
        raise RejectedByWorker("program.data: the data set is empty")
    batch = _load_rows(trial.dataset, rows)
    return [_time_batches(trial, device, batch) / rows for device in context.devices]


def choose_weights(row_ms: Sequence[float]) -> tuple[float, ...]:
    """In proportion to the devices' speeds, with 1 as their mean; equal ones where the times are the same."""
    if max(row_ms) <= SAME * min(row_ms):
        return (1.0,) * len(row_ms)
    speeds = [1 / each for each in row_ms]
    return tuple(round(speed * len(speeds) / sum(speeds), 4) for speed in speeds)


def _load_rows(dataset: Dataset[Any], rows: int) -> Any:
    get_all: Any = getattr(dataset, "__getitems__", None)
    return collate_rows(get_all(list(range(rows))) if get_all else [dataset[row] for row in range(rows)])


def _time_batches(trial: SpeedTrial, device: RankDevice, batch: Any) -> float:
    """Milliseconds of a batch on a device: the median of some."""
    where = torch_device(device)
    inputs, target = split_pair(move_tensors(batch, where))
    model = trial.model.to(where).train(trial.spec.recipe.mode == "train")
    slow = find_straggler(trial.spec, trial.context)
    call: Callable[..., Any] = model if slow is None else slow.slow_down(device.logical, model)
    finish = torch.cuda.synchronize if device.kind == "cuda" else lambda _: None
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < BATCHES and (len(times) < FEWEST or time.perf_counter() - began < LONGEST_SECONDS):
        finish(where)
        start = time.perf_counter()
        _train_on(trial, call, inputs, target, where)
        finish(where)
        times.append((time.perf_counter() - start) * 1000)
    model.zero_grad(set_to_none=True)
    return median(times[NOT_COUNTED:])


def _train_on(trial: SpeedTrial, call: Callable[..., Any], inputs: Any, target: Any, where: torch.device) -> None:
    precision = trial.spec.recipe.precision
    cast_to = nullcontext() if precision == "float32" else torch.autocast(where.type, dtype=getattr(torch, precision))
    if trial.spec.recipe.mode == "forward":
        with torch.no_grad(), cast_to:
            call(inputs)
        return
    assert trial.loss is not None
    with cast_to:
        loss = trial.loss(call(inputs), target)
    loss.backward()  # type: ignore[no-untyped-call]
