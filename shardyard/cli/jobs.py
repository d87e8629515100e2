"""Commands about jobs: plan, resubmit, watch, list, show, cancel, delete."""

from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.text import Text

from shardyard import formatting
from shardyard.cli.common import (
    AsJson,
    Commands,
    JobId,
    NoColor,
    Token,
    Url,
    connect,
    console,
    followed,
    print_json,
    print_submitted,
    read_spec,
    state_text,
    table,
)
from shardyard.cli.status import state_and_reason, status_lines
from shardyard.cli.submit import submit
from shardyard.contract.errors import InvalidRequest

#: Columns of a terminal from which on a list of jobs shows everything.
WIDE = 120


def watch(job: JobId, no_color: NoColor = False, url: Url = None, token: Token = None, as_json: AsJson = False) -> None:
    """Follow a job live, device by device, until it ends. Ctrl-C leaves the job running."""
    with connect(url, token) as client:
        raise typer.Exit(followed(client, job, as_json))


def list_jobs(
    state: Annotated[str | None, typer.Option(help="Only jobs in this state.", show_default=False)] = None,
    pool: Annotated[str | None, typer.Option(help="Only jobs of this pool.", show_default=False)] = None,
    label: Annotated[str | None, typer.Option(help="Only jobs with this label, key=value.", show_default=False)] = None,
    name: Annotated[str | None, typer.Option(help="Only jobs of this name.", show_default=False)] = None,
    archived: Annotated[
        bool, typer.Option("--archived", help="Jobs that ended long ago, instead of the others.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=200, help="How many, newest first.")] = 20,
    cursor: Annotated[str | None, typer.Option(help="Go on where an earlier list ended.", show_default=False)] = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """List jobs, newest first."""
    from shardyard.client import endpoints
    from shardyard.client.models import JobSummary

    chosen = {"state": state, "pool": pool, "label": label, "name": name, "archived": archived or None}
    call = endpoints.jobs(**chosen, limit=limit, cursor=cursor)
    with connect(url, token) as client:
        if as_json:
            return print_json(client.json(call))
        page = client.call(call)
    out = console()
    columns: dict[str, Callable[[JobSummary], str | Text]] = {
        "JOB": lambda job: job.id,
        "NAME": lambda job: job.name,
        "STATE": lambda job: state_text(job.state),
        "POOL": lambda job: job.pool,
        "RUNS": lambda job: f"{job.strategy} on {job.devices}",
        "CREATED": lambda job: formatting.local_time(job.created_at),
        "#TOOK": lambda job: formatting.duration(formatting.between(job.started_at, job.finished_at)),
    }
    if out.width < WIDE:
        del columns["POOL"], columns["CREATED"]  # an id that is cut off cannot be copied
    listing = table(*columns)
    listing.columns[0].min_width = 36
    listing.columns[2].min_width = 9
    for job in page.jobs:
        listing.add_row(*(show_column(job) for show_column in columns.values()))
    out.print(listing if page.jobs else "no jobs")
    if page.next:
        out.print(f"more: --cursor {page.next}", style="dim")
    return None


def show(job: JobId, url: Url = None, token: Token = None, as_json: AsJson = False) -> None:
    """Show one job: its state and why, where it runs, how far it is, and what came out."""
    from shardyard.client import endpoints

    with connect(url, token) as client:
        if as_json:
            return print_json(client.json(endpoints.job(job)))
        status = client.call(endpoints.job(job))
    out = console()
    for label, value in status_lines(status):
        out.print(f"{label:<10} ", style="bold", end="")
        out.print(value)
    return None


def plan(
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="A job spec in JSON; - reads it from standard input.")],
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Show what a job spec would give each device, and what to change. Nothing is created."""
    from shardyard.client import endpoints

    spec = read_spec(file)
    with connect(url, token) as client:
        if as_json:
            print_json(client.json(endpoints.plan(spec)))
        else:
            print(client.call(endpoints.plan_text(spec)), end="")


def resubmit(job: JobId, url: Url = None, token: Token = None, as_json: AsJson = False) -> None:
    """Submit a job's spec again, as a new job."""
    from shardyard.client import endpoints

    with connect(url, token) as client:
        if as_json:
            print_json(client.json(endpoints.resubmit(job)))
        else:
            print_submitted(client.call(endpoints.resubmit(job)))


def cancel(
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", help="The job's id.", show_default=False)] = None,
    state: Annotated[str | None, typer.Option(help="Jobs in this state.", show_default=False)] = None,
    pool: Annotated[str | None, typer.Option(help="Jobs of this pool.", show_default=False)] = None,
    label: Annotated[str | None, typer.Option(help="Jobs with this label, key=value.", show_default=False)] = None,
    name: Annotated[str | None, typer.Option(help="Jobs of this name.", show_default=False)] = None,
    everything: Annotated[bool, typer.Option("--all", help="All jobs that have not ended.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Cancel a job that waits or runs, or all that match every option that is given."""
    options = {"state": state, "pool": pool, "label": label, "name": name}
    chosen: dict[str, Any] = {field: value for field, value in options.items() if value is not None}
    if (job is not None) + bool(chosen) + everything != 1:
        raise InvalidRequest("name one job, or describe jobs by --state, --pool, --label, --name, or give --all")
    from shardyard.client import endpoints

    if job is not None:
        with connect(url, token) as client:
            if as_json:
                return print_json(client.json(endpoints.cancel(job)))
            status = client.call(endpoints.cancel(job))
        return console().print(f"{status.name} is {state_and_reason(status)}")
    if not yes:
        which = " and ".join(f"{field} {value}" for field, value in chosen.items())
        typer.confirm(f"Cancel all jobs {f'with {which}' if which else 'that have not ended'}?", abort=True, err=True)
    with connect(url, token) as client:
        cancelled, cancelling = client.cancel_jobs(**(chosen or {"all": True}))
    if as_json:
        return print_json({"cancelled": cancelled, "cancelling": cancelling, "complete": True})
    return print(f"{formatting.plural(cancelled, 'job')} cancelled, {cancelling} more told to end")


def delete(
    job: JobId,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Delete a finished job with its logs, report and files."""
    if not yes:
        typer.confirm(f"Delete job {job} with its logs, report and files?", abort=True)
    from shardyard.client import endpoints

    with connect(url, token) as client:
        client.call(endpoints.delete(job))
    print(f"{job} is deleted")


COMMANDS: Commands = {
    "plan": plan,
    "submit": submit,
    "resubmit": resubmit,
    "watch": watch,
    "list": list_jobs,
    "show": show,
    "cancel": cancel,
    "delete": delete,
}
