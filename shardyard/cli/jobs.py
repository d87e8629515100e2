"""Commands about jobs: plan, resubmit, watch, list, show, cancel, suspend, resume, delete."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

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
    connect_client,
    make_console,
    make_table,
    print_answer,
    print_json,
    print_submitted,
    read_spec,
    state_text,
)
from shardyard.cli.status import LABEL_WIDTH, state_and_reason, status_lines
from shardyard.cli.submit import submit_command
from shardyard.contract.errors import InvalidRequest

if TYPE_CHECKING:
    from shardyard.contract.responses import JobList, JobStatus, ListedJob

#: Columns of a terminal from which on a list of jobs shows everything.
WIDE = 120


def watch_command(
    job: JobId,
    stream: Annotated[
        str | None,
        typer.Option(
            help="Print these lines too: all, or some of stdout, stderr, shard, service with commas between them.",
            show_default=False,
        ),
    ] = None,
    no_color: NoColor = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Follow a job live, device by device, until it ends. Ctrl-C leaves the job running."""
    from shardyard.cli.watch import follow_until_end

    with connect_client(url, token) as client:
        raise typer.Exit(follow_until_end(client, job, as_json, stream=stream))


def list_jobs(
    state: Annotated[str | None, typer.Option(help="Only jobs in this state.", show_default=False)] = None,
    pool: Annotated[str | None, typer.Option(help="Only jobs of this pool.", show_default=False)] = None,
    label: Annotated[str | None, typer.Option(help="Only jobs with this label, key=value.", show_default=False)] = None,
    name: Annotated[str | None, typer.Option(help="Only jobs of this name.", show_default=False)] = None,
    archived: Annotated[
        bool, typer.Option("--archived", help="Jobs that ended long ago, instead of the others.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=200, help="How many, newest first.")] = 20,
    cursor: Annotated[
        str | None, typer.Option(help="Continue where an earlier list ended.", show_default=False)
    ] = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """List jobs, newest first."""
    from shardyard.client import endpoints

    chosen = {"state": state, "pool": pool, "label": label, "name": name, "archived": archived or None}
    call = endpoints.list_jobs(**chosen, limit=limit, cursor=cursor)
    print_answer(call, _print_jobs, url, token, as_json)


def _print_jobs(page: "JobList") -> None:
    out = make_console()
    columns: dict[str, Callable[[ListedJob], str | Text]] = {
        "JOB": lambda job: job.id,
        "NAME": lambda job: job.name,
        "STATE": lambda job: state_text(job.state),
        "POOL": lambda job: job.pool,
        "RUNS": lambda job: f"{job.strategy} on {formatting.devices_on_nodes(job.devices, job.nodes)}",
        "CREATED": lambda job: formatting.local_time(job.created_at),
        "#TOOK": lambda job: formatting.format_duration(formatting.seconds_between(job.started_at, job.finished_at)),
    }
    if out.width < WIDE:
        del columns["POOL"], columns["CREATED"]  # an id that is cut off cannot be copied
    listing = make_table(*columns)
    listing.columns[0].min_width = 36
    listing.columns[2].min_width = 9
    for job in page.jobs:
        listing.add_row(*(show_column(job) for show_column in columns.values()))
    out.print(listing if page.jobs else "no jobs")
    if page.next:
        out.print(f"more: --cursor {page.next}", style="dim")


def show_command(job: JobId, url: Url = None, token: Token = None, as_json: AsJson = False) -> None:
    """Show one job: its state and the reason, where it runs, its progress and its result."""
    from shardyard.client import endpoints

    print_answer(endpoints.get_job(job), _print_status, url, token, as_json)


def _print_status(status: "JobStatus") -> None:
    out = make_console()
    for label, value in status_lines(status):
        out.print(f"{label:<{LABEL_WIDTH}}", style="bold", end="")
        out.print(value)


def plan_command(
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="A job spec in JSON; - reads it from standard input.")],
    against: Annotated[
        str | None, typer.Option(metavar="JOB", help="Compare the planned steps with this job's.", show_default=False)
    ] = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Show what a job spec would give each device, and what to change. Nothing is created."""
    from shardyard.client import endpoints

    spec = read_spec(file)
    with connect_client(url, token) as client:
        if as_json:
            print_json(client.json(endpoints.plan_job(spec, against=against)))
        else:
            print(client.call(endpoints.plan_text(spec, against=against)), end="")


def resubmit_command(job: JobId, url: Url = None, token: Token = None, as_json: AsJson = False) -> None:
    """Submit a job's spec again, as a new job."""
    from shardyard.client import endpoints

    print_answer(endpoints.resubmit_job(job), print_submitted, url, token, as_json)


def cancel_command(
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
    """Cancel a queued or running job, or all jobs that match every given option."""
    options = {"state": state, "pool": pool, "label": label, "name": name}
    chosen: dict[str, Any] = {field: value for field, value in options.items() if value is not None}
    if (job is not None) + bool(chosen) + everything != 1:
        raise InvalidRequest("name one job, or describe jobs by --state, --pool, --label, --name, or give --all")
    from shardyard.client import endpoints

    if job is not None:
        return print_answer(endpoints.cancel_job(job), _print_state, url, token, as_json)
    if not yes:
        which = " and ".join(f"{field} {value}" for field, value in chosen.items())
        typer.confirm(f"Cancel all jobs {f'with {which}' if which else 'that have not ended'}?", abort=True, err=True)
    with connect_client(url, token) as client:
        cancelled, cancelling = client.cancel_jobs(**(chosen or {"all": True}))
    if as_json:
        return print_json({"cancelled": cancelled, "cancelling": cancelling, "complete": True})
    return print(f"{formatting.count_noun(cancelled, 'job')} cancelled, {cancelling} more are being ended")


def suspend_command(job: JobId, url: Url = None, token: Token = None, as_json: AsJson = False) -> None:
    """Suspend a job: it leaves the queue, or saves what it has done and leaves its devices. It keeps its place.

    A program that saves no checkpoint begins at its first step when it is resumed.
    """
    from shardyard.client import endpoints

    print_answer(endpoints.suspend_job(job), _print_state, url, token, as_json)


def resume_command(job: JobId, url: Url = None, token: Token = None, as_json: AsJson = False) -> None:
    """Resume a suspended job, at its place in the queue."""
    from shardyard.client import endpoints

    print_answer(endpoints.resume_job(job), _print_state, url, token, as_json)


def _print_state(status: "JobStatus") -> None:
    make_console().print(f"{status.name} is {state_and_reason(status)}")


def delete_command(
    job: JobId,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Delete a finished job with its logs, report and files."""
    if not yes:
        typer.confirm(f"Delete job {job} with its logs, report and files?", abort=True)
    from shardyard.client import endpoints

    with connect_client(url, token) as client:
        client.call(endpoints.delete_job(job))
    print(f"{job} is deleted")


COMMANDS: Commands = {
    "plan": plan_command,
    "submit": submit_command,
    "resubmit": resubmit_command,
    "watch": watch_command,
    "list": list_jobs,
    "show": show_command,
    "cancel": cancel_command,
    "suspend": suspend_command,
    "resume": resume_command,
    "delete": delete_command,
}
