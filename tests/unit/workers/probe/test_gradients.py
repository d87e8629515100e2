"""What the probe finds out about gradients, and what a report makes of it: faulty scripts and their corrected twins."""

import traceback
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from jobs.protocol.probe_records import GradientSync
from jobs.protocol.records import Outcome
from shardyard.contract.report import Finding
from tests.support.probe_runs import Seen, backward, watched, watched_ranks
from tests.support.samples.script_streams import feed, findings, report_on, told
from tests.unit.workers.probe.test_loops import network, vectors

RANKS = [2, pytest.param(4, marks=pytest.mark.slow)]


def found(seen: list[Seen], strategy: str = "ddp") -> dict[str, Finding]:
    return findings(report_on([each.records for each in seen], strategy))


# -- steps of several micro-batches ----------------------------------------------------------------


def accumulate(store: str, rank: int, how: str, world: int = 2) -> list[float]:
    """Two epochs of steps of 4, 4 and 3 micro-batches."""
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = vectors(44 * world)
    sampler: Any = DistributedSampler(data, world, rank)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for number, (x, y) in enumerate(loader):
            is_last = number % 4 == 3 or number + 1 == len(loader)
            if how == "synchronises always":
                model.require_backward_grad_sync = True
            elif how == "forgets the end of the epoch":
                model.require_backward_grad_sync = number % 4 == 3
            else:
                model.require_backward_grad_sync = is_last
            backward(nn.functional.cross_entropy(model(x), y))
            if is_last:
                optimizer.step()
                optimizer.zero_grad()
    return [float(parameter.detach().sum()) for parameter in model.parameters()]


@pytest.mark.parametrize("world", RANKS)
def test_a_last_micro_batch_without_synchronisation_is_found(world: int) -> None:
    seen = watched_ranks(accumulate, "forgets the end of the epoch", world, ranks=world)
    finding = found(seen).pop("unsynchronised-last-micro-batch")

    assert seen[0].result != seen[1].result
    assert finding.severity == "warning"
    assert "in 2 of 6 steps, first in step 2," in finding.message
    assert finding.numbers == {"unsynchronised_steps": 2, "steps": 6, "first_step": 2, "ranks": world}


@pytest.mark.parametrize("world", RANKS)
def test_steps_that_reduce_after_each_micro_batch_are_found(world: int) -> None:
    seen = watched_ranks(accumulate, "synchronises always", world, ranks=world)
    (finding,) = found(seen).values()

    assert finding.code == "reduces-every-micro-batch"
    assert "16 of 22 reductions" in finding.message
    assert finding.numbers["wasted_bytes"] == 16 * finding.numbers["gradient_bytes"]
    assert finding.cost_device_seconds is not None
    assert any(step.comm_ms is not None for step in seen[0].steps())


@pytest.mark.parametrize("world", RANKS)
def test_steps_that_reduce_once_after_their_last_micro_batch_are_right(world: int) -> None:
    seen = watched_ranks(accumulate, "right", world, ranks=world)
    assert seen[0].result == seen[1].result
    assert found(seen) == {}
    assert all(not each.of(GradientSync) for each in seen)


def in_many_ways(store: str, rank: int) -> None:
    """Programs that are right, each with a wrapper of its own."""
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    x = torch.ones(4, 5)

    def begin() -> tuple[Any, Any]:
        model = DistributedDataParallel(network())
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    model, optimizer = begin()
    for _ in range(4):  # each backward's gradients are cut
        for _ in range(2):
            model(x).sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
    model, optimizer = begin()
    for _ in range(4):  # each backward's gradients are kept apart
        kept = []
        for _ in range(2):
            optimizer.zero_grad()
            model(x).sum().backward()
            kept.append([parameter.grad for parameter in model.parameters()])
        for parameter, *gradients in zip(model.parameters(), *kept, strict=True):
            parameter.grad = sum(gradients)
        optimizer.step()
    model, _ = begin()
    minimiser = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure() -> Any:
        minimiser.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        return loss

    for _ in range(4):
        minimiser.step(closure)  # type: ignore[no-untyped-call]
    critic, learner = begin()
    maker, optimizer = begin()
    for _ in range(4):  # the critic's gradients of the second step are of no use
        learner.zero_grad()
        critic(x).sum().backward()
        learner.step()
        optimizer.zero_grad()
        made = maker(x)
        with critic.no_sync():
            critic.requires_grad_(False)
            critic(made.repeat(1, 3)[:, :5]).sum().backward()
            critic.requires_grad_(True)
        optimizer.step()


