"""A probe that fails turns itself off with a note, and the program is not affected."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from jobs.protocol.records import Note
from tests.support.probe_runs import learn, watched, watched_ranks
from tests.unit.workers.probe.test_loops import network, vectors
from workers.probe import data_parallel_tracker
from workers.probe.data_parallel_tracker import DataParallelTracker
from workers.probe.dataloaders import LoaderTracker
from workers.probe.measurements import ProcessDevices
from workers.probe.module_registry import ModuleRegistry
from workers.probe.patches import data_parallel
from workers.probe.steps.row_checker import RowChecker
from workers.probe.steps.step_builder import StepBuilder
from workers.probe.tracker import Tracker


def train() -> list[float]:
    """An ordinary loop, with everything in it that the probe looks at."""
    torch.manual_seed(0)
    net = nn.DataParallel(network().cuda())
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu")
    losses = []
    for x, y in DataLoader(vectors(60), batch_sampler=[list(range(first, first + 20)) for first in (0, 20, 40)]):
        loss: Any = nn.functional.cross_entropy(net(x.cuda()), y.cuda())
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(float(loss))
    replicas = nn.parallel.replicate(network().cuda(), [0, 1])
    nn.parallel.parallel_apply(replicas, nn.parallel.scatter(torch.ones(4, 5).cuda(), [0, 1]))
    return losses


def failing_train(owner: str, name: str) -> list[float]:
    """The same with one function of the probe broken."""

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError("the probe's own")

    setattr(OWNERS[owner], name, fail)
    return train()


OWNERS: dict[str, Any] = {
    "Tracker": Tracker,
    "DataParallelTracker": DataParallelTracker,
    "ProcessDevices": ProcessDevices,
    "StepBuilder": StepBuilder,
    "RowChecker": RowChecker,
    "LoaderTracker": LoaderTracker,
    "ModuleRegistry": ModuleRegistry,
    "data_parallel_tracker": data_parallel_tracker,
    "data_parallel": data_parallel,
}
FUNCTIONS = [
    ("Tracker", "begin_forward"),
    ("Tracker", "end_forward"),
    ("Tracker", "begin_backward"),
    ("Tracker", "end_backward"),
    ("Tracker", "begin_optimizer"),
    ("Tracker", "end_optimizer"),
    ("Tracker", "report_wrapper"),
    ("Tracker", "finish"),
    ("DataParallelTracker", "begin_apply"),
    ("DataParallelTracker", "end_apply"),
    ("DataParallelTracker", "end_shard"),
    ("DataParallelTracker", "begin_primitive"),
    ("DataParallelTracker", "end_primitive"),
    ("DataParallelTracker", "remember_replicas"),
    ("DataParallelTracker", "remember_scatter"),
    ("ProcessDevices", "mark_now"),
    ("StepBuilder", "step_ended"),
    ("RowChecker", "add_batch"),
    ("LoaderTracker", "begin_pass"),
    ("LoaderTracker", "add_drawn"),
    ("LoaderTracker", "count_delivered"),
    ("LoaderTracker", "end_pass"),
    ("ModuleRegistry", "find_root"),
    ("ModuleRegistry", "add_optimizer"),
    ("data_parallel_tracker", "shape_of"),
    ("data_parallel_tracker", "time_backward"),
    ("data_parallel", "shape_of_arguments"),
]


@pytest.fixture(scope="module")
def undisturbed() -> list[float]:
    losses: list[float] = watched(train, devices=2, rehearsed=True).result
    return losses


@pytest.mark.parametrize(("owner", "name"), FUNCTIONS)
def test_a_fault_in_the_probe_is_a_note_and_nothing_else(owner: str, name: str, undisturbed: list[float]) -> None:
    seen = watched(failing_train, owner, name, devices=2, rehearsed=True)
    assert seen.result == undisturbed
    notes = [note for note in seen.of(Note) if "turned itself off" in note.reason]
    assert len(notes) == 1
    assert "the probe's own" in notes[0].reason


def in_a_group(store: str, rank: int) -> int:
    def fail(*args: Any) -> Any:
        raise ZeroDivisionError("the probe's own")

    Tracker.report_group = fail  # type: ignore[method-assign, assignment]
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    net = DistributedDataParallel(network())
    learn(torch.optim.SGD(net.parameters(), 0.1), net(torch.ones(4, 5)).sum())
    return dist.get_world_size()


def test_a_fault_about_a_group_leaves_the_group_alone() -> None:
    for seen in watched_ranks(in_a_group):
        assert seen.result == 2
        assert "turned itself off" in seen.notes()


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) == 3:
            raise KeyError("the program's own")
        return self.inner(x)  # type: ignore[no-any-return]


def failing_by_itself() -> str:
    net = Broken()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    try:
        net(torch.ones(3, 5))
    except KeyError as error:
        for _ in range(2):
            learn(optimizer, net(torch.ones(4, 5)).sum())
        return str(error)
    return ""


def test_the_programs_own_exceptions_pass_and_the_probe_goes_on() -> None:
    seen = watched(failing_by_itself)
    assert seen.result == '"the program\'s own"'
    assert seen.rows() == [[(4,)]] * 2
