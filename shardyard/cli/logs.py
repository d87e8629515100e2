"""The command `logs`."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from shardyard import formatting
from shardyard.cli.common import AsJson, Commands, JobId, Token, Url, connect_client

if TYPE_CHECKING:
    from shardyard.contract.responses import LogPage


def logs_command(
    job: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the log until the job ends.")] = False,
    device: Annotated[int | None, typer.Option(help="Only this device of the lease.", show_default=False)] = None,
    stream: Annotated[
        str | None,
        typer.Option(
            help="Only these: all, or some of stdout, stderr, shard, service with commas between them.",
            show_default="a script's own and the service's lines; all of a recipe",
        ),
    ] = None,
    tail: Annotated[
        int | None, typer.Option("--tail", "-n", min=1, help="Begin with the last lines.", show_default=False)
    ] = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Print the output of a job, with the device in front of each line. With --json: one object a line."""
    from shardyard.client import operations

    with connect_client(url, token) as client:
        for page in client.items(operations.log_pages(job, follow=follow, tail=tail, device=device, stream=stream)):
            _print_page(page, as_json)


def _print_page(page: "LogPage", as_json: bool) -> None:
    import msgspec

    for line in page.lines:
        print(msgspec.json.encode(line).decode() if as_json else formatting.log_line(line.device, line.text))
    for gap in page.dropped:
        lost = f"device {gap.device}: lines {gap.first} to {gap.last} could not be kept ({gap.bytes} bytes)"
        print(lost, file=sys.stderr)
    if page.cut_off and not page.lines:
        end = f"attempt {page.attempt} was lost here: what it printed after this line is gone, or still on its node"
        print(end, file=sys.stderr)
    sys.stdout.flush()


COMMANDS: Commands = {"logs": logs_command}
