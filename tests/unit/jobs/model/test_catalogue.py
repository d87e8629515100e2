"""Names and arguments of a spec, checked without torch."""

import copy
import json
from typing import Any

import pytest

from jobs.model import catalogue
from jobs.model.spec import ComponentSpec, JobSpec
from jobs.model.spec_rules import parse_spec
from shardyard.contract.errors import FieldError

PROGRAM: dict[str, Any] = {
    "model": {"ref": "linear", "args": {"in_features": 5, "out_features": 2}},
    "data": {"ref": "random_vectors", "args": {"rows": 100, "features": 5}},
    "loss": {"ref": "cross_entropy"},
    "optimizer": {"ref": "sgd", "args": {"lr": 0.01, "momentum": 0.9}},
}


def spec_with(**parts: Any) -> JobSpec:
    return parse_spec(json.dumps({"program": {**PROGRAM, **parts}}))


def test_a_spec_of_built_ins_with_proper_arguments_has_no_errors() -> None:
    evaluate = {"data": {"ref": "digits", "args": {"split": "test"}}}
    adam = {"ref": "adam", "args": {"lr": 1e-3, "betas": [0.9, 0.99]}}
    assert catalogue.check(spec_with()) == []
    assert catalogue.check(spec_with(optimizer=adam, evaluate=evaluate)) == []


@pytest.mark.parametrize(
    ("part", "given", "field", "message"),
    [
        ("model", {"ref": "lineer"}, "program.model.ref", "unknown model 'lineer'; did you mean 'linear'?"),
        ("loss", {"ref": "xyz"}, "program.loss.ref", "unknown loss 'xyz'; known: bce, bce_with_logits"),
        ("data", {"ref": "digit"}, "program.data.ref", "unknown data set 'digit'; did you mean 'digits'?"),
        ("optimizer", {"ref": "adm"}, "program.optimizer.ref", "unknown optimizer 'adm'; did you mean 'adam'?"),
        (
            "model",
            {"ref": "linear", "args": {"in_features": 0, "out_features": 2}},
            "program.model.args.in_features",
            "at least 1 (got 0)",
        ),
        (
            "model",
            {"ref": "linear", "args": {"in_features": "5", "out_features": 2}},
            "program.model.args.in_features",
            'a whole number (got "5")',
        ),
        (
            "model",
            {"ref": "linear", "args": {"in_features": 5}},
            "program.model.args.out_features",
            "required by 'linear', but missing",
        ),
        (
            "optimizer",
            {"ref": "sgd", "args": {"momentun": 0.9}},
            "program.optimizer.args.momentun",
            "'sgd' takes no argument 'momentun'; did you mean 'momentum'?",
        ),
        (
            "optimizer",
            {"ref": "adam", "args": {"betas": [0.9, 1.5]}},
            "program.optimizer.args.betas.1",
            "less than 1 (got 1.5)",
        ),
        ("loss", {"ref": "mse", "args": {"reduction": "none"}}, "program.loss.args.reduction", '"mean" or "sum"'),
        (
            "evaluate",
            {"data": {"ref": "digits", "args": {"split": "all"}}},
            "program.evaluate.data.args.split",
            '"train" or "test" (got "all")',
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_field(part: str, given: dict[str, Any], field: str, message: str) -> None:
    (error,) = catalogue.check(spec_with(**{part: given}))
    assert error.field == field
    assert message in error.message


def test_schedulers_are_checked_like_the_rest() -> None:
    assert catalogue.check(spec_with(scheduler={"ref": "one_cycle_lr", "args": {"max_lr": 1, "total_steps": 9}})) == []
    for scheduler, message in (
        ({"ref": "cosine"}, "unknown learning rate scheduler 'cosine'"),
        ({"ref": "step_lr"}, "required by 'step_lr', but missing"),
        ({"ref": "step_lr", "args": {"step_size": 0}}, "at least 1 (got 0)"),
        ({"ref": "multi_step_lr", "args": {"milestones": [1, "2"]}}, 'a whole number (got "2")'),
    ):
        (error,) = catalogue.check(spec_with(scheduler=scheduler))
        assert message in error.message


def test_values_that_no_validator_can_read_are_refused_with_their_field() -> None:
    deep: list[Any] = []
    for _ in range(1000):
        deep = [deep]
    for value in (deep, "\ud800"):
        model = {"ref": "linear", "args": {"in_features": value, "out_features": 2}}
        (error,) = catalogue.check(JobSpec.model_validate({"program": {**PROGRAM, "model": model}}))
        assert error.field == "program.model.args.in_features"


def test_references_into_packages_are_left_to_the_worker() -> None:
    own = {"ref": "my_package.models:Net", "args": {"anything": 1}}
    assert catalogue.check(spec_with(model=own, data=own, loss=own, optimizer=own)) == []


def test_every_error_is_reported_and_not_only_the_first() -> None:
    spec = spec_with(model={"ref": "lineer"}, optimizer={"ref": "sgd", "args": {"lr": -1, "nope": 1}})
    assert [error.field for error in catalogue.check(spec)] == [
        "program.model.ref",
        "program.optimizer.args.lr",
        "program.optimizer.args.nope",
    ]


def test_a_loss_that_needs_a_target_is_refused_for_data_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    known = copy.deepcopy(catalogue.load())
    known["data"]["random_vectors"]["yields"] = ["input"]
    monkeypatch.setattr(catalogue, "load", lambda: known)
    assert catalogue.check(spec_with()) == [
        FieldError(
            "program.data.ref",
            "'random_vectors' yields no target, which loss 'cross_entropy' needs; use data with labels",
        )
    ]


@pytest.mark.parametrize(
    ("ref", "args", "rows"),
    [
        ("random_vectors", {"rows": 100, "features": 5}, 100),
        ("random_vectors", {"rows": "100"}, None),
        ("random_vectors", {}, None),
        ("digits", {}, 1437),
        ("digits", {"split": "test"}, 360),
        ("digits", {"split": ["test"]}, None),
        ("my_package:Data", {"rows": 5}, None),
    ],
)
def test_rows_of_built_in_data_are_known_from_the_arguments(ref: str, args: dict[str, Any], rows: int | None) -> None:
    assert catalogue.dataset_rows(ComponentSpec(ref=ref, args=args)) == rows


def test_the_listing_has_schemas_with_defaults_and_bounds() -> None:
    listing = catalogue.load()
    assert set(listing) == {"models", "data", "losses", "optimizers", "schedulers"}
    width = listing["models"]["linear"]["args"]["properties"]["in_features"]
    assert (width["type"], width["minimum"]) == ("integer", 1)
    assert listing["optimizers"]["adam"]["args"]["properties"]["betas"]["default"] == [0.9, 0.999]
    for group in listing.values():
        for entry in group.values():
            assert entry["summary"]
            assert entry["args"]["additionalProperties"] is False
