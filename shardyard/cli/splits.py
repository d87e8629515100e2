"""The command that shows split reports: one, or two side by side."""

from typing import Annotated

import typer

from jobs.errors import InvalidRequest
from shardyard.cli.common import AsJson, Commands, JobId, Token, Url, connect, print_json

Attempt = Annotated[int | None, typer.Option(help="Default: the newest.", show_default=False)]


def splits(
    job: JobId,
    against: Annotated[
        str | None, typer.Option(metavar="JOB", help="Another job, to show both side by side.", show_default=False)
    ] = None,
    attempt: Attempt = None,
    device: Annotated[int | None, typer.Option(help="Only this device of the lease.", show_default=False)] = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Show what each device got of every batch, what it cost there, and what to change."""
    if against is None:
        return _one(job, attempt, device, url, token, as_json)
    if device is not None:
        raise InvalidRequest("--against compares whole reports; leave --device out")
    from shardyard.client import calls

    with connect(url, token) as client:
        if as_json:
            print_json(client.json(calls.splits_diff(job, against, attempt=attempt)))
        else:
            print(client.call(calls.splits_diff_text(job, against, attempt=attempt)), end="")
    return None


def _one(job: str, attempt: int | None, device: int | None, url: str | None, token: str | None, as_json: bool) -> None:
    from shardyard.client import calls

    with connect(url, token) as client:
        if as_json:
            print_json(client.json(calls.splits(job, attempt=attempt, device=device)))
        else:
            text = client.call(calls.splits_as("text/plain", job, attempt=attempt, device=device))
            print(text.decode(), end="")


COMMANDS: Commands = {"splits": splits}
