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
from shardyard.cli.framework.completion import complete_groups
from shardyard.cli.groups.follow import describe_progress, follow_group, print_report
from shardyard.cli.groups.references import find_group, list_newest

if TYPE_CHECKING:
    from shardyard.contract.groups import Comparison, GroupSummary, Sweep

T = TypeVar("T")
app = make_app(help="Comparisons and sweeps: groups of jobs.", no_args_is_help=True)
Group = Annotated[
    str,
    typer.Argument(
        metavar="GROUP",
        help="A comparison or a sweep: its id or a part of it, such as the last eight digits; its name, for the newest "
        "of that name; or @last.",
        show_default=False,
        autocompletion=complete_groups,
    ),
]
#: Groups of each kind that a list has.
LISTED = 20


@app.command("list")
def list_command(url: Url = None, token: Token = None, as_json: AsJson = False, no_color: NoColor = False) -> None:
    """List your comparisons and sweeps, the newest 20 of each."""
    from shardyard.client.groups import endpoints

    with connect_client(url, token) as client:
        if as_json:
            calls = endpoints.list_comparisons(limit=LISTED), endpoints.list_sweeps(limit=LISTED)
            comparisons, sweeps = (client.json(call) for call in calls)
            return print_json({"comparisons": comparisons["comparisons"], "sweeps": sweeps["sweeps"]})
        rows = list_newest(client, LISTED)
    now = datetime.now(UTC)
    listing = make_table("GROUP", "KIND", "NAME", "STATE", "#JOBS", "#ENDED", "AGE")
    for kind, one in rows:
        alive = sum(one.counts.get(state, 0) for state in ("queued", "starting", "running"))
        created = formatting.format_age((now - one.created_at).total_seconds())
        listing.add_row(one.id, kind, one.name, state_text(one.state), str(one.jobs), str(one.jobs - alive), created)
    return make_console().print(listing)


@app.command("show")
def show_command(
    group: Group, url: Url = None, token: Token = None, as_json: AsJson = False, no_color: NoColor = False
) -> None:
    """Show the jobs of a comparison or a sweep."""
    from shardyard.client.groups import endpoints
    from shardyard.contract.groups import Comparison

    with connect_client(url, token) as client:
        kind, found = find_group(client, group)
        if as_json:
            return print_json(client.json(endpoints.BY_KIND[kind].show(found.id)))
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
    group: Group,
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
        kind, found = find_group(client, group)
        draw = endpoints.BY_KIND[kind].draw
        for path, media in ((html, "text/html"), (svg, "image/svg+xml")):
            if path is not None:
                Path(path).write_text(client.call(draw(found.id, media)), encoding="utf-8")
        if html is None and svg is None:
            print_report(client, kind, found.id, as_json=as_json)


@app.command("study")
def study_command(
    group: Group,
    file: Annotated[str, typer.Argument(metavar="FILE", help="Where to write it, - for standard output.")],
    url: Url = None,
    token: Token = None,
    no_color: NoColor = False,
) -> None:
    """Download the study of a sweep that uses Optuna, as a journal that Optuna's tools open."""
    from shardyard.client.groups import endpoints

    with connect_client(url, token) as client:
        content = client.call(endpoints.get_study(find_group(client, group)[1].id))
    if file == "-":
        typer.get_binary_stream("stdout").write(content)
    else:
        Path(file).write_bytes(content)


@app.command("watch")
def watch_command(
    group: Group, url: Url = None, token: Token = None, as_json: AsJson = False, no_color: NoColor = False
) -> None:
    """Follow a comparison or a sweep until it has ended, and print its report."""
    with connect_client(url, token) as client:
        kind, found = find_group(client, group)
        follow_group(client, kind, found.id, as_json=as_json)


@app.command("cancel")
def cancel_command(
    group: Group, url: Url = None, token: Token = None, as_json: AsJson = False, no_color: NoColor = False
) -> None:
    """Cancel all jobs of a comparison or a sweep that have not ended."""
    from shardyard.client.groups import endpoints

    with connect_client(url, token) as client:
        kind, found = find_group(client, group)
        cancel = endpoints.BY_KIND[kind].cancel(found.id)
        if as_json:
            return print_json(client.json(cancel))
        after: GroupSummary = client.call(cancel)
    return make_console().print(describe_progress(after), markup=False, highlight=False)
