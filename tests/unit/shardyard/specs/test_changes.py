"""Changes of a spec by `--set`."""

from typing import Any

import pytest

from shardyard.errors import InvalidRequest
from shardyard.specs.changes import change_spec


@pytest.mark.parametrize(
    ("changes", "made"),
    [
        (["program.data.batch_size=64"], {"program": {"data": {"batch_size": 64}, "hidden": [1, 2]}}),
        (["program.hidden[0]=9", "program.hidden[2]=3"], {"program": {"hidden": [9, 2, 3]}}),
        (["program.hidden[-1]=null"], {"program": {"hidden": [1]}}),
        (["program=null", "a=b=c"], {"a": "b=c"}),
        (["program=null", r"labels.a\.b=yes", "name="], {"labels": {"a.b": "yes"}, "name": ""}),
        (["program=null", "lr=1e-3", 'text="64"', "flag=true"], {"lr": 0.001, "text": "64", "flag": True}),
        (["list[0].ref=mlp"], {"program": {"hidden": [1, 2]}, "list": [{"ref": "mlp"}]}),
    ],
)  # fmt: skip
def test_a_field_is_set_by_its_path(changes: list[str], made: dict[str, Any]) -> None:
    assert change_spec({"program": {"hidden": [1, 2]}}, changes) == made


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("batch_size", "write it as field=value"),
        ("=3", "is not the path"),
        ("a..b=3", "is not the path"),
        ("[0]=3", "is not the path"),
        ("program.hidden[7]=3", "program.hidden has 2 items, so there is no [7]"),
        ("program.hidden.x=3", "program.hidden is a list, so it has no 'x'"),
        ("program.hidden[0].x=3", "program.hidden[0] is no object"),
        ("a=[1", "the value of --set a is not YAML"),
    ],
)
def test_a_change_that_cannot_be_made_says_why(change: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        change_spec({"program": {"hidden": [1, 2]}}, [change])
    assert words in refused.value.message
