"""The command `artifacts`."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shardyard import formatting
from shardyard.cli.common import (
    AsJson,
    Commands,
    JobId,
    Token,
    Url,
    connect_client,
    make_console,
    make_table,
    print_answer,
)
from shardyard.contract.errors import InvalidRequest
from shardyard.contract.plain_text import escape_unsafe

if TYPE_CHECKING:
    from shardyard.contract.responses import ArtifactList


def artifacts_command(
    job: JobId,
    get: Annotated[str | None, typer.Option(metavar="PATH", help="Download this file.", show_default=False)] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", metavar="FILE|-", help="File to write; by default its own name.", show_default=False
        ),
    ] = None,
    attempt: Annotated[int | None, typer.Option(help="Default: the newest.", show_default=False)] = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """List the files that a job stored, or download one of them.

    Your own files are those that the script wrote into its working directory (files/) or stored (artifacts/).
    """
    if get is None and output is not None:
        raise InvalidRequest("--output needs --get; name the file to download")
    from shardyard.client import endpoints, operations

    if get is None:
        return print_answer(endpoints.list_artifacts(job, attempt=attempt), _print_artifacts, url, token, as_json)
    with connect_client(url, token) as client:
        parts = client.items(operations.download_artifact(job, get, attempt))
        return _save_download(parts, output or Path(get).name)


#: Headings, by the kind of what stands below them. A kind of a later version has its own name there.
HEADINGS = {"file": "YOUR FILES", "checkpoint": "CHECKPOINTS", "profile": "PROFILES", "report": "REPORT"}


def _print_artifacts(found: "ArtifactList") -> None:
    console = make_console()
    kinds = dict.fromkeys([*HEADINGS, *(one.kind for one in found.artifacts)])
    groups = [[one for one in found.artifacts if one.kind == kind] for kind in kinds]
    for number, group in enumerate(filter(None, groups)):
        if number:
            console.print()
        kind = group[0].kind
        listing = make_table(HEADINGS.get(kind, kind.upper()), "#SIZE", "CHANGED")
        for one in group:
            listing.add_row(
                escape_unsafe(one.path), formatting.byte_count(one.bytes), formatting.local_time(one.modified_at)
            )
        console.print(listing)
    if not found.artifacts:
        console.print("no files")
    if found.truncated:
        console.print("there are more files than this list shows")
    for left_out in found.left_out:
        console.print(escape_unsafe(left_out.message), style="yellow", markup=False, highlight=False, soft_wrap=True)


def _save_download(parts: Iterator[bytes], output: str) -> None:
    """Write a download to standard output, or atomically to a file."""
    if output == "-":
        for part in parts:
            sys.stdout.buffer.write(part)
        sys.stdout.buffer.flush()
        return
    from shardyard.client.downloads import open_draft

    target = Path(output)
    try:
        with open_draft(target) as file:
            for part in parts:
                file.write(part)
    except OSError as error:
        raise InvalidRequest(f"cannot write {output}: {error.strerror}") from error
    print(f"{target}: {formatting.byte_count(target.stat().st_size)}")


COMMANDS: Commands = {"artifacts": artifacts_command}
