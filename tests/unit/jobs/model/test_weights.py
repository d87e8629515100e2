"""`parallelism.weights` and `program.data.uneven`: what is taken, and what is refused with the field's name."""

import json
from typing import Any

import pytest

from jobs.model.spec import JobSpec
from jobs.model.spec_rules import parse_spec
from shardyard.contract.errors import InvalidSpec


def read(strategy: str = "ddp", devices: int = 2, nodes: int = 1, **fields: Any) -> JobSpec:
    parallelism = {name: value for name, value in fields.items() if name in ("weights", "module")}
    data = {name: value for name, value in fields.items() if name in ("uneven", "drop_last")}
    body = {
        "resources": {"devices": devices, "nodes": nodes},
        "parallelism": {"strategy": strategy, **parallelism},
        "program": {
            "model": {"ref": "linear"},
            "data": {"ref": "random_vectors", **data},
            "loss": {"ref": "cross_entropy"},
            "optimizer": {"ref": "sgd"},
        },
    }
    return parse_spec(json.dumps(body))


def test_a_weight_is_one_of_each_device_on_all_nodes() -> None:
    assert read(weights=[3, 2.5]).weights == (3.0, 2.5)
    assert read(devices=2, nodes=2, weights=[1, 2, 3, 4]).weights == (1.0, 2.0, 3.0, 4.0)
    assert read(weights="auto").weights is None
    assert read(weights="auto").weighs_ranks
    assert not read().weighs_ranks
    assert read(uneven="weigh").weighs_ranks
    assert not read("dp", weights=[1, 2]).weighs_ranks


def test_a_stored_spec_without_weights_is_as_earlier_versions_wrote_it() -> None:
    assert b"weights" not in read().as_json
    assert b"uneven" not in read().as_json
    assert JobSpec.model_validate_json(read(weights=[3, 2], uneven="drop").as_json).weights == (3.0, 2.0)


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"weights": [1, 2, 3]}, "parallelism.weights", "3 weights, but 2 devices"),
        ({"weights": [1, 2], "nodes": 2}, "parallelism.weights", "2 weights, but 4 devices"),
        ({"weights": [1, 0]}, "parallelism.weights", "weight 1 is not a number above 0"),
        ({"weights": [-1, 2]}, "parallelism.weights", "weight 0 is not a number above 0"),
        ({"weights": [1, 1e7]}, "parallelism.weights", "up to 1,000,000"),
        ({"weights": [1, True]}, "parallelism.weights", "weight 1"),
        ({"weights": [1, "2"]}, "parallelism.weights", "weight 1"),
        ({"weights": []}, "parallelism.weights", "a list of numbers"),
        ({"weights": "even"}, "parallelism.weights", "a list of numbers"),
        ({"weights": [1] * 1025}, "parallelism.weights", "at most 1024"),
        ({"weights": [1, 2], "module": "block"}, "parallelism.module", "in the whole model"),
        ({"uneven": "weigh", "module": "block"}, "parallelism.module", "in the whole model"),
        ({"strategy": "single", "devices": 1, "weights": [1]}, "parallelism.weights", "only for strategies"),
        ({"strategy": "dp", "uneven": "weigh"}, "program.data.uneven", "only for strategies"),
        ({"uneven": "weigh", "drop_last": True}, "program.data.uneven", "leave out one of the two"),
        ({"uneven": "some"}, "program.data.uneven", "weigh"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(fields: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        read(**fields)
    assert [(error.field, message in error.message) for error in caught.value.fields] == [(field, True)]


def test_a_number_that_json_has_no_word_for_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="not valid"):
        read(weights=[1, float("inf")])


def test_a_script_gets_numbers_and_measures_nothing() -> None:
    body = {
        "resources": {"devices": 2},
        "parallelism": {"strategy": "ddp", "weights": "auto"},
        "program": {"kind": "script", "bundle": "sha256:" + "a" * 64, "entrypoint": "train.py"},
    }
    with pytest.raises(InvalidSpec) as caught:
        parse_spec(json.dumps(body))
    assert [error.field for error in caught.value.fields] == ["parallelism.weights"]
