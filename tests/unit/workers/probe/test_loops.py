"""What the probe makes of ordinary training loops in one process."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from jobs.protocol.probe_records import Activity, Loaded, LoaderOpened
from jobs.protocol.records import Began
from tests.support.probe_runs import learn, watched


def vectors(rows: int = 100) -> TensorDataset:
    return TensorDataset(torch.randn(rows, 5), torch.randint(0, 2, (rows,)))


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))


def train_and_evaluate() -> None:
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    criterion = nn.CrossEntropyLoss()
    for _ in range(2):
        net.train()
        for x, y in DataLoader(vectors(), 30, shuffle=True):
            learn(optimizer, criterion(net(x), y))
        net.eval()
        with torch.no_grad():
            for x, _ in DataLoader(vectors(40), 25):
                net(x)


def test_a_plain_loop_shows_its_batches_and_its_evaluation() -> None:
    seen = watched(train_and_evaluate)
    assert seen.rows() == [[(30,)], [(30,)], [(30,)], [(10,)]] * 2
    assert seen.rows("eval") == [[(25,)], [(15,)]] * 2
    assert [step.step for step in seen.steps()] == list(range(8))
    assert {split.module for splits in seen.splits() for split in splits} == {""}
    (first, *_), _ = seen.splits()[0], None
    assert (first.batch_rows, first.devices) == (30, (0,))
    assert (first.input_shapes, first.output_shapes) == (((30, 5),), ((30, 2),))


def test_times_of_a_plain_loop_are_measured() -> None:
    for step in watched(train_and_evaluate).steps():
        assert step.forward_ms[0] is not None
        assert step.backward_ms[0] is not None
        assert step.data_wait_ms is not None
        assert step.step_ms >= step.forward_ms[0] + step.backward_ms[0] > 0


def test_every_step_is_announced_when_it_begins() -> None:
    seen = watched(train_and_evaluate)
    begun = [(began.phase, began.step) for began in seen.of(Began)]
    assert sorted(begun) == sorted(
        (phase, step) for phase, steps in (("train", 8), ("eval", 4)) for step in range(steps)
    )


def test_each_loader_says_once_how_many_processes_make_its_batches() -> None:
    opened = watched(train_and_evaluate).of(LoaderOpened)
    assert opened == [LoaderOpened(number, 0) for number in range(4)]


def test_passes_over_loaders_are_counted() -> None:
    passes = watched(train_and_evaluate).of(Loaded)
    assert [(each.batches, each.rows, each.trained, each.complete) for each in passes] == [
        (4, 100, True, True),
        (2, 40, False, True),
    ] * 2
    assert passes[0].sampler == "RandomSampler"
    assert passes[0].digest == passes[2].digest != passes[1].digest


def test_what_was_done_is_counted() -> None:
    assert watched(train_and_evaluate).of(Activity)[-1] == Activity(forwards=12, backwards=8, steps=8, reductions=0)
