"""Pairs of runs, with a planted straggler and without, which show how well the report's `what_if` predicts.

`python -m tests.integration.training.what_if PAIRS STEPS MILLISECONDS` prints the figures of docs/report.md. A step is
made of sleeps, as of a host that waits for its devices: ranks on virtual devices share the cores of the machine, and
would compute slower without the straggler, since they then compute at once.
"""

import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from jobs.model.spec import JobSpec
from shardyard.contract.report import Report, WhatIf
from tests.integration.training.ranks import report_of, run_ranks
from tests.support.training_runs import spec_of

ROWS = 4
#: What each rank needs for a step, in seconds.
INPUT_SECONDS, FORWARD_SECONDS, BACKWARD_SECONDS = 0.01, 0.02, 0.03
WHERE = ("input", "forward", "backward")


class SleepyRows(Dataset[Any]):
    def __init__(self, rows: int) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(INPUT_SECONDS / ROWS)
        return torch.full((5,), float(index % 7)), index % 2


class _SleepInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, outputs: torch.Tensor) -> torch.Tensor:
        return outputs.view_as(outputs)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        time.sleep(BACKWARD_SECONDS)
        return grad


class SleepyModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(FORWARD_SECONDS)
        outputs: torch.Tensor = _SleepInBackward.apply(self.inner(x))  # type: ignore[no-untyped-call]
        return outputs


@dataclass(frozen=True)
class Pair:
    what_if: WhatIf
    true_ratio: float

    @property
    def error(self) -> float:
        return self.what_if.ratio / self.true_ratio - 1


def run_pair(where: str, ranks: int, steps: int, milliseconds: int) -> Pair:
    """Run with rank 1 slow, and without: both at once, so that they meet the same load of the machine."""
    slow = {"straggler": {"rank": 1, "where": where, "milliseconds": milliseconds}}
    specs = [spec_of(_program(ranks, steps) | more, devices=ranks, strategy="ddp") for more in (slow, {})]
    with ThreadPoolExecutor(2) as threads:
        planted, removed = threads.map(_run, specs)
    assert planted.what_if is not None
    times = [max(device.wall_ms or 0.0 for device in report.per_device) for report in (planted, removed)]
    return Pair(planted.what_if, times[0] / times[1])


def _run(spec: JobSpec) -> Report:
    runs = run_ranks(spec, seconds=120)
    assert all(run.exit_code == 0 for run in runs), [run.records[-1] for run in runs]
    return report_of(spec, runs)


def _program(ranks: int, steps: int) -> dict[str, Any]:
    here = "tests.integration.training.what_if"
    return {
        "model": {"ref": f"{here}:SleepyModel"},
        "data": {"ref": f"{here}:SleepyRows", "args": {"rows": ROWS * ranks * steps}, "batch_size": ROWS},
        "loss": {"ref": "cross_entropy"},
        "optimizer": {"ref": "sgd", "args": {"lr": 0.01}},
    }


def main(pairs: int, steps: int, milliseconds: int) -> None:
    for ranks in (2, 3):
        for where in WHERE:
            found = [run_pair(where, ranks, steps, milliseconds) for _ in range(pairs)]
            errors = [abs(pair.error) for pair in found]
            for pair in found:
                print(f"  predicted {pair.what_if.ratio:.3f} true {pair.true_ratio:.3f} {pair.what_if}", flush=True)
            print(
                f"ddp {ranks} {where:8} true {statistics.median(pair.true_ratio for pair in found):.2f} "
                f"median error {statistics.median(errors):.1%} worst {max(errors):.1%}",
                flush=True,
            )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
