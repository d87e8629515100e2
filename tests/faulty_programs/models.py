"""Linear models of five features and two classes, with a fault in them."""

import itertools
import os
import time

import torch
import torch.distributed as dist
from torch import nn

from .faults import FAULTS, note


class Faulty(nn.Module):
    """Commits a fault in one step of one rank, and works otherwise.

    Args:
        fault: its name in `FAULTS`; "" for none.
        at_step: the step, counted from 0; under dp the shard, of which each step has one for each device.
        rank: the rank; -1 for every one.
        notes: directory in which processes leave their ids.
        seconds: time that each step takes at least.
        talks: print the number of each step.
    """

    def __init__(
        self,
        notes: str,
        fault: str = "",
        at_step: int = 1,
        rank: int = 0,
        seconds: float = 0.0,
        talks: bool = False,
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 2)
        self._fault = fault
        self._at_step = at_step
        self._rank = rank
        self._notes = notes
        self._seconds = seconds
        self._talks = talks
        self._steps = itertools.count()  # which replicas share

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        note(self._notes, os.getpid())
        step = next(self._steps)
        if self._fault and step == self._at_step and self._rank in (-1, _rank()):
            FAULTS[self._fault](self._notes)
        if self._talks:
            print("step", step)
        time.sleep(self._seconds)
        outputs: torch.Tensor = self.linear(rows)
        return outputs


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0
