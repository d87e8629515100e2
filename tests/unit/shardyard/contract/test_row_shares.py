"""Rows in proportion to weights, and the gradient of weighed ranks against that of one device on the whole batch."""

from fractions import Fraction
from itertools import chain
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DistributedSampler, TensorDataset

from shardyard.contract.row_shares import RowDeal, Uneven, divide_rows, weigh_rank

weight_lists = st.lists(st.floats(0.001, 1000), min_size=1, max_size=9).map(tuple)
rows = st.integers(0, 300)
uneven = st.sampled_from(["pad", "drop", "weigh"])


def test_fifty_rows_at_three_to_two_are_thirty_and_twenty() -> None:
    assert divide_rows(50, (3.0, 2.0)) == (30, 20)
    assert divide_rows(10, (3.0, 3.0, 2.0)) == (4, 4, 2)
    assert divide_rows(4, (1000.0, 1.0, 1.0)) == (2, 1, 1)
    assert divide_rows(2, (1.0, 9.0, 9.0)) == (1, 1, 0)


@given(rows, weight_lists)
def test_all_rows_are_divided_and_each_device_is_within_a_row_of_its_share(
    count: int, weights: tuple[float, ...]
) -> None:
    shares = divide_rows(count, weights)
    assert sum(shares) == count
    assert len(shares) == len(weights)
    assert min(shares) >= (count >= len(weights))
    exact = [count * Fraction(weight) / sum(map(Fraction, weights)) for weight in weights]
    if min(exact) >= 1:
        assert all(abs(share - wanted) < 1 for share, wanted in zip(shares, exact, strict=True))


@given(st.integers(1, 200), st.integers(1, 20), weight_lists, uneven, st.booleans(), st.integers(0, 3))
def test_each_batch_of_all_ranks_has_the_rows_that_it_has_without_weights(
    count: int, batch: int, weights: tuple[float, ...], how: Uneven, drop_last: bool, epoch: int
) -> None:
    ranks = len(weights)
    deal = RowDeal(count, batch * ranks, weights, how, drop_last)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(epoch)).tolist()
    dealt = [
        [order[place % count] for rank in range(ranks) for place in deal.places(number, rank)]
        for number in range(deal.batches)
    ]

    if how == "weigh" or drop_last:  # one device whose batches are those of all ranks together
        last = count - count % (batch * ranks) if drop_last else count
        assert dealt == [order[start : start + batch * ranks] for start in range(0, last, batch * ranks)]
        return
    per_rank = []
    for rank in range(ranks):
        sampler: DistributedSampler[Any] = DistributedSampler(
            TensorDataset(torch.arange(count)), ranks, rank, shuffle=True, drop_last=how == "drop"
        )
        sampler.set_epoch(epoch)
        mine = list(sampler) if how == "pad" or count >= ranks else []  # torch's own gives a rank too much here
        per_rank.append([mine[start : start + batch] for start in range(0, len(mine), batch)])
    together = [sorted(chain.from_iterable(parts)) for parts in zip(*per_rank, strict=True)]
    assert [sorted(one) for one in dealt] == together
    assert all(min(deal.counts(number)) > 0 for number in range(deal.batches))


@given(st.integers(1, 60), st.integers(1, 12), weight_lists, uneven, st.integers(0, 2**31))
def test_the_mean_over_ranks_is_the_gradient_of_one_device_on_the_whole_batch(
    count: int, batch: int, weights: tuple[float, ...], how: Uneven, seed: int
) -> None:
    torch.manual_seed(seed)
    data, target = torch.randn(count, 3, dtype=torch.float64), torch.randn(count, 2, dtype=torch.float64)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    deal = RowDeal(count, batch * len(weights), weights, how)

    def gradient(places: list[int]) -> torch.Tensor:
        if not places:
            return torch.zeros(sum(parameter.numel() for parameter in model.parameters()), dtype=torch.float64)
        chosen = [place % count for place in places]
        loss = nn.functional.mse_loss(model(data[chosen]), target[chosen])
        return torch.cat([one.flatten() for one in torch.autograd.grad(loss, list(model.parameters()))])

    for number in range(deal.batches):
        counts = deal.counts(number)
        parts = [list(deal.places(number, rank)) for rank in range(len(weights))]
        weighed = [gradient(part) * weigh_rank(counts, rank) for rank, part in enumerate(parts)]
        alone = gradient(list(chain.from_iterable(parts)))
        assert torch.stack(weighed).mean(dim=0).sub(alone).norm() <= 1e-9 * (1 + alone.norm())


@pytest.mark.parametrize(("how", "read", "last"), [("pad", 92, (23,) * 4), ("drop", 88, (22,) * 4)])
def test_ninety_rows_on_four_ranks_are_padded_or_dropped(how: Uneven, read: int, last: tuple[int, ...]) -> None:
    deal = RowDeal(90, 120, (1.0,) * 4, how)
    assert (deal.read, deal.batches, deal.counts(0)) == (read, 1, last)


def test_ninety_rows_on_four_ranks_are_weighed_by_what_each_has() -> None:
    deal = RowDeal(90, 120, (1.0,) * 4, "weigh")
    assert (deal.read, deal.counts(0)) == (90, (23, 23, 22, 22))
    assert weigh_rank(deal.counts(0), 0) == 23 * 4 / 90
