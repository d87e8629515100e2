"""Specs as the store keeps them: also for workers of the version before."""

import json
import types
import typing
from collections.abc import Iterator

import pytest
import zstandard
from pydantic import BaseModel

from jobs import store
from jobs.model import spec
from jobs.model.spec_rules import parse_spec
from shardyard.contract.errors import UnreadableSpec

JOB = b"""{"program": {"model": {"ref": "linear", "args": {"bias": null}}, "data": {"ref": "random_vectors"},
 "loss": {"ref": "cross_entropy"}, "optimizer": {"ref": "sgd"}, "epochs": 2}}"""


def stored(text: bytes) -> dict[str, typing.Any]:
    found: dict[str, typing.Any] = json.loads(zstandard.decompress(store.encode_spec(parse_spec(text))))
    return found


def test_a_field_that_is_not_set_is_not_stored_and_an_argument_that_is_null_is() -> None:
    program = stored(JOB)["program"]
    assert "checkpoint" not in program
    assert program["model"]["args"] == {"bias": None}
    assert store.decode_spec(store.encode_spec(parse_spec(JOB))) == parse_spec(JOB)


def models(found: object, seen: set[type[BaseModel]]) -> Iterator[type[BaseModel]]:
    """Every model that an annotation names, and what those name."""
    if isinstance(found, type) and issubclass(found, BaseModel):
        if found not in seen:
            seen.add(found)
            yield found
            for field in found.model_fields.values():
                yield from models(field.annotation, seen)
        return
    for part in typing.get_args(found):
        yield from models(part, seen)


def test_no_field_means_something_else_when_it_is_left_out_than_when_it_is_null() -> None:
    every = list(models(spec.JobSpec, set()))
    assert len(every) > 5
    for model in every:
        for name, field in model.model_fields.items():
            may_be_null = types.NoneType in typing.get_args(field.annotation)
            assert not may_be_null or field.get_default() is None, f"{model.__name__}.{name}"


def test_a_spec_with_a_field_of_a_later_version_says_which_it_is() -> None:
    later = stored(JOB) | {"colour": "red"}
    with pytest.raises(UnreadableSpec, match="colour"):
        store.decode_spec_json(json.dumps(later).encode())
