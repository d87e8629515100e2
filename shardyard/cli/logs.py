"""The command `logs`."""

import re
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.color import ANSI_COLOR_NAMES
from rich.style import Style

from shardyard import formatting
from shardyard.cli.common import (
    AsJson,
    Commands,
    JobId,
    NoColor,
    Token,
    Url,
    connect_client,
    make_console,
    parse_seconds,
)
from shardyard.cli.framework.completion import complete_streams
from shardyard.contract.errors import InvalidRequest

if TYPE_CHECKING:
    from shardyard.contract.responses import LogLine, LogPage

#: Of devices, in turn; those of the eight colours that are read on light and dark ground.
DEVICE_COLOURS: Final = ("cyan", "magenta", "green", "blue", "yellow", "bright_cyan", "bright_magenta", "bright_green")
#: Of streams that are not what a program prints as it should.
STREAM_STYLES: Final = {"stderr": Style(color="red"), "service": Style(dim=True), "shard": Style(dim=True)}
assert all(colour in ANSI_COLOR_NAMES for colour in DEVICE_COLOURS)


class LinePrinter:
    """Prints the lines that are wanted: those from a time on, and those that a pattern fits."""

    def __init__(self, *, as_json: bool, since: float | None, pattern: "re.Pattern[str] | None") -> None:
        self._as_json = as_json
        self._from = None if since is None else datetime.now(UTC) - timedelta(seconds=since)
        self._pattern = pattern
        self._console = make_console()
        self._coloured = self._console.is_terminal and not self._console.no_color and not as_json

    def print_page(self, page: "LogPage") -> None:
        for line in page.lines:
            if self._wants(line):
                print(self._format(line))
        for gap in page.dropped:
            lost = f"device {gap.device}: lines {gap.first} to {gap.last} could not be kept ({gap.bytes} bytes)"
            print(lost, file=sys.stderr)
        if page.cut_off and not page.lines:
            end = f"attempt {page.attempt} was lost here: what it printed after this line is gone, or still on its node"
            print(end, file=sys.stderr)
        sys.stdout.flush()

    def _wants(self, line: "LogLine") -> bool:
        if self._from is not None and (line.at is None or line.at < self._from):
            return False
        return self._pattern is None or self._pattern.search(line.text) is not None

    def _format(self, line: "LogLine") -> str:
        if self._as_json:
            import msgspec

            return msgspec.json.encode(line).decode()
        text = formatting.log_line(line.device, line.text)
        if not self._coloured:
            return text
        device, bar, rest = text.partition("| ")
        colour = Style(color=DEVICE_COLOURS[line.device % len(DEVICE_COLOURS)])
        system = self._console._color_system  # what this terminal has; rich names it only so
        style = STREAM_STYLES.get(line.stream)
        rest = rest if style is None else style.render(rest, color_system=system)
        return colour.render(device + bar, color_system=system) + rest


def logs_command(
    job: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the log until the job ends.")] = False,
    device: Annotated[int | None, typer.Option(help="Only this device of the lease.", show_default=False)] = None,
    rank: Annotated[int | None, typer.Option(min=0, help="Only this rank.", show_default=False)] = None,
    stream: Annotated[
        str | None,
        typer.Option(
            help="Only these: all, or some of stdout, stderr, shard, service, comma-separated.",
            show_default="a script's own and the service's lines; all of a recipe",
            autocompletion=complete_streams,
        ),
    ] = None,
    stderr: Annotated[bool, typer.Option("--stderr", help="Only stderr: --stream stderr.")] = False,
    since: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="Only lines newer than this: 90s, 10m, 2h, 1d.", show_default=False),
    ] = None,
    grep: Annotated[
        str | None,
        typer.Option(
            metavar="PATTERN",
            help="Only lines that match this regular expression; (?i) ignores case.",
            show_default=False,
        ),
    ] = None,
    tail: Annotated[
        int | None,
        typer.Option("--tail", "-n", min=1, help="Begin with this many of the last lines.", show_default=False),
    ] = None,
    attempt: Annotated[int | None, typer.Option(min=1, help="From this attempt.", show_default="the newest")] = None,
    no_color: NoColor = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Print the output of a job, with the device in front of each line. With --json: one object a line."""
    if stderr and stream is not None:
        raise InvalidRequest("--stderr is --stream stderr; give one of them")
    age = None if since is None else parse_seconds(since, "--since")
    printer = LinePrinter(as_json=as_json, since=age, pattern=_compile_pattern(grep))
    chosen: dict[str, Any] = {
        "device": device,
        "rank": rank,
        "stream": "stderr" if stderr else stream,
        "attempt": attempt,
    }
    from shardyard.client import operations

    with connect_client(url, token) as client:
        for page in client.items(operations.log_pages(job, follow=follow, tail=tail, **chosen)):
            printer.print_page(page)


def _compile_pattern(given: str | None) -> "re.Pattern[str] | None":
    if given is None:
        return None
    try:
        return re.compile(given)
    except re.error as error:
        raise InvalidRequest(f"--grep {given!r} is not a regular expression: {error}") from error


COMMANDS: Commands = {"logs": logs_command}
