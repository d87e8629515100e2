"""What a rank's batches weigh in a step of all ranks, where these have unequal numbers of rows.

Ranks average their gradients as equals. A loss is multiplied by the rank's rows times ranks over all rows, and so is
its gradient: the mean is then that of all rows together, under ddp and fsdp alike, whatever batches are accumulated.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from shardyard.script.sampler import ShareSampler
from workers.probe.shapes import rows_of, shape_of, tensors_in
from workers.training.placement import map_tensors
from workers.training.run_state import TrainingRun

#: Input and target; a target that the data lacks is None.
Batch = tuple[Any, Any]


def split_pair(batch: Any) -> Batch:
    """(input, target); a batch that is not a pair is all input."""
    if isinstance(batch, (tuple, list)) and len(batch) == 2:
        return batch[0], batch[1]
    return batch, None


def count_rows(batch: Any) -> int:
    inputs = split_pair(batch)[0]
    if type(inputs) is torch.Tensor and inputs.dim():
        return len(inputs)
    return rows_of(shape_of(inputs), 0) or 0


def adds_up_losses(run: TrainingRun) -> bool:
    """Whether the loss of a batch is the sum of its rows' losses, rather than the mean."""
    return getattr(run.loss, "reduction", "mean") == "sum"


def loss_weights(run: TrainingRun, batches: Sequence[Any]) -> list[float]:
    """The weight of each batch's loss in that of the step: its share of the rows if losses are means, else 1."""
    if adds_up_losses(run):
        return [1.0] * len(batches)
    sampler, rank = run.sampler, run.context.rank
    if sampler is not None:
        counts = _counts(run, sampler, len(batches))
        whole = sum(map(sum, counts))
        return [one[rank] * run.context.world_size / whole for one in counts]
    if len(batches) == 1:
        return [1.0]
    rows = [count_rows(batch) or 1 for batch in batches]
    return [count / sum(rows) for count in rows]


def rank_weight(run: TrainingRun, batches: int) -> float:
    """The weight of this rank's loss in the mean over ranks: 1 where all ranks have as many rows; 0 without any."""
    if run.sampler is None:
        return 1.0
    counts = _counts(run, run.sampler, batches)
    own = sum(one[run.context.rank] for one in counts)
    if adds_up_losses(run):
        return float(own > 0)
    return own * run.context.world_size / sum(map(sum, counts))


def rows_of_all(run: TrainingRun, own: int, batches: int) -> int:
    """Rows of all ranks in the next step, in which this rank has `own`."""
    if run.sampler is None:
        return own * run.context.world_size
    return sum(map(sum, _counts(run, run.sampler, batches)))


def cut_batches(run: TrainingRun, batches: list[Any]) -> list[Any]:
    """A rank that has no row of a batch has loaded one, since loaders make no empty batch; it is cut off here."""
    if run.sampler is None:
        return batches
    counts = _counts(run, run.sampler, len(batches))
    pairs = zip(batches, counts, strict=True)
    return [batch if one[run.context.rank] else map_tensors(batch, _without_rows) for batch, one in pairs]


def are_unequal(run: TrainingRun, batches: int) -> bool:
    """Whether ranks have unequal numbers of rows in the next step."""
    return run.sampler is not None and any(len(set(one)) > 1 for one in _counts(run, run.sampler, batches))


def _counts(run: TrainingRun, sampler: ShareSampler, batches: int) -> list[tuple[int, ...]]:
    """Rows of each rank in the next batches of the epoch."""
    done = run.progress.batches_done
    return [sampler.deal.counts(done + number) for number in range(batches)]


def _without_rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[:0] if tensor.dim() else tensor


def empty_loss(outputs: Any) -> torch.Tensor:
    """The loss of no rows: 0, with a gradient of 0 for every parameter, so that this rank takes part in the sum."""
    found = [tensor for tensor in tensors_in(outputs) if tensor.requires_grad]
    return torch.stack([tensor.float().sum() for tensor in found]).sum() * 0.0


@contextmanager
def without_statistics(model: nn.Module) -> Iterator[None]:
    """BatchNorm has no statistics of no rows, and keeps those that it has. SyncBatchNorm takes part in those of all
    ranks."""
    layers = [
        one
        for one in model.modules()
        if isinstance(one, _BatchNorm) and not isinstance(one, nn.SyncBatchNorm) and one.training
    ]
    for layer in layers:
        layer.eval()
    try:
        yield
    finally:
        for layer in layers:
            layer.train()
