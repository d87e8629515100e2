"""Errors of values say what would be right, and in one answer: no words of the libraries that find them."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from api.schemas import (
    account_requests,
    fleet_requests,
    group_requests,
    job_requests,
    result_requests,
    webhook_requests,
)
from jobs.model import catalogue
from jobs.model.error_words import has_words
from jobs.model.spec import JobSpec
from jobs.model.spec_rules import parse_spec
from shardyard.contract.errors import InvalidSpec, NotSupported

RECIPE: dict[str, Any] = {
    "model": {"ref": "digits_cnn"},
    "data": {"ref": "digits", "batch_size": 64},
    "loss": {"ref": "cross_entropy"},
    "optimizer": {"ref": "sgd", "args": {"lr": 0.1}},
}
REQUESTS = (account_requests, fleet_requests, group_requests, job_requests, result_requests, webhook_requests)
BODIES: list[type[BaseModel]] = [
    JobSpec,
    *(
        kind
        for module in REQUESTS
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, BaseModel) and kind is not BaseModel
    ),
]
FOREIGN = re.compile(r"Input should|String should|should match|pattern|regex|validation|to parse|instance of", re.I)
LETTERS = "letters, digits, dots, underscores"


def errors(**fields: Any) -> dict[str, str]:
    """Messages by field, for a spec with these fields."""
    with pytest.raises(InvalidSpec) as caught:
        parse_spec(json.dumps({"program": RECIPE} | fields), catalogue.check)
    assert caught.value.message == "the job spec is not valid"
    return {error.field: error.message for error in caught.value.fields}


def patterns_of(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(schema.get("pattern"), str):
            yield schema["pattern"]
        yield from (found for name in schema.get("patternProperties", ()) for found in [name])
        for part in schema.values():
            yield from patterns_of(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from patterns_of(part)


def test_every_pattern_has_words() -> None:
    found = {one for kind in BODIES for one in patterns_of(kind.model_json_schema())}
    assert len(found) > 10
    assert [one for one in found if not has_words(one)] == []


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"resources": {"devices": 5000}}, "resources.devices", "at most 1024 (got 5000)"),
        ({"resources": {"devices": "two"}}, "resources.devices", "a whole number (got 'two')"),
        ({"resources": {"devices": 1.5}}, "resources.devices", "a whole number (got 1.5)"),
        ({"resources": []}, "resources", "an object, { ... } (got [])"),
        ({"priority": True}, "priority", "a whole number (got True)"),
        ({"name": ""}, "name", "at least 1 characters (got '')"),
        ({"name": 7}, "name", "text in quotes, such as \"abc\" (got 7)"),
        ({"pool": "GPUs!"}, "pool", f"lower-case {LETTERS} and hyphens, a letter or digit at both ends (got 'GPUs!')"),
        ({"parallelism": {"functional": "yes"}}, "parallelism.functional", "true or false, without quotes (got 'yes')"),
        ({"limits": {"wall_seconds": 0}}, "limits.wall_seconds", "more than 0 (got 0)"),
        ({"observe": "never"}, "observe", '"auto", "every" or "off"; did you mean "every"? (got \'never\')'),
        ({"labels": {"-": ""}}, "labels.-", f"{LETTERS}, slashes and hyphens, a letter or digit first (got '-')"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_told_what_would_be_right(fields: dict[str, Any], field: str, message: str) -> None:
    found = errors(**fields)
    assert found == {field: message}
    assert not FOREIGN.search(message)


@pytest.mark.parametrize(
    ("component", "args", "message"),
    [
        ("model", {"channels": 0}, "at least 1 (got 0)"),
        ("model", {"channels": "16"}, 'a whole number (got "16")'),
        ("data", {"split": "Train"}, '"train" or "test"; did you mean "train"? (got "Train")'),
        ("optimizer", {"lr": True}, "a number (got true)"),
        ("optimizer", {"nesterov": 1}, "true or false, without quotes (got 1)"),
    ],
)
def test_a_wrong_argument_of_a_recipe_is_told_so_too(component: str, args: dict[str, Any], message: str) -> None:
    program = RECIPE | {component: RECIPE[component] | {"args": args}}
    assert errors(program=program) == {f"program.{component}.args.{next(iter(args))}": message}


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("DDP", "ddp"),
        ("DistributedDataParallel", "ddp"),
        ("DataParallel", "dp"),
        ("fsdp2", "fsdp"),
        ("sngle", "single"),
    ],
)
def test_a_word_of_others_or_in_capitals_is_understood(given: str, meant: str) -> None:
    found = errors(parallelism={"strategy": given}, resources={"devices": 2})
    assert f'did you mean "{meant}"?' in found["parallelism.strategy"]


@pytest.mark.parametrize(
    ("fields", "field", "hint"),
    [
        ({"gpus": 2}, "gpus", "did you mean 'resources.devices'?"),
        ({"num_gpus": 2}, "num_gpus", "did you mean 'resources.devices'?"),
        ({"resources": {"gpus": 2}}, "resources.gpus", "did you mean 'resources.devices'?"),
        ({"image": "pytorch"}, "image", "there are no images"),
        ({"timeout": 60}, "timeout", "did you mean 'limits.wall_seconds'?"),
        ({"Resources": {}}, "Resources", "did you mean 'resources'?"),
        (
            {"program": RECIPE | {"learning_rate": 1}},
            "program.learning_rate",
            "did you mean 'program.optimizer.args.lr'?",
        ),
    ],
)
def test_words_of_other_services_are_told_ours(fields: dict[str, Any], field: str, hint: str) -> None:
    assert hint in errors(**fields)[field]


def test_one_answer_has_errors_of_every_kind() -> None:
    found = errors(
        nmae="x",
        gpus=2,
        name="gpj\u202eexe",
        parallelism={"strategy": "DDP", "dim": 1},
        program=RECIPE | {"model": {"ref": "digits_cn"}, "loss": None, "epochs": 0},
    )
    assert "did you mean 'name'?" in found["nmae"]
    assert "resources.devices" in found["gpus"]
    assert "U+202E" in found["name"]
    assert 'did you mean "ddp"?' in found["parallelism.strategy"]
    assert 'only for strategy "dp"' in found["parallelism.dim"]
    assert "unknown model 'digits_cn'; did you mean 'digits_cnn'?" in found["program.model.ref"]
    assert "training needs one" in found["program.loss"]
    assert found["program.epochs"] == "at least 1 (got 0)"
    assert len(found) == 8


def test_what_was_guessed_makes_no_errors() -> None:
    """A rule that reads a field which is wrong itself says nothing."""
    assert errors(resources={"devices": "many"}, parallelism={"output_device": 5, "strategy": "dp"}) == {
        "resources.devices": "a whole number (got 'many')"
    }
    assert list(errors(program={"data": {"ref": "digits"}})) == ["program.model", "program.loss", "program.optimizer"]
    assert list(errors(program=7)) == ["program"]
    assert list(errors(program={"kind": "scrpt"})) == ["program"]
    assert list(errors(resources={"devicse": 4}, parallelism={"strategy": "dp", "output_device": 3})) == [
        "resources.devicse"
    ]


def test_a_wish_that_is_not_supported_keeps_its_code() -> None:
    with pytest.raises(NotSupported):
        parse_spec(json.dumps({"program": RECIPE | {"precision": "float16"}, "parallelism": {"strategy": "fsdp"}}))
