"""Ranks that were killed go on from what they saved, and end as ranks that were never killed, bit for bit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from jobs.spec import JobSpec
from jobs.telemetry import Outcome, Saved
from tests.integration.training.ranks import RankRun, Saving, run_ranks
from tests.unit.training.runs import spec_of
from tests.unit.training.saved_runs import seen, splits

pytestmark = pytest.mark.integration

#: Dropout, BatchNorm, shuffled rows that do not divide, and sums that come out differently in another order.
CNN: dict[str, Any] = {
    "model": {"ref": "tests.integration.training.parts:Normed"},
    "data": {"ref": "digits", "batch_size": 50, "shuffle": True},
    "loss": {"ref": "cross_entropy"},
    "optimizer": {"ref": "adamw", "args": {"lr": 0.01}},
    "scheduler": {"ref": "cosine_annealing_lr", "args": {"T_max": 20}, "every": "step"},
    "evaluate": {"data": {"ref": "digits", "args": {"split": "test"}}},
    "checkpoint": {"every_steps": 4},
    "epochs": 2,
}


def ended(runs: list[RankRun]) -> list[RankRun]:
    for one in runs:
        (outcome,) = one.of(Outcome)
        assert one.exit_code == outcome.exit_code == 0, outcome.traceback
    return runs


def saved_steps(runs: list[RankRun]) -> list[list[int]]:
    return [[saved.step for saved in one.of(Saved) if not saved.error] for one in runs]


def up_to(run: RankRun, step: int) -> list[Any]:
    cut = next(place for place, record in enumerate(run.records) if isinstance(record, Saved) and record.step == step)
    return run.records[: cut + 1]


def assert_same_as_never_killed(spec: JobSpec, directory: Path, dies_after: int) -> None:
    """Kill all ranks after a step, go on from the newest checkpoint, and compare with ranks that were not killed."""
    (directory / "whole").mkdir()
    (directory / "broken").mkdir()
    whole = ended(run_ranks(spec, saving=Saving(directory / "whole")))
    first = run_ranks(spec, saving=Saving(directory / "broken", dies_after=dies_after))
    assert [one.exit_code for one in first] == [-9] * spec.world_size
    step = min(steps[-1] for steps in saved_steps(first))
    assert step <= dies_after + 1
    second = ended(run_ranks(spec, saving=Saving(directory / "broken", directory / "broken" / str(step))))
    assert saved_steps(second) == [[n for n in steps if n > step] for steps in saved_steps(whole)]
    for never, one, other in zip(whole, first, second, strict=True):
        records = [*up_to(one, step), *other.records]
        assert seen(records) == seen(never.records)
        assert splits(records) == splits(never.records)
    last = str(saved_steps(whole)[0][-1])
    weights, expected = (
        load_file(directory / which / last / "model.safetensors") for which in ("broken", "whole")
    )
    assert list(weights) == list(expected)
    for name, tensor in expected.items():
        assert torch.equal(tensor, weights[name]), name


@pytest.mark.parametrize(("strategy", "ranks"), [("ddp", 2), ("ddp", 3), ("ddp", 4), ("fsdp", 2), ("fsdp", 3)])
def test_ranks_that_were_killed_end_as_ranks_that_were_not(strategy: str, ranks: int, tmp_path: Path) -> None:
    assert_same_as_never_killed(spec_of(CNN, devices=ranks, strategy=strategy), tmp_path, dies_after=6)
