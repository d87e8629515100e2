"""What of a notebook is sent with a function."""

import linecache
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import shardyard
from shardyard.errors import InvalidRequest
from shardyard.functions.notebook_module import write_module

CELLS = """
import json as encoder
from math import pi
import shardyard

SCALE = {"by": [2, None]}
connection = open("/dev/null")

class Net:
    depth = SCALE["by"][0]
    def size(self):
        return helper(self.depth)

class Empty(Net): pass

def helper(value):
    return value * pi

@shardyard.job(devices=2)
def other(value):
    return again(value) if value else 0

def again(value):
    return other(value - 1)

@shardyard.job(devices=2, strategy="ddp")
def train(factor, *, text="x"):
    import os
    local = [each for each in (factor, 2)]
    return encoder.dumps([Empty().size() * factor, local, text, os.sep])

@shardyard.job
def closed():
    return connection.name

@shardyard.job
def unknown():
    return nowhere
"""


@pytest.fixture
def notebook() -> Iterator[dict[str, Any]]:
    """What is defined in a cell, whose lines Python knows and whose file is not there."""
    name = "<cell 1>"
    linecache.cache[name] = (len(CELLS), None, CELLS.splitlines(keepends=True), name)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(CELLS, name, "exec"), names)
    yield names
    names["connection"].close()
    del linecache.cache[name]


def run(source: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "notebook_functions"}
    exec(source, names)
    return names


def test_a_function_is_sent_with_all_that_it_uses_and_nothing_else(notebook: dict[str, Any]) -> None:
    source = write_module(notebook["train"].function)
    made = run(source)
    assert made["train"](2, text="y") == notebook["train"](2, text="y")
    assert not {"connection", "other", "shardyard"} & made.keys()
    assert "@shardyard" not in source


def test_functions_that_call_one_another_are_sent_once(notebook: dict[str, Any]) -> None:
    source = write_module(notebook["other"].function)
    assert run(source)["other"](3) == 0
    assert source.count("def other") == source.count("def again") == 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("closed", "closed uses connection, a TextIOWrapper, which cannot be sent"),
        ("unknown", "unknown uses nowhere, which is not defined in the notebook"),
    ],
)
def test_what_source_cannot_say_is_named(notebook: dict[str, Any], name: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        write_module(notebook[name].function)


def test_a_job_function_runs_here_when_it_is_called_and_checks_its_arguments_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def plus(a: int, b: int = 1) -> int:
        """Add."""
        return a + b

    function: Callable[..., Any] = shardyard.job(devices=2)(plus)
    assert (function(2), function.__doc__) == (3, "Add.")
    made: Any = function
    with pytest.raises(TypeError, match="missing a required argument: 'a'"):
        made.submit()
    with pytest.raises(InvalidRequest, match="is defined in another function"):
        made.submit(1)
    monkeypatch.setenv("SHARDYARD_OUTPUT_DIR", "/out")
    with pytest.raises(InvalidRequest, match="this is a job already"):
        made.submit(1)
    options: Any = {"gpus": 2}
    with pytest.raises(TypeError, match=r"job\(\) has no option 'gpus'; there are devices"):
        shardyard.job(**options)
