"""The command that shows split reports: one, or two side by side; as text, as JSON, or in files as pictures."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shardyard.cli.common import AsJson, Commands, JobId, Token, Url, connect_client, print_json
from shardyard.contract.errors import InvalidRequest
from shardyard.render.svg.palette import By

if TYPE_CHECKING:
    from shardyard.client import Client

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
    files = {HTML: html, SVG: svg}
    wanted = {kind: file for kind, file in files.items() if file is not None}
    _check_options(wanted, by, against, device, as_json)
    with connect_client(url, token) as client:
        if wanted:
            drawn = {kind: _draw_picture(client, kind, job, against, attempt, device, by) for kind in wanted}
            for kind, file in wanted.items():
                _write_picture(drawn[kind], file)
        elif against is not None:
            _print_comparison(client, job, against, attempt, as_json=as_json, notes=notes)
        else:
            _print_report(client, job, attempt, device, as_json=as_json, notes=notes)


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


def _print_report(
    client: "Client", job: str, attempt: int | None, device: int | None, *, as_json: bool, notes: bool
) -> None:
    from shardyard.client import endpoints

    if as_json:
        print_json(client.json(endpoints.get_report(job, attempt=attempt, device=device)))
    else:
        call = endpoints.draw_report("text/plain", job, attempt=attempt, device=device, notes=notes or None)
        print(client.call(call).decode(), end="")


def _print_comparison(
    client: "Client", job: str, against: str, attempt: int | None, *, as_json: bool, notes: bool
) -> None:
    from shardyard.client import endpoints

    if as_json:
        print_json(client.json(endpoints.compare_reports(job, against, attempt=attempt)))
    else:
        call = endpoints.draw_comparison("text/plain", job, against, attempt=attempt, notes=notes or None)
        print(client.call(call).decode(), end="")


def _draw_picture(
    client: "Client", kind: str, job: str, against: str | None, attempt: int | None, device: int | None, by: By | None
) -> bytes:
    from shardyard.client import endpoints

    if against is not None:
        return client.call(endpoints.draw_comparison(kind, job, against, attempt=attempt))
    return client.call(endpoints.draw_report(kind, job, attempt=attempt, device=device, by=by))


def _write_picture(drawn: bytes, file: str) -> None:
    """Write text to a file, or to standard output for "-". Raises InvalidRequest."""
    if file == "-":
        sys.stdout.buffer.write(drawn)
        sys.stdout.buffer.flush()
        return
    try:
        Path(file).write_bytes(drawn)
    except OSError as error:
        raise InvalidRequest(f"cannot write {file}: {error.strerror}; name a file that you can write") from error
    print(f"{file}: {len(drawn):,} bytes", file=sys.stderr)


COMMANDS: Commands = {"splits": splits_command}