def test_programs_that_need_each_reduction_or_less_are_right() -> None:
    for seen in watched_ranks(in_many_ways):
        assert seen.of(GradientSync) == []
        assert "turned itself off" not in seen.notes()


def averaging_by_hand(store: str, rank: int) -> None:
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        with model.no_sync():
            model(torch.ones(4, 5)).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.slow
def test_gradients_that_the_program_averages_itself_may_be_right() -> None:
    seen = watched_ranks(averaging_by_hand)
    report = report_on([each.records for each in seen])

    assert findings(report) == {}
    assert "the program itself exchanges tensors" in report.notes["findings"]


# -- means of means --------------------------------------------------------------------------------


def with_parts_of_its_own(store: str, rank: int, how: str, world: int = 2) -> None:
    """Each rank has rows of its own, and the last one fewer."""
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = 12 if rank + 1 < world or how == "equal parts" else 6
    torch.manual_seed(rank)
    for x, y in DataLoader(vectors(rows * 3), batch_size=rows):
        loss = nn.functional.cross_entropy(model(x), y)
        if how == "weights":
            loss = loss * (len(x) * world / (12 * world - 6))
        optimizer.zero_grad()
        backward(loss)
        optimizer.step()


ALSO_EQUAL = [("weights", 4), ("equal parts", 2), ("equal parts", 4)]


@pytest.mark.parametrize("world", RANKS)
def test_ranks_with_fewer_rows_weigh_them_more(world: int) -> None:
    (finding,) = found(watched_ranks(with_parts_of_its_own, "means", world, ranks=world)).values()
    rows = 12 * world - 6

    assert finding.code == "uneven-mean-of-means"
    assert finding.numbers["weight_ratio"] == 2
    assert finding.numbers["misplaced_weight"] == pytest.approx(1 / world - 6 / rows, abs=1e-4)
    assert "a row on the smallest rank weighs 2 times one on the largest" in finding.message


@pytest.mark.parametrize(
    ("how", "world"), [("weights", 2), *(pytest.param(*each, marks=pytest.mark.slow) for each in ALSO_EQUAL)]
)
def test_ranks_of_which_each_row_weighs_the_same_are_right(how: str, world: int) -> None:
    assert found(watched_ranks(with_parts_of_its_own, how, world, ranks=world)) == {}


class WithLoss(nn.Module):
    """A model that computes its loss itself, as those of libraries do: their mean, or one for each row."""

    def __init__(self, reduction: str) -> None:
        super().__init__()
        self.inner, self.reduction = network(), reduction

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        loss = nn.functional.cross_entropy(self.inner(x), y, reduction=self.reduction)
        return {"loss": loss}


def losses_of_devices(reduction: str, rows: int = 30, outer: str = "mean") -> None:
    """Batches of 30, and a last one of 10."""
    model = nn.DataParallel(WithLoss(reduction)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(vectors(2 * rows + 10), batch_size=rows):
        optimizer.zero_grad()
        losses = model(x.cuda(), y.cuda())["loss"]
        backward(losses.mean() if outer == "mean" else (losses * torch.ones(3)).sum() / len(x))
        optimizer.step()


@pytest.mark.filterwarnings("ignore:Was asked to gather")
def test_the_mean_of_the_means_of_uneven_devices_is_found() -> None:
    seen = watched(losses_of_devices, "mean", devices=3, rehearsed=True)
    finding = findings(report_on([seen.records], "dp", 3))["uneven-mean-of-means"]

    assert "in 1 step each device returned the mean loss of its rows (4, 4, 2)" in finding.message
    assert finding.numbers == {
        "steps": 1,
        "weight_ratio": 2.0,
        "misplaced_weight": 0.1333,
        "rows_least": 2,
        "rows_most": 4,
    }


@pytest.mark.parametrize(
    "program",
    [
        ("none",),
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in (("sum",), ("sum", 30, "weights"), ("mean", 30, "weights"), ("mean", 10))
        ),
    ],
)
def test_losses_that_weigh_each_row_the_same_are_right(program: tuple[Any, ...]) -> None:
    seen = watched(losses_of_devices, *program, devices=5 if program == ("mean", 10) else 3, rehearsed=True)
    assert "uneven-mean-of-means" not in findings(report_on([seen.records], "dp", 3))
    assert "turned itself off" not in seen.notes()


