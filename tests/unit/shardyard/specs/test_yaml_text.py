"""YAML of job specs, and of answers."""

import json

import pytest

from shardyard.errors import InvalidRequest
from shardyard.specs import yaml_text
from shardyard.specs.yaml_text import dump_yaml, parse_yaml, yaml_to_json


def test_words_are_words_and_numbers_are_numbers() -> None:
    assert json.loads(yaml_to_json(b"a: no\nb: 1e-3\nc: on\nd: 010\ne: ~\n", "job.yaml")) == {
        "a": "no", "b": 0.001, "c": "on", "d": 10, "e": None
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\na: 2", "job.yaml is not YAML, line 2, column 1: found duplicate key"),
        ("a: 1\n---\nb: 2", "found another document"),
        ("a: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
        ("a: 2020-01-01", 'write it in quotes: "2020-01-01"'),
        ("a: .inf", "cannot be written as JSON"),
        ("a: &a [*a]", "cannot be written as JSON"),
        ("a: \x00", "job.yaml is not YAML"),
        ("[" * 5000, "job.yaml is nested too deeply"),
    ],
)
def test_what_is_no_spec_is_refused_with_its_place(text: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        yaml_to_json(text.encode(), "job.yaml")
    assert words in refused.value.message


def test_aliases_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_text, "MAX_BYTES", 100_000)
    lines = ["a0: &a0 [x, x]"] + [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60)]
    with pytest.raises(InvalidRequest, match="more than 100,000 bytes as JSON"):
        yaml_to_json("\n".join(lines).encode(), "job.yaml")


def test_an_answer_reads_back_as_it_was() -> None:
    answer = {"b": "no", "a": ["1e-3", "true", "", "ü", {"x": None, "y": 0.5}], "text": "one\ntwo\x1b"}
    written = dump_yaml(answer)
    assert parse_yaml(written, "it") == answer
    assert "\x1b" not in written
    assert written.startswith("b:")
