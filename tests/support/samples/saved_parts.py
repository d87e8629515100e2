"""Parts of a user's own, for the tests of checkpoints."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Dataset, IterableDataset


class Noisy(Dataset[Any]):
    """Rows that are drawn anew each time, from all three generators, as augmentation does."""

    def __len__(self) -> int:
        return 50

    def __getitem__(self, row: int) -> Any:
        noise = torch.randn(5) + random.random() + float(np.random.rand())
        return noise + row, torch.tensor(row % 2)


class Stream(IterableDataset[Any]):
    """Rows in an order that is drawn when an epoch begins; nobody knows how many."""

    def __iter__(self) -> Iterator[Any]:
        rows = list(range(50))
        random.shuffle(rows)
        for row in rows:
            yield torch.full((5,), row / 50), torch.tensor(row % 2)


class Endless(IterableDataset[Any]):
    """Rows that are all drawn anew, and do not end. In a worker, the draws are the worker's own."""

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield torch.randn(5), torch.tensor(random.randrange(2))


class Counting(nn.Module):
    """A model with all kinds of state: a tied weight, dropout, BatchNorm, a buffer that is not persistent and counts,
    one that grows, and something that is no tensor."""

    calls: torch.Tensor
    history: torch.Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 5)
        self.tied = nn.Linear(5, 5)
        self.tied.weight = self.first.weight
        self.norm = nn.BatchNorm1d(5)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(5, 2)
        self.register_buffer("calls", torch.zeros(()), persistent=False)
        self.register_buffer("history", None, persistent=False)
        self.seen = 0

    def get_extra_state(self) -> Any:
        return {"seen": self.seen}

    def set_extra_state(self, state: Any) -> None:
        self.seen = state["seen"]

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.calls += 1
            self.seen += 1
            before = torch.zeros(0) if self.history is None else self.history
            self.history = torch.cat([before, rows.mean().reshape(1)])
            rows = rows + self.history.sum()
        hidden = self.drop(self.norm(self.tied(self.first(rows)))) * (1 + self.calls / 10) * (1 + self.seen / 100)
        outputs: torch.Tensor = self.head(hidden)
        return outputs


class Half(nn.Module):
    """A layer in bfloat16, while optimizers keep some of their numbers in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 2, dtype=torch.bfloat16)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.layer(rows.bfloat16()).float()
        return outputs


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 5)
        self.tied = nn.Linear(5, 5)
        self.tied.weight = self.first.weight
        self.head = nn.Linear(5, 2)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.head(self.tied(self.first(rows)))
        return outputs


class Secretive(nn.Module):
    """A model whose state only pickle could write."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 2)

    def get_extra_state(self) -> Any:
        return self.eval

    def set_extra_state(self, state: Any) -> None:
        pass

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.layer(rows)
        return outputs


class Failing(nn.Module):
    """A model with two parts, that cannot tell its state."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)
        self.head = nn.Linear(5, 2)

    def get_extra_state(self) -> Any:
        raise RuntimeError("no state today")

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.head(self.layer(rows))
        return outputs


class Stateless:
    """An optimizer that is none of torch's, and cannot tell its state."""

    def __init__(self, parameters: Any) -> None:
        self._optimizer = SGD(parameters, lr=0.1)
        self.param_groups = self._optimizer.param_groups

    def zero_grad(self) -> None:
        self._optimizer.zero_grad()

    def step(self) -> None:
        self._optimizer.step()


class Remembering(SGD):
    """An optimizer with something in its groups that only pickle could write."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)
        self.param_groups[0]["hook"] = print


class Warmup(LambdaLR):
    """A schedule by a function, as people write them."""

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__(optimizer, lambda step: min(1.0, (step + 1) / 8))
