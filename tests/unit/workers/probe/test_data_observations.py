"""What the probe sees of passes over data, of evaluation, and of losses, in one program on two ranks."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

from jobs.protocol.probe_records import Activity, Loaded, LossWeights, Noise
from jobs.protocol.records import Step
from tests.support.probe_runs import Seen, backward, learn, watched_ranks

IGNORED = -100
#: Words of a rank's sentences, of which there are four.
WORDS = 5, 8


class Numbers(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.arange(20.0).unsqueeze(1))


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.tags, self.dropout = nn.Embedding(10, 8), nn.Linear(8, 3), nn.Dropout(0.1)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.tags(self.dropout(self.words(words)))
        return out


def program(store: str, rank: int) -> None:
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    torch.manual_seed(0)
    rows = TensorDataset(torch.randint(0, 10, (16, 10)), torch.randint(0, 3, (16, 10)))
    held_out = TensorDataset(*(tensor[:5] for tensor in rows.tensors))
    net = DistributedDataParallel(Tagger())
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    sampler: DistributedSampler[Any] = DistributedSampler(rows)
    for epoch in range(3):
        sampler.set_epoch(min(epoch, 1))
        for words, tags in DataLoader(rows, 4, sampler=sampler):
            tags[:, WORDS[rank] :] = IGNORED
            loss = nn.functional.cross_entropy(net(words).transpose(1, 2), tags, ignore_index=IGNORED)
            learn(optimizer, loss / 2)
    dist.all_reduce(loss.detach())
    outputs = []
    with torch.no_grad():
        for words, _ in DataLoader(held_out, 2, sampler=DistributedSampler(held_out, shuffle=False)):
            outputs.append(net.module(words).argmax(-1))
    gathered: list[Any] = [None, None]
    dist.all_gather_object(gathered, torch.cat(outputs))
    dist.all_reduce(torch.ones(1))
    for numbers in DataLoader(Numbers(), 4):
        optimizer.zero_grad()
        backward(net(numbers.long() % 10).square().mean())
        optimizer.step()


@pytest.fixture(scope="module")
def ranks() -> list[Seen]:
    return watched_ranks(program)


def test_passes_over_one_sampler_are_told_from_others(ranks: list[Seen]) -> None:
    for seen in ranks:
        first, second, third, evaluated, iterated = seen.of(Loaded)
        assert [one.sampler_number for one in (first, second, third, evaluated, iterated)] == [0, 0, 0, 1, None]
        assert [one.shuffles for one in (first, evaluated, iterated)] == [True, False, None]
        assert first.digest != second.digest == third.digest


def test_an_evaluation_is_a_pass_with_forwards_and_without_training(ranks: list[Seen]) -> None:
    for seen in ranks:
        passes = seen.of(Loaded)
        assert [(one.trained, one.forwards) for one in passes] == [(True, 2)] * 3 + [(False, 2), (True, 5)]
        assert all(one.seconds > 0 for one in passes)
        assert passes[0].began_at <= passes[1].began_at - passes[0].seconds + 0.1
        assert seen.of(Activity)[-1].gathers > 0
        assert seen.of(Activity)[-1].evaluation_sums == 1


def test_batches_without_indices_are_compared_by_what_they_hold(ranks: list[Seen]) -> None:
    sums = [seen.of(Loaded)[-1].first_batches for seen in ranks]
    assert sums[0] == sums[1]
    assert len(set(sums[0])) == 3
    assert {one.first_batches for seen in ranks for one in seen.of(Loaded)[:-1]} == {()}


def test_the_state_of_the_random_generator_is_read_once_when_training_begins(ranks: list[Seen]) -> None:
    (first,), (second,) = (seen.of(Noise) for seen in ranks)
    assert first == second
    assert first.drops_out


def test_a_loss_tells_what_a_token_weighs_in_it(ranks: list[Seen]) -> None:
    for rank, seen in enumerate(ranks):
        (weights,) = seen.of(LossWeights)
        tokens = 4.0 * WORDS[rank]
        assert [(one.rows, one.elements) for one in weights.backwards] == [(4, tokens)] * 6
        assert [one.weight for one in weights.backwards] == pytest.approx([0.5 / tokens] * 6)


def test_steps_are_counted_as_they_are_without_these_observations(ranks: list[Seen]) -> None:
    for seen in ranks:
        assert [step.step for step in seen.steps()] == list(range(11))
        assert len([step for step in seen.of(Step) if step.phase == "eval"]) == 2
