"""Options that several commands have, and functions that print."""

import json
import os
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from shardyard import formatting
from shardyard.cli.framework.completion import complete_jobs
from shardyard.contract.errors import InvalidRequest
from shardyard.contract.plain_text import escape_unsafe

if TYPE_CHECKING:
    from shardyard.client import Client
    from shardyard.client.transport import HttpCall
    from shardyard.contract.responses import JobSummary

T = TypeVar("T")

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="SHARDYARD_URL",
        help="Address of the service. Without it: the one on this machine.",
        show_default=False,
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar="SHARDYARD_TOKEN",
        help="Bearer token; better given by its variable.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the service's answer as JSON.")]
JOB_HELP = "Its id or a part of it, such as the last eight digits; its name, for the newest with that name; or @last."
JobId = Annotated[str, typer.Argument(metavar="JOB", help=JOB_HELP, show_default=False, autocompletion=complete_jobs)]

NoColor = Annotated[
    bool,
    typer.Option("--no-color", help="Plain text, as with NO_COLOR set.", callback=lambda chosen: _no_color(chosen)),
]

#: The commands of one module, by the name that users type.
Commands = dict[str, Callable[..., None]]

STATE_STYLES = {
    "queued": "yellow",
    "starting": "cyan",
    "running": "cyan",
    "succeeded": "green",
    "failed": "red",
    "cancelled": "magenta",
}
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}
#: In a pipe no line is broken at the 80 columns that rich assumes there.
PIPE_WIDTH = 300


def connect_client(url: str | None, token: str | None) -> "Client":
    from shardyard.client import Client

    return Client(url, token)


class _SafeConsole(Console):
    """A console that prints untrusted text literally, with what a terminal would obey written out, and tables in a pipe
    without truncating them."""

    def print(self, *objects: Any, **how: Any) -> None:
        if objects and isinstance(objects[0], Table) and not self.is_terminal:
            super().print(plain_rows(objects[0]), soft_wrap=True)
        else:
            super().print(*objects, **how)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(escape_unsafe(segment.text, keep="\t\n"), segment.style)


def make_console(*, markup: bool = False) -> Console:
    """A console for standard output. Without `markup`, brackets are printed literally, since names and messages are
    untrusted."""
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return _SafeConsole(width=width, highlight=False, markup=markup, emoji=False)


def _no_color(chosen: bool) -> bool:
    """Set NO_COLOR, which rich reads whenever a console is created."""
    if chosen:
        os.environ["NO_COLOR"] = "1"
    return chosen


def print_json(answer: Any) -> None:
    print(json.dumps(answer, indent=2))


def print_answer(
    call: "HttpCall[T]", show: Callable[[T], object], url: str | None, token: str | None, as_json: bool
) -> None:
    """Send one request, and print its answer: as JSON, unchanged, or as `show` does."""
    with connect_client(url, token) as client:
        if as_json:
            print_json(client.json(call))
        else:
            show(client.call(call))


class _SafeTable(Table):
    """Writes out what a terminal would obey before widths are measured."""

    def add_row(self, *cells: RenderableType | None, **how: Any) -> None:
        super().add_row(*(escape_unsafe(cell) if isinstance(cell, str) else cell for cell in cells), **how)


def make_table(*columns: str) -> Table:
    """An open table; columns whose name begins with `#` are right-aligned numbers."""
    made = _SafeTable(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column.removeprefix("#"), justify="right" if column.startswith("#") else "left", no_wrap=True)
    return made


def plain_rows(listing: Table) -> str:
    """A line for each row, with columns as wide as needed, whatever the terminal's width, and without trailing
    spaces."""
    columns = [
        [formatting.single_line(str(cell)) for cell in (column.header, *column.cells)] for column in listing.columns
    ]
    for number, column in enumerate(columns):
        room = max(map(cell_len, column))
        blanks = [" " * (room - cell_len(cell)) for cell in column]
        right = listing.columns[number].justify == "right"
        columns[number] = [gap + cell if right else cell + gap for cell, gap in zip(column, blanks, strict=True)]
    return "\n".join("  ".join(row).rstrip() for row in zip(*columns, strict=True))


def state_text(state: str) -> Text:
    return Text(state, style=STATE_STYLES.get(state, ""))


def parse_seconds(given: str, option: str) -> float:
    """The seconds of a duration such as 10m, the value of `option`. Raises InvalidRequest."""
    match = _TIME.fullmatch(given.strip())
    if match is None:
        raise InvalidRequest(f"{option} {given!r} is not a time; write seconds, or 90s, 10m, 2h, 1d")
    return float(match[1]) * _UNITS[match[2]]


def read_spec(file: str) -> bytes:
    """A job spec from a file with JSON or YAML, or from standard input for "-", as JSON. Raises InvalidRequest."""
    from shardyard.specs.spec_files import read_spec_file

    return read_spec_file(file)


def write_file(file: str | Path, body: bytes) -> None:
    """Raises InvalidRequest where the file cannot be written."""
    try:
        Path(file).write_bytes(body)
    except OSError as error:
        raise InvalidRequest(f"cannot write {file}: {error.strerror}; name a file that you can write") from error


def print_submitted(job: "JobSummary") -> None:
    """Print a new job: in words in a terminal, its id alone in a pipe."""
    if sys.stdout.isatty():
        short = formatting.short_id(job.id)
        make_console().print(Text.assemble((job.name, "bold"), f" is {job.state}: {short}"))
    else:
        print(job.id)  # for scripts
