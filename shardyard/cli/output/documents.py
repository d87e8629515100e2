"""The option `-o`: in which form a command prints its answer."""

import json
import sys
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from shardyard.cli.common import print_json
from shardyard.cli.output.json_path import Part, find_values, parse_json_path
from shardyard.contract.errors import InvalidRequest
from shardyard.contract.plain_text import escape_unsafe

FORMS = ("table", "wide", "json", "yaml", "jsonpath=PATH")


def complete_form(incomplete: str) -> list[str]:
    return [form.removesuffix("PATH") for form in FORMS if form.startswith(incomplete)]


Output = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FORM",
        help="table, wide, json, yaml, or jsonpath=PATH, for example jsonpath={.id}.",
        show_default="table",
        autocompletion=complete_form,
    ),
]


@dataclass(frozen=True, slots=True)
class OutputForm:
    """`path` is that of the form `jsonpath`."""

    name: str = "table"
    path: list[Part] = field(default_factory=list)

    @property
    def is_document(self) -> bool:
        """Whether it prints the answer itself, rather than a table."""
        return self.name not in ("table", "wide")


def parse_output(given: str | None, as_json: bool = False) -> OutputForm:
    """The form that `-o` and `--json` name. Raises InvalidRequest."""
    name, equals, path = (given or ("json" if as_json else "table")).partition("=")
    if as_json and name != "json":
        raise InvalidRequest(f"--json and -o {given} name two formats; give one of them")
    if name == "jsonpath" and path:
        return OutputForm(name, parse_json_path(path))
    if equals or name not in ("table", "wide", "json", "yaml"):
        raise InvalidRequest(f"-o {given}: there are {', '.join(FORMS)}")
    return OutputForm(name)


def print_document(answer: Any, form: OutputForm) -> None:
    """Print an answer as JSON, as YAML, or the parts of it that a path leads to, one a line."""
    if form.name == "json":
        print_json(answer)
    elif form.name == "yaml":
        from shardyard.specs.yaml_text import dump_yaml

        sys.stdout.write(dump_yaml(answer))
    else:
        for value in find_values(answer, form.path):
            print(escape_unsafe(value, keep="\t\n") if isinstance(value, str) else json.dumps(value))
