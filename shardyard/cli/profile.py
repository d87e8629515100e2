"""The command `profile`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shardyard import formatting
from shardyard.cli.common import AsJson, Commands, JobId, Token, Url, connect_client, make_console, print_json
from shardyard.contract.errors import InvalidRequest

if TYPE_CHECKING:
    from shardyard.client import Client
    from shardyard.contract.responses import ProfileView


def profile_command(
    job: JobId,
    steps: Annotated[int, typer.Option(min=1, max=100, help="How many steps each rank records.")] = 10,
    download: Annotated[
        bool, typer.Option("--download", help="Save the traces, in the directory of --output.")
    ] = False,
    output: Annotated[str, typer.Option("--output", "-o", metavar="DIR", help="Where --download saves them.")] = ".",
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Record a trace of the next steps of a running job, on every rank.

    The job continues: nothing is restarted. Open the traces in https://ui.perfetto.dev or chrome://tracing.
    """
    import msgspec

    from shardyard.client import operations

    with connect_client(url, token) as client:
        found = client.run(operations.record_profile(job, steps))
        if as_json:
            print_json(msgspec.to_builtins(found))
        else:
            _print_profile(found)
        if download:
            _save_traces(client, job, found, Path(output))
    if not any(rank.path for rank in found.ranks):
        raise typer.Exit(1)


def _print_profile(found: "ProfileView") -> None:
    console = make_console()
    for rank in found.ranks:
        took = (
            f"{formatting.count_noun(rank.steps, 'step')} in {rank.seconds:.2f} s, {formatting.byte_count(rank.bytes)}"
        )
        said = f"{rank.path}  {took}" if rank.path else f"no trace: {rank.error}"
        console.print(f"rank {rank.rank}  {said}", markup=False, highlight=False, soft_wrap=True)
    if not found.ranks:
        console.print(f"profile {found.number} was lost: the attempt ended first")


def _save_traces(client: "Client", job: str, found: "ProfileView", directory: Path) -> None:
    """Save each trace as <directory>/<job>-profile-<n>-rank-<r>.json.gz."""
    from shardyard.client import operations
    from shardyard.client.downloads import open_draft

    for rank in found.ranks:
        if rank.path is None:
            continue
        target = directory / f"{job}-profile-{found.number}-rank-{rank.rank}.json.gz"
        try:
            with open_draft(target) as file:
                for part in client.items(operations.download_artifact(job, rank.path, found.attempt)):
                    file.write(part)
        except OSError as error:
            raise InvalidRequest(f"cannot write {target}: {error.strerror}") from error
        print(target)


COMMANDS: Commands = {"profile": profile_command}
