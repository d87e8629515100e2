"""Commands about jobs: plan, resubmit, watch, show, cancel, suspend, resume, delete."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardyard import formatting
from shardyard.cli.common import (
    JOB_HELP,
    AsJson,
    Commands,
    JobId,
    NoColor,
    Token,
    Url,
    connect_client,
    make_console,
    print_answer,
    print_json,
    print_submitted,
    read_spec,
)
from shardyard.cli.framework.completion import (
    complete_jobs,
    complete_names,
    complete_pools,
    complete_states,
    complete_streams,
)
from shardyard.cli.framework.references import find_job_id, resolves_references
from shardyard.cli.output.documents import Output, parse_output, print_document
from shardyard.cli.status import LABEL_WIDTH, state_and_reason, status_lines
from shardyard.cli.submit import Changes, build_spec, submit_command
from shardyard.contract.errors import InvalidRequest

if TYPE_CHECKING:
    from shardyard.contract.responses import JobStatus


def watch_command(
    job: JobId,
    stream: Annotated[
        str | None,
        typer.Option(
            help="Print these lines too: all, or some of stdout, stderr, shard, service, comma-separated.",
            show_default=False,
            autocompletion=complete_streams,
        ),
    ] = None,
    no_color: NoColor = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Follow a job live, device by device, until it ends. Ctrl-C leaves the job running."""
    from shardyard.cli.live.watch import follow_until_end

    with connect_client(url, token) as client:
        raise typer.Exit(follow_until_end(client, job, as_json, stream=stream))


def show_command(
    job: JobId, output: Output = None, url: Url = None, token: Token = None, as_json: AsJson = False
) -> None:
    """Show one job: its state and the reason, where it runs, its progress and its result. Also: shardyard status."""
    from shardyard.client import endpoints

    form = parse_output(output, as_json)
    if not form.is_document:
        return print_answer(endpoints.get_job(job), _print_status, url, token, False)
    with connect_client(url, token) as client:
        return print_document(client.json(endpoints.get_job(job)), form)


def _print_status(status: "JobStatus") -> None:
    out = make_console()
    for label, value in status_lines(status):
        out.print(f"{label:<{LABEL_WIDTH}}", style="bold", end="")
        out.print(value)


def plan_command(
    file: Annotated[
        str, typer.Argument(metavar="FILE|-", help="A job spec in JSON or YAML; - reads it from standard input.")
    ],
    against: Annotated[
        str | None,
        typer.Option(
            metavar="JOB",
            help="Compare the planned steps with this job's.",
            show_default=False,
            autocompletion=complete_jobs,
        ),
    ] = None,
    changes: Changes = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Show what a job spec would give each device, and what to change. Nothing is created."""
    from shardyard.client import endpoints

    spec = build_spec(read_spec(file), changes or [])
    with connect_client(url, token) as client:
        if as_json:
            print_json(client.json(endpoints.plan_job(spec, against=against)))
        else:
            print(client.call(endpoints.plan_text(spec, against=against)), end="")


def resubmit_command(job: JobId, url: Url = None, token: Token = None, as_json: AsJson = False) -> None:
    """Submit a job's spec again, as a new job."""
    from shardyard.client import endpoints

    print_answer(endpoints.resubmit_job(job), print_submitted, url, token, as_json)


@resolves_references
def cancel_command(
    job: Annotated[
        str | None, typer.Argument(metavar="[JOB]", help=JOB_HELP, show_default=False, autocompletion=complete_jobs)
    ] = None,
    state: Annotated[
        str | None, typer.Option(help="Jobs in this state.", show_default=False, autocompletion=complete_states)
    ] = None,
    pool: Annotated[
        str | None, typer.Option(help="Jobs of this pool.", show_default=False, autocompletion=complete_pools)
    ] = None,
    label: Annotated[str | None, typer.Option(help="Jobs with this label, key=value.", show_default=False)] = None,
    name: Annotated[
        str | None, typer.Option(help="Jobs of this name.", show_default=False, autocompletion=complete_names)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All jobs that have not ended.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Cancel a queued or running job, or all jobs that match every given option. Also: shardyard stop."""
    options = {"state": state, "pool": pool, "label": label, "name": name}
    chosen: dict[str, Any] = {field: value for field, value in options.items() if value is not None}
    if (job is not None) + bool(chosen) + everything != 1:
        raise InvalidRequest("name one job, or describe jobs by --state, --pool, --label, --name, or give --all")
    from shardyard.client import endpoints

    if job is not None:
        with connect_client(url, token) as client:
            job = find_job_id(client, job)
        return print_answer(endpoints.cancel_job(job), _print_state, url, token, as_json)
    if not yes:
        which = " and ".join(f"{field} {value}" for field, value in chosen.items())
        typer.confirm(f"Cancel all jobs {f'with {which}' if which else 'that have not ended'}?", abort=True, err=True)
    with connect_client(url, token) as client:
        cancelled, cancelling = client.cancel_jobs(**(chosen or {"all": True}))
    if as_json:
        return print_json({"cancelled": cancelled, "cancelling": cancelling, "complete": True})
    return print(f"{formatting.count_noun(cancelled, 'job')} cancelled, {cancelling} more are being cancelled")


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
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
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
    "show": show_command,
    "cancel": cancel_command,
    "suspend": suspend_command,
    "resume": resume_command,
    "delete": delete_command,
}
