"""The command that shows split reports: one, or two side by side; as text, as JSON, or in files as pictures."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from shardyard.cli.common import AsJson, Commands, JobId, Token, Url, connect_client, print_json, write_file
from shardyard.contract.errors import InvalidRequest
from shardyard.render.svg.palette import By

if TYPE_CHECKING:
    from shardyard.client.transport import HttpCall

Attempt = Annotated[int | None, typer.Option(help="Default: the newest.", show_default=False)]

HTML, SVG = "text/html", "image/svg+xml"


def splits_command(
    job: JobId,
    against: Annotated[
        str | None, typer.Option(metavar="JOB", help="Another job, to show both side by side.", show_default=False)
    ] = None,
    attempt: Attempt = None,
    device: Annotated[int | None, typer.Option(help="Only this device of the lease.", show_default=False)] = None,
    html: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write everything as one HTML file; - for stdout.", show_default=False),
    ] = None,
    svg: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the heat map as SVG; - for stdout.", show_default=False)
    ] = None,
    by: Annotated[By | None, typer.Option(help="What the heat map shows. Default: rows.", show_default=False)] = None,
    notes: Annotated[bool, typer.Option("--notes", help="Say why numbers are missing or count differently.")] = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Show what each device got of every batch, what it cost there, and what to change."""
    from shardyard.client import endpoints

    files = {HTML: html, SVG: svg}
    wanted = {kind: file for kind, file in files.items() if file is not None}
    _check_options(wanted, by, against, device, as_json)

    def draw(kind: str, with_notes: bool | None = None) -> "HttpCall[bytes]":
        if against is not None:
            return endpoints.draw_comparison(kind, job, against, attempt=attempt, notes=with_notes)
        return endpoints.draw_report(kind, job, attempt=attempt, device=device, by=by, notes=with_notes)

    with connect_client(url, token) as client:
        if wanted:
            drawn = {kind: client.call(draw(kind)) for kind in wanted}
            for kind, file in wanted.items():
                _write_picture(drawn[kind], file)
        elif not as_json:
            print(client.call(draw("text/plain", notes or None)).decode(), end="")
        elif against is not None:
            print_json(client.json(endpoints.compare_reports(job, against, attempt=attempt)))
        else:
            print_json(client.json(endpoints.get_report(job, attempt=attempt, device=device)))


def _check_options(
    wanted: dict[str, str], by: str | None, against: str | None, device: int | None, as_json: bool
) -> None:
    """Refuse options that contradict each other."""
    if against is not None and device is not None:
        raise InvalidRequest("--against compares whole reports; leave --device out")
    if against is not None and SVG in wanted:
        raise InvalidRequest("two reports side by side are not a single picture; use --html instead of --svg")
    if wanted and as_json:
        raise InvalidRequest("--json prints the report; leave it out, or leave --html and --svg out")
    if by is not None and (not wanted or against is not None):
        raise InvalidRequest(
            f"--by chooses what one report's heat map shows; add --svg FILE or --html FILE to --by {by}"
        )
    if list(wanted.values()).count("-") > 1:
        raise InvalidRequest("only one of --html and --svg can go to standard output; give the other one a file name")


def _write_picture(drawn: bytes, file: str) -> None:
    """Write text to a file, or to standard output for "-". Raises InvalidRequest."""
    if file == "-":
        sys.stdout.buffer.write(drawn)
        sys.stdout.buffer.flush()
        return
    write_file(file, drawn)
    print(f"{file}: {len(drawn):,} bytes", file=sys.stderr)


COMMANDS: Commands = {"splits": splits_command}
