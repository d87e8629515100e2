"""The sampler that scripts use, by itself and in a DataLoader."""

from itertools import chain
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from shardyard import job
from shardyard.script.sampler import ShareSampler

DATA = TensorDataset(torch.arange(103))


def batches_of(rank: int, **options: Any) -> list[list[int]]:
    sampler = ShareSampler(DATA, 25, (3, 2), rank=rank, **options)
    assert len(sampler) == len(list(sampler))
    return [rows.tolist() for (rows,) in DataLoader(DATA, batch_sampler=sampler)]


def test_twenty_five_rows_a_rank_at_three_to_two_are_thirty_and_twenty() -> None:
    assert [len(batch) for batch in batches_of(0)] == [30, 30, 2]
    assert [len(batch) for batch in batches_of(1)] == [20, 20, 2]
    assert sorted(chain.from_iterable(batches_of(0) + batches_of(1))) == sorted([*range(103), 0])


def test_each_epoch_has_the_order_of_distributed_sampler() -> None:
    sampler = ShareSampler(103, 103, (1,), shuffle=True, seed=5)
    alone: DistributedSampler[Any] = DistributedSampler(DATA, 1, 0, seed=5)
    for epoch in (0, 1):
        sampler.set_epoch(epoch)
        alone.set_epoch(epoch)
        assert next(iter(sampler)) == list(alone)


def test_a_rank_without_a_row_loads_one_that_weighs_nothing() -> None:
    sampler = ShareSampler(7, 3, (1, 1), rank=1, uneven="weigh")
    assert list(sampler) == [[3, 4, 5], [6]]
    assert [sampler.rows(batch) for batch in range(2)] == [3, 0]
    assert [sampler.loss_weight(batch) for batch in range(2)] == [1.0, 0.0]
    assert ShareSampler(7, 3, (1, 1), rank=0, uneven="weigh").loss_weight(1) == 2.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": ()}, "number above 0"),
        ({"weights": (1.0, float("nan"))}, "number above 0"),
        ({"weights": (1.0, -2.0)}, "number above 0"),
        ({"rank": 2}, "rank 2 has no weight"),
        ({"batch_size": 0}, "batch_size from 1"),
        ({"uneven": "some"}, "pad, drop, weigh"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ShareSampler(**{"data": 10, "batch_size": 5, "weights": (3, 2), "rank": 0, **options})


def test_weights_are_those_of_the_job_and_equal_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHARDYARD_WEIGHTS", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert job.weights() == (1.0, 1.0, 1.0)
    monkeypatch.setenv("SHARDYARD_WEIGHTS", "3.0,2.5")
    assert job.weights() == (3.0, 2.5)
