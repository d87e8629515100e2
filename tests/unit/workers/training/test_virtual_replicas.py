"""Gradients of replicas come back to the original in one order, whatever their threads did before."""

import torch
from torch import nn

from tests.support.training_runs import Kept, context_of
from workers.probe.recorder import Recorder
from workers.rehearsal import virtual_devices
from workers.training.data_parallel import VIRTUAL, TracedDataParallel


def gradients(model: nn.Module, rows: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    wrapped = TracedDataParallel(model, [0, 1, 2], virtual=True, observer=Recorder(context_of(3, Kept())))
    wrapped(rows).square().sum().backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def record_operations(device: int, count: int) -> None:
    """Operations that autograd numbers, in the thread of a device."""

    def work() -> None:
        value = torch.ones(1, requires_grad=True)
        for _ in range(count):
            value = value * 1

    virtual_devices._device_thread(device).call(work)


def test_gradients_do_not_depend_on_what_threads_of_devices_did_before() -> None:
    torch.manual_seed(0)
    model, rows = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)), torch.randn(60, 64)
    before = gradients(model, rows)
    for device, count in ((0, 40), (1, 5000), (2, 300)):
        record_operations(device, count)
        assert all(map(torch.equal, gradients(model, rows), before)), device


def test_replicas_learn_only_what_the_original_learns() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].requires_grad_(False)
    for replica in VIRTUAL.replicate(model, [0, 1], False):
        assert [leaf.requires_grad for leaf in (replica[0].weight, replica[1].weight)] == [False, True]  # type: ignore[index]
    gradients(model, torch.ones(6, 4))
    assert model[0].weight.grad is None
    assert model[1].weight.grad is not None


def test_a_parameter_that_only_some_replicas_use_gets_their_gradient() -> None:
    class Picky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = self.used(x) if x[0, 0] > 0 else x * 2
            return made

    model = Picky()
    rows = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [1.0, 1.0]], requires_grad=True)
    wrapped = TracedDataParallel(model, [0, 1, 2], virtual=True, observer=Recorder(context_of(3, Kept())))
    wrapped(rows).sum().backward()
    assert torch.equal(model.used.bias.grad, torch.full((2,), 2.0))  # type: ignore[arg-type]
    assert model.unused.weight.grad is None
