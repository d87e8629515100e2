"""Specs of candidates, and what there is to choose among."""

from typing import Any

import pytest

from jobs.model.spec_rules import parse_spec
from shardyard.contract.errors import InvalidRequest
from shardyard.specs.changes import change_spec
from shardyard.tuning.candidates import Arm, Candidate
from shardyard.tuning.variants import list_changes, make_space, make_trial_spec, make_variant, rows_of_step

SINGLE, DDP, DP, FSDP = Arm("single", 1), Arm("ddp", 4), Arm("dp", 4), Arm("fsdp", 4)


def a_spec(**program: Any) -> dict[str, Any]:
    return {
        "name": "mine",
        "labels": {"team": "vision"},
        "resources": {"devices": 4},
        "parallelism": {"strategy": "dp", "output_device": 1},
        "program": {
            "model": {"ref": "mlp"},
            "data": {"ref": "digits", "batch_size": 64},
            "loss": {"ref": "cross_entropy"},
            "optimizer": {"ref": "sgd", "args": {"lr": 0.1}},
            "evaluate": {"data": {"ref": "digits"}},
            "checkpoint": {"every_steps": 5},
            "export": ["tensorboard"],
            "epochs": 3,
        }
        | program,
    }


def test_without_options_all_strategies_are_tried_on_one_device_and_on_all() -> None:
    space = make_space(a_spec(), dataset_rows=500)
    assert set(space.sizes) == {SINGLE, DDP, DP, FSDP}
    assert set(space.sizes.values()) == {(64, 128, 256)}
    assert next(iter(make_space(a_spec()).sizes.values())) == (64, 128, 256, 512, 1024)


def test_options_narrow_the_search_to_what_divides() -> None:
    space = make_space(a_spec(accumulate_steps=3), ["ddp", "single"], [1, 2], [12, 15, 24])
    assert space.sizes == {SINGLE: (12, 15, 24), Arm("ddp", 2): (12, 24)}


@pytest.mark.parametrize(("arm", "batch_size"), [(SINGLE, 128), (DP, 128), (DDP, 32), (FSDP, 32)])
def test_a_step_of_every_candidate_has_its_rows(arm: Arm, batch_size: int) -> None:
    made = make_variant(a_spec(), Candidate(arm, 128))
    assert made["program"]["data"]["batch_size"] == batch_size
    assert rows_of_step(made) == 128
    spec = parse_spec(_json(made))
    assert (spec.global_batch_size, spec.parallelism.strategy, spec.resources.devices) == (
        128,
        arm.strategy,
        arm.devices,
    )


def test_a_trial_is_short_and_has_nothing_beside_its_steps() -> None:
    spec = a_spec()
    made = make_trial_spec(spec, Candidate(DDP, 128), 25, {"tune": "x"})
    wanted = parse_spec(_json(made))
    assert (wanted.recipe.max_steps, wanted.recipe.evaluate, wanted.recipe.checkpoint) == (25, None, None)
    assert not wanted.recipe.export
    assert wanted.labels == {"team": "vision", "tune": "x"}
    assert wanted.name == "tune-ddp-4x128"
    assert spec == a_spec(), "the spec itself stays as it is"


@pytest.mark.parametrize("arm", [SINGLE, DDP, DP])
def test_the_changes_make_the_spec_of_the_choice(arm: Arm) -> None:
    candidate = Candidate(arm, 256)
    assert change_spec(a_spec(), list_changes(a_spec(), candidate)) == make_variant(a_spec(), candidate)


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"program": {"kind": "script"}}, "program.kind", "only recipes can be tuned"),
        ({"program": a_spec(mode="forward")["program"]}, "program.mode", "only training"),
        ({"program": a_spec(straggler={"rank": 0})["program"]}, "program.straggler", "slow on purpose"),
        ({"resources": {"devices": 2, "nodes": 2}}, "resources.nodes", "one node"),
        ({"resources": {"devices": "two"}}, "resources.devices", "a whole number"),
        ({"parallelism": "ddp"}, "parallelism", "an object"),
    ],
)
def test_what_cannot_be_tuned_is_refused_by_field(changes: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        make_space(a_spec() | changes)
    assert refused.value.fields[0].field == field
    assert words in refused.value.fields[0].message


def test_a_search_needs_something_to_choose_among() -> None:
    with pytest.raises(
        InvalidRequest, match="nothing to choose among strategies single, devices 1 and rows of a step 64"
    ):
        make_space(a_spec(), ["single"], [1], [64])
    with pytest.raises(InvalidRequest, match="--strategies horovod: there are single, ddp, dp, fsdp"):
        make_space(a_spec(), ["horovod"])


def _json(spec: dict[str, Any]) -> bytes:
    import json

    return json.dumps(spec).encode()
