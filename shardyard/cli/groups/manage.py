"""Commands about groups of jobs: group list, show, report, cancel."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from shardyard import formatting
from shardyard.cli.common import (
    AsJson,
    NoColor,
    Token,
    Url,
    connect_client,
    make_console,
    make_table,
    print_json,
    state_text,
)
from shardyard.cli.framework.commands import make_app
from shardyard.cli.groups.follow import describe_progress, follow_group, print_report
from shardyard.contract.errors import NotFound

if TYPE_CHECKING:
    from shardyard.client import Client
    from shardyard.contract.groups import Comparison, GroupSummary, Sweep

T = TypeVar("T")
app = make_app(help="Comparisons and sweeps: groups of jobs.", no_args_is_help=True)
GroupId = Annotated[str, typer.Argument(metavar="GROUP", help="The id of a comparison or a sweep.", show_default=False)]
#: Groups of each kind that a list has.
LISTED = 20


@app.command("list")
def list_command(url: Url = None, token: Token = None, as_json: AsJson = False, no_color: NoColor = False) -> None:
    """List your comparisons and sweeps, the newest 20 of each."""
    from shardyard.client.groups import endpoints

    with connect_client(url, token) as client:
        calls = endpoints.list_comparisons(limit=LISTED), endpoints.list_sweeps(limit=LISTED)
        if as_json:
            comparisons, sweeps = (client.json(call) for call in calls)
            return print_json({"comparisons": comparisons["comparisons"], "sweeps": sweeps["sweeps"]})
        rows = [("comparison", one) for one in client.call(calls[0]).comparisons]
        rows += [("sweep", one) for one in client.call(calls[1]).sweeps]
    now = datetime.now(UTC)
    listing = make_table("GROUP", "KIND", "NAME", "STATE", "#JOBS", "#ENDED", "AGE")
    for kind, one in sorted(rows, key=lambda row: row[1].id, reverse=True):
        alive = sum(one.counts.get(state, 0) for state in ("queued", "starting", "running"))
        created = formatting.format_age((now - one.created_at).total_seconds())
        listing.add_row(one.id, kind, one.name, state_text(one.state), str(one.jobs), str(one.jobs - alive), created)
    return make_console().print(listing)


@app.command("show")
def show_command(
    group: GroupId, url: Url = None, token: Token = None, as_json: AsJson = False, no_color: NoColor = False
) -> None:
    """Show the jobs of a comparison or a sweep."""
    from shardyard.client.groups import endpoints
    from shardyard.contract.groups import Comparison

    with connect_client(url, token) as client:
        kind, found = find_group(client, group)
        if as_json:
            return print_json(client.json(endpoints.BY_KIND[kind].show(group)))
    console = make_console()
    console.print(describe_progress(found), markup=False, highlight=False)
    listing = make_table("#NUMBER", "WHAT", "STATE", "JOB", "MESSAGE")
    for number, what, one in _jobs_of(found):
        listing.add_row(
            str(number), what, state_text(one.state), one.job, "" if one.state == "succeeded" else one.message
        )
    console.print(listing)
    if isinstance(found, Comparison):
        for left in found.left_out:
            console.print(f"left out: {left.strategy} on {left.devices}: {left.why}", markup=False, highlight=False)
    return None


def _jobs_of(found: "Comparison | Sweep") -> list[tuple[int, str, Any]]:
    from shardyard.contract.groups import Comparison

    if isinstance(found, Comparison):
        return [(one.number, f"{one.strategy} on {one.devices}", one) for one in found.variants]
    return [
        (one.number, ", ".join(f"{path}={value}" for path, value in one.values.items()), one) for one in found.trials
    ]


@app.command("report")
def report_command(
    group: GroupId,
    html: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write it as a page, with curves.", show_default=False)
    ] = None,
    svg: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the loss curves as a picture.", show_default=False)
    ] = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
    no_color: NoColor = False,
) -> None:
    """Print what a comparison or a sweep has found so far."""
    from shardyard.client.groups import endpoints

    with connect_client(url, token) as client:
        kind, _ = find_group(client, group)
        draw = endpoints.BY_KIND[kind].draw
        for path, media in ((html, "text/html"), (svg, "image/svg+xml")):
            if path is not None:
                Path(path).write_text(client.call(draw(group, media)), encoding="utf-8")
        if html is None and svg is None:
            print_report(client, kind, group, as_json=as_json)


@app.command("study")
def study_command(
    group: GroupId,
    file: Annotated[str, typer.Argument(metavar="FILE", help="Where to write it, - for standard output.")],
    url: Url = None,
    token: Token = None,
    no_color: NoColor = False,
) -> None:
    """Download the study of a sweep that Optuna leads, as a journal that Optuna's tools open."""
    from shardyard.client.groups import endpoints

    with connect_client(url, token) as client:
        content = client.call(endpoints.get_study(group))
    if file == "-":
        typer.get_binary_stream("stdout").write(content)
    else:
        Path(file).write_bytes(content)


@app.command("watch")
def watch_command(
    group: GroupId, url: Url = None, token: Token = None, as_json: AsJson = False, no_color: NoColor = False
) -> None:
    """Follow a comparison or a sweep until it has ended, and print its report."""
    with connect_client(url, token) as client:
        kind, _ = find_group(client, group)
        follow_group(client, kind, group, as_json=as_json)


@app.command("cancel")
def cancel_command(
    group: GroupId, url: Url = None, token: Token = None, as_json: AsJson = False, no_color: NoColor = False
) -> None:
    """Cancel all jobs of a comparison or a sweep that have not ended."""
    from shardyard.client.groups import endpoints

    with connect_client(url, token) as client:
        kind, _ = find_group(client, group)
        cancel = endpoints.BY_KIND[kind].cancel(group)
        if as_json:
            return print_json(client.json(cancel))
        found: GroupSummary = client.call(cancel)
    return make_console().print(describe_progress(found), markup=False, highlight=False)


def find_group(client: "Client", group: str) -> "tuple[str, Comparison | Sweep]":
    """Its kind, and what it is. Raises NotFound."""
    from shardyard.client.groups import endpoints

    for kind, calls in endpoints.BY_KIND.items():
        try:
            return kind, client.call(calls.show(group))
        except NotFound:
            continue
    raise NotFound(f"there is no comparison and no sweep {group!r}; `shardyard group list` shows yours")
