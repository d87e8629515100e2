"""Every command with all of its arguments and options, from the parser itself."""

import re
from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from shardyard.cli import app


def text() -> str:
    return (
        "# Commands\n\n"
        "All commands with their arguments and options, as `shardyard COMMAND --help` has them. [The command "
        "line](../cli.md) explains them in their contexts.\n\n" + "\n".join(_commands(get_command(app), "shardyard"))
    )


def _commands(command: Any, name: str) -> Iterator[str]:
    below = getattr(command, "commands", None)
    if below is not None:
        for sub in below.values():
            if not sub.hidden:
                yield from _commands(sub, f"{name} {sub.name}")
        return
    arguments = [_named(given) for given in command.params if given.param_type_name == "argument"]
    yield f"## {name.removeprefix('shardyard ')}\n"
    yield f"```text\n{' '.join([name, *arguments, '[OPTIONS]'])}\n```\n"
    yield f"{_words(command.help)}\n"
    if rows := [_row(given) for given in command.params if not getattr(given, "hidden", False)]:
        yield "\n".join(["| argument or option | means |", "|---|---|", *rows]) + "\n"


def _named(argument: Any) -> str:
    word = argument.metavar or argument.name.upper()
    many = "..." if argument.nargs == -1 and not word.endswith(("...", "...]")) else ""
    return word + many if argument.required or word.startswith("[") else f"[{word}{many}]"


def _row(given: Any) -> str:
    if given.param_type_name == "argument":
        return f"| `{_named(given).replace('|', ' or ')}` | {_words(given.help)} |"
    flag = getattr(given, "is_flag", False)
    value = "" if flag else f" {given.metavar or given.opts[-1].lstrip('-').upper().replace('-', '_')}"
    names = ", ".join(f"`{name}{value}`" for name in [*given.opts, *given.secondary_opts])
    default = given.default
    shown = not (flag or default in (None, "", ()) or callable(default)) and getattr(given, "show_default", True)
    return f"| {names} | {_words(given.help)}{f' Default: `{default}`.' if shown else ''} |"


def _words(help_text: str | None) -> str:
    """In one line, as a cell of a table takes them."""
    words = re.sub(r"\s+", " ", (help_text or "").partition("\f")[0]).strip()
    return re.sub(r"(?<!`)<(\w+)>", r"`<\1>`", words.replace("|", "\\|"))
