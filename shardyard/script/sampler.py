"""Deals the rows of a data set to ranks in proportion to weights, with the same number of batches on each rank.

sampler = ShareSampler(len(data), 25, job.weights(), shuffle=True)       # 3:2 are 30 and 20 rows
loader = DataLoader(data, batch_sampler=sampler)
for epoch in range(epochs):
    sampler.set_epoch(epoch)
    for batch, (inputs, target) in enumerate(loader):
        loss = criterion(model(inputs), target) * sampler.loss_weight(batch)

DistributedDataParallel and FSDP average the gradients of ranks as equals. Multiplied by `loss_weight`, the mean loss of
each rank's rows counts as much as its rows do, and the gradient is that of one device on the batch of all ranks. This
presumes that a loss is the mean over its rows.
"""

import os
from collections.abc import Iterator, Sequence, Sized
from math import isfinite

from shardyard.contract.row_shares import UNEVEN, RowDeal, Uneven, weigh_rank

__all__ = ["ShareSampler"]


class ShareSampler:
    """A batch sampler: the row numbers of each batch of one rank, for `DataLoader(data, batch_sampler=...)`.

    `batch_size` is the mean over ranks. `weights` has a number for each rank. Ranks must have the same seed and the
    same epoch. The order is that of DistributedSampler, and so is each batch of all ranks together. `uneven` says what
    becomes of rows that do not divide among the ranks: "pad" repeats the first ones, "drop" leaves some out, and under
    "weigh" ranks have unequal numbers of them, perhaps none: then the batch is empty in the plan (`rows`), and has a
    single row, whose loss has the weight 0.

    Raises:
        TypeError, ValueError: an argument is not usable; the message says which.
    """

    def __init__(
        self,
        data: Sized | int,
        batch_size: int,
        weights: Sequence[float],
        *,
        rank: int | None = None,
        shuffle: bool = False,
        seed: int = 0,
        uneven: Uneven = "pad",
        drop_last: bool = False,
    ) -> None:
        rows = data if isinstance(data, int) else len(data)
        self._rank = int(os.environ.get("RANK", "0")) if rank is None else rank
        if rows < 0 or batch_size < 1:
            raise ValueError(f"{rows} rows in batches of {batch_size}: give a batch_size from 1")
        if not weights or not all(isfinite(weight) and weight > 0 for weight in weights):
            raise ValueError(f"weights are {list(weights)}: give a number above 0 for each rank")
        if not 0 <= self._rank < len(weights):
            raise ValueError(f"rank {self._rank} has no weight: there are {len(weights)}, for ranks from 0")
        if uneven not in UNEVEN:
            raise ValueError(f"uneven is {uneven!r}: give one of {', '.join(UNEVEN)}")
        self.deal = RowDeal(rows, batch_size * len(weights), tuple(map(float, weights)), uneven, drop_last)
        self._shuffle, self._seed, self._epoch = shuffle, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Of the rows that are shuffled, each epoch has its own order."""
        self._epoch = epoch

    def rows(self, batch: int) -> int:
        """Rows of this rank in a batch of the epoch, counted from 0."""
        return self.deal.counts(batch)[self._rank]

    def loss_weight(self, batch: int) -> float:
        """What to multiply the mean loss of this rank's rows by."""
        return weigh_rank(self.deal.counts(batch), self._rank)

    def __len__(self) -> int:
        return self.deal.batches

    def __iter__(self) -> Iterator[list[int]]:
        order = self._order()
        for batch in range(self.deal.batches):
            places = self.deal.places(batch, self._rank)
            # A rank without a row loads one that others have, since a loader makes no empty batch.
            yield [order[place % self.deal.rows] for place in places or [places.start - 1]]

    def _order(self) -> Sequence[int]:
        if not self._shuffle:
            return range(self.deal.rows)
        import torch  # scripts may import this module where torch is not installed

        generator = torch.Generator().manual_seed(self._seed + self._epoch)
        order: list[int] = torch.randperm(self.deal.rows, generator=generator).tolist()
        return order