# -- BatchNorm -------------------------------------------------------------------------------------


def normalised(kind: str = "batch") -> nn.Module:
    layer = nn.GroupNorm(2, 8) if kind == "group" else nn.BatchNorm1d(8)
    if kind == "frozen":
        layer.eval()
    return nn.Sequential(nn.Linear(5, 8), layer, nn.ReLU(), nn.Linear(8, 2))


def with_norms(store: str, rank: int, kind: str, size: int = 8, world: int = 2) -> None:
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    model = DistributedDataParallel(normalised(kind))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = vectors(2 * size * world)
    sampler: Any = DistributedSampler(data, world, rank)
    for x, y in DataLoader(data, batch_size=size, sampler=sampler):
        optimizer.zero_grad()
        backward(nn.functional.cross_entropy(model(x), y))
        optimizer.step()


@pytest.mark.parametrize("world", RANKS)
def test_statistics_of_few_rows_on_each_rank_are_found(world: int) -> None:
    (finding,) = found(watched_ranks(with_norms, "batch", 8, world, ranks=world)).values()

    assert finding.code == "batchnorm-small-shard"
    assert f"from 8 of the {8 * world} of a batch" in finding.message
    assert "SyncBatchNorm" in finding.suggestion


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize(("kind", "size"), [("group", 8), ("frozen", 8), ("batch", 16)])
def test_other_layers_and_more_rows_are_right(kind: str, size: int, world: int) -> None:
    assert found(watched_ranks(with_norms, kind, size, world, ranks=world)) == {}


def norms_of_devices(size: int) -> str:
    """The traceback, where it fails."""
    model = nn.DataParallel(normalised()).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        for x, y in DataLoader(vectors(size + 7), batch_size=size):
            optimizer.zero_grad()
            backward(nn.functional.cross_entropy(model(x.cuda()), y.cuda()))
            optimizer.step()
    except ValueError:
        return traceback.format_exc()
    return ""


def test_a_device_that_got_a_single_row_is_named_when_the_program_has_failed() -> None:
    seen = watched(norms_of_devices, 30, devices=3, rehearsed=True)
    script = told("dp", 3)
    feed(script, [*seen.records, Outcome(0, 1, "code_error", "ValueError", seen.result)])
    script.rank_ended(0)
    finding = findings(script.make_report(final=True))["one-row-shard"]

    assert finding.message.startswith("in training step 1 a device got exactly one row")
    assert "drop_last=True" in finding.suggestion


@pytest.mark.slow
def test_few_rows_on_each_device_are_found_under_data_parallel_too() -> None:
    seen = watched(norms_of_devices, 18, devices=3, rehearsed=True)
    assert "batchnorm-small-shard" in findings(report_on([seen.records], "dp", 3))


# -- unused parameters -----------------------------------------------------------------------------


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.first, self.second, self.steps = nn.Linear(5, 8), nn.Linear(8, 2), nn.Linear(8, 2), 0

    def forward(self, x: torch.Tensor, how: str) -> Any:
        self.steps += 1
        hidden = self.inner(x)
        if how == "one head":
            return self.first(hidden)
        if how == "seldom one head" and self.steps == 57:
            return self.first(hidden) * 2
        return (
            self.first(hidden) + self.second(hidden)
            if how != "two outputs"
            else (self.first(hidden), self.second(hidden))
        )


SEARCHES = ["one head", "seldom one head", "two outputs", "keeps gradients", "without"]


def searching(store: str, rank: int, how: str) -> None:
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    model = DistributedDataParallel(TwoHeads(), find_unused_parameters=how != "without")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(112):
        optimizer.zero_grad(set_to_none=how != "keeps gradients")
        outputs = model(torch.randn(4, 5), how)
        backward((outputs[0] if isinstance(outputs, tuple) else outputs).sum())
        optimizer.step()


def test_a_search_for_unused_parameters_that_finds_none_is_found() -> None:
    finding = found(watched_ranks(searching, "two heads"))["unused-search-unneeded"]

    assert finding.numbers["steps"] >= 100


@pytest.mark.slow
@pytest.mark.parametrize("how", SEARCHES)
def test_searches_that_may_be_needed_are_right(how: str) -> None:
    assert "unused-search-unneeded" not in found(watched_ranks(searching, how))
