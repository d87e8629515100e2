"""The command `logs`."""

import json
import sys
import time
from typing import Annotated, Any

import typer

from shardyard.cli.common import TERMINAL, AsJson, Commands, JobId, Token, Url, connect

POLL_SECONDS = 0.4
LINES_PER_PAGE = 1000


def logs(
    job: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
    device: Annotated[int | None, typer.Option(help="Only this device of the lease.", show_default=False)] = None,
    stream: Annotated[
        str | None, typer.Option(help="Only stdout, stderr, shard or service.", show_default=False)
    ] = None,
    tail: Annotated[
        int | None, typer.Option("--tail", "-n", min=1, help="Begin with the last lines.", show_default=False)
    ] = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Print what the job wrote, each line behind its device's number. With --json: one object a line."""
    with connect(url, token) as client:
        cursor: str | None = None
        while True:
            first = tail if cursor is None else None
            page = client.logs(job, device=device, stream=stream, tail=first, after=cursor, limit=LINES_PER_PAGE)
            _print_page(page, as_json)
            cursor = page["next"] or cursor
            if page["lines"] or page["dropped"]:
                continue  # there may be more already
            if not follow:
                return
            status = client.job(job)
            if page["ended"] and status["state"] in TERMINAL:
                return
            if status["attempt"] > page["attempt"]:
                cursor = None  # the cursor belongs to the attempt before
            time.sleep(POLL_SECONDS)


def _print_page(page: dict[str, Any], as_json: bool) -> None:
    for line in page["lines"]:
        print(json.dumps(line) if as_json else f"{line['device']}| {line['text']}")
    for gap in page["dropped"]:
        lost = f"device {gap['device']}: lines {gap['from']} to {gap['to']} could not be kept ({gap['bytes']} bytes)"
        print(lost, file=sys.stderr)
    sys.stdout.flush()


COMMANDS: Commands = {"logs": logs}
