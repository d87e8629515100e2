"""Ranks that were killed go on from what they saved, and end as ranks that were never killed, bit for bit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from jobs.model.spec import JobSpec
from jobs.protocol.records import Outcome, Saved
from tests.integration.training.parts import Normed
from tests.integration.training.ranks import RankRun, Saving, run_ranks
from tests.support.samples.saved_runs import seen, splits
from tests.support.training_runs import spec_of

pytestmark = pytest.mark.integration

VECTORS: dict[str, Any] = {"features": 64, "classes": 10}
#: Dropout, BatchNorm, shuffled rows that do not divide, and sums that come out differently in another order.
NORMED: dict[str, Any] = {
    "model": {"ref": "tests.integration.training.parts:Normed"},
    "data": {"ref": "random_vectors", "args": VECTORS | {"rows": 990}, "batch_size": 50, "shuffle": True},
    "loss": {"ref": "cross_entropy"},
    "optimizer": {"ref": "adamw", "args": {"lr": 0.01}},
    "scheduler": {"ref": "cosine_annealing_lr", "args": {"T_max": 20}, "every": "step"},
    "evaluate": {"data": {"ref": "random_vectors", "args": VECTORS | {"rows": 200}, "batch_size": 50}},
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
    weights, expected = (load_file(directory / which / last / "model.safetensors") for which in ("broken", "whole"))
    assert list(weights) == list(expected)
    for name, tensor in expected.items():
        assert torch.equal(tensor, weights[name]), name


#: Two buckets of gradients, whose parts are added up in another order than they have in the model.
WIDE: dict[str, Any] = {
    **NORMED,
    "model": {"ref": "tests.integration.training.parts:Wide"},
    "optimizer": {"ref": "sgd", "args": {"lr": 0.05, "momentum": 0.9}},
    "epochs": 1,
}
ACCUMULATED: dict[str, Any] = {
    **NORMED,
    "data": {**NORMED["data"], "drop_last": True, "num_workers": 1},
    "accumulate_steps": 4,
    "clip_grad_norm": 0.5,
    "epochs": 1,
    "checkpoint": {"every_steps": 1},
}

WEIGHED: dict[str, Any] = {**NORMED, "data": {**NORMED["data"], "uneven": "weigh"}}

CASES: dict[str, tuple[dict[str, Any], int, str, dict[str, Any], int]] = {
    "single": (NORMED, 1, "single", {}, 6),
    "dp on 3": (NORMED, 3, "dp", {}, 6),
    "ddp on 2": (NORMED, 2, "ddp", {}, 6),
    "ddp on 3": (NORMED, 3, "ddp", {}, 6),
    "ddp on 4": (NORMED, 4, "ddp", {}, 6),
    "ddp, killed after an epoch": (NORMED | {"checkpoint": {"every_steps": 7}}, 3, "ddp", {}, 7),
    "ddp in buckets": (WIDE, 3, "ddp", {}, 6),
    "ddp, accumulated, saved after the first step": (ACCUMULATED, 3, "ddp", {}, 1),
    "ddp in bfloat16": (NORMED | {"precision": "bfloat16"}, 3, "ddp", {}, 6),
    "ddp around a part, so that ranks drift apart": (NORMED, 3, "ddp", {"module": "body"}, 6),
    "fsdp on 2": (NORMED, 2, "fsdp", {}, 6),
    "fsdp on 3": (NORMED, 3, "fsdp", {}, 6),
    "dp on 3 by weights": (NORMED, 3, "dp", {"weights": [3, 1, 2]}, 6),
    "ddp by weights, accumulated": (ACCUMULATED, 3, "ddp", {"weights": [3, 1, 2]}, 1),
    "ddp on 3 by weights": (WEIGHED, 3, "ddp", {"weights": [3, 1, 2]}, 6),
    "fsdp on 2 by weights": (WEIGHED, 2, "fsdp", {"weights": [3, 2]}, 6),
    "fsdp, accumulated": (ACCUMULATED, 2, "fsdp", {}, 1),
    "fsdp in bfloat16": (NORMED | {"precision": "bfloat16", "optimizer": {"ref": "adamax"}}, 3, "fsdp", {}, 6),
}


#: They show little that the others do not.
SLOW = {"ddp on 2", "ddp on 3", "ddp, killed after an epoch", "ddp in bfloat16", "fsdp on 3", "fsdp in bfloat16"} | {
    "fsdp, accumulated",
    "dp on 3 by weights",
    "ddp by weights, accumulated",
    "fsdp on 2 by weights",
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in CASES])
def test_ranks_that_were_killed_end_as_ranks_that_were_not(name: str, tmp_path: Path) -> None:
    program, ranks, strategy, parts, dies_after = CASES[name]
    spec = spec_of(program, devices=ranks, strategy=strategy, **parts)
    assert_same_as_never_killed(spec, tmp_path, dies_after)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_checkpoints_change_nothing_in_a_run_of_ranks(strategy: str, tmp_path: Path) -> None:
    spec = spec_of({**NORMED, "epochs": 1, "checkpoint": {"every_steps": 1}}, devices=3, strategy=strategy)
    for saving, plain in zip(ended(run_ranks(spec, saving=Saving(tmp_path))), ended(run_ranks(spec)), strict=True):
        assert seen(saving.records) == seen(plain.records)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_the_last_checkpoint_has_the_whole_model_as_people_have_it(strategy: str, tmp_path: Path) -> None:
    spec = spec_of({**NORMED, "epochs": 1, "checkpoint": {"every_steps": 1000}}, devices=2, strategy=strategy)
    runs = ended(run_ranks(spec, saving=Saving(tmp_path)))
    (saved,) = runs[0].of(Saved)
    assert "model.safetensors" in {file.name for file in saved.files}
    assert [len(one.of(Saved)[0].files) for one in runs] == ([2, 2] if strategy == "ddp" else [3, 2])
    weights = load_file(tmp_path / str(saved.step) / "model.safetensors")
    assert Normed().load_state_dict(weights, strict=True)


def test_ranks_of_which_one_cannot_save_train_on_together(tmp_path: Path) -> None:
    """In the place of one rank's file is a directory."""
    spec = spec_of({**NORMED, "epochs": 1}, devices=2, strategy="fsdp")
    (tmp_path / "4" / "rank-0.pt").mkdir(parents=True)
    (tmp_path / "8" / ".rank-1.pt.part").mkdir(parents=True)
    runs = ended(run_ranks(spec, saving=Saving(tmp_path)))
    assert [[saved.step for saved in one.of(Saved) if saved.error] for one in runs] == [[4], [8]]
    assert [len(one.of(Saved)) for one in runs] == [3, 3]
    assert "rank-0.pt" in runs[0].of(Saved)[0].error
