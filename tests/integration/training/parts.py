"""Models and data for the tests of ranks."""

import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(ctx.seconds)
        return grad, None


class SlowOnRank1(nn.Module):
    """A linear layer whose backward takes 100 ms longer on rank 1."""

    def __init__(self, in_features: int = 5, out_features: int = 2) -> None:
        super().__init__()
        self.first = nn.Linear(in_features, in_features)
        self.second = nn.Linear(in_features, out_features)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        seconds = 0.1 if dist.get_rank() == 1 else 0.0
        between = _Sleep.apply(self.first(rows), seconds)  # type: ignore[no-untyped-call]
        outputs: torch.Tensor = self.second(between)
        return outputs


class Scale(nn.Module):
    """One number, which cannot be divided among ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(1.0))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows * self.factor


class Normed(nn.Module):
    """Layers over 64 numbers with dropout and BatchNorm, the last of which is made first: gradients come in another
    order than that of the parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(61, 10)
        self.norm = nn.BatchNorm1d(61)
        self.body = nn.Linear(64, 61)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.head(nn.functional.dropout(self.norm(self.body(rows)), 0.3, self.training))
        return outputs


class Wide(nn.Module):
    """More than the first bucket of DistributedDataParallel takes, which is 1 MiB; made in another order than used."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(700, 10)
        self.middle = nn.Linear(400, 700)
        self.first = nn.Linear(64, 400)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.last(self.middle(self.first(rows).relu()).relu())
        return outputs


def double_vectors(rows: int) -> TensorDataset:
    """In float64, with targets that a model has to learn."""
    draw = torch.Generator().manual_seed(3)
    vectors = torch.randn(rows, 5, generator=draw, dtype=torch.float64)
    return TensorDataset(vectors, torch.randn(rows, 2, generator=draw, dtype=torch.float64))


def double_model() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2)).double()
