"""Commands about jobs: submit, list, show, splits, cancel, delete."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from jobs.errors import InvalidRequest
from shardyard import text
from shardyard.cli.common import (
    AsJson,
    Commands,
    JobId,
    Token,
    Url,
    connect,
    console,
    print_json,
    state_text,
    table,
)

#: What a shell reports for a command that Ctrl-C ended.
INTERRUPTED = 130


def submit(
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="A job spec in JSON; - reads it from standard input.")],
    follow: Annotated[bool, typer.Option("--watch", "-w", help="Stay and show progress until the job ends.")] = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Submit a job. Repeating a request that got lost never makes a second one."""
    spec = _read_spec(file)
    with connect(url, token) as client:
        job = client.submit(spec)
        if follow:
            raise typer.Exit(_watch(client, job["id"], as_json))
    if as_json:
        print_json(job)
    elif sys.stdout.isatty():
        console().print(Text.assemble((job["name"], "bold"), f" is {job['state']}: {job['id']}"))
    else:
        print(job["id"])  # what a script wants to catch


def watch(job: JobId, url: Url = None, token: Token = None, as_json: AsJson = False) -> None:
    """Follow a job until it ends. Ctrl-C leaves the job running."""
    with connect(url, token) as client:
        raise typer.Exit(_watch(client, job, as_json))


def list_jobs(
    state: Annotated[str | None, typer.Option(help="Only jobs in this state.", show_default=False)] = None,
    pool: Annotated[str | None, typer.Option(help="Only jobs of this pool.", show_default=False)] = None,
    label: Annotated[str | None, typer.Option(help="Only jobs with this label, key=value.", show_default=False)] = None,
    name: Annotated[str | None, typer.Option(help="Only jobs of this name.", show_default=False)] = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="How many, newest first.")] = 20,
    cursor: Annotated[str | None, typer.Option(help="Go on where an earlier list ended.", show_default=False)] = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """List jobs, newest first."""
    with connect(url, token) as client:
        page = client.jobs(state=state, pool=pool, label=label, name=name, limit=limit, cursor=cursor)
    if as_json:
        return print_json(page)
    listing = table("JOB", "NAME", "STATE", "POOL", "RUNS", "CREATED", "#TOOK")
    for job in page["jobs"]:
        listing.add_row(
            job["id"],
            job["name"],
            state_text(job["state"]),
            job["pool"],
            f"{job['strategy']} on {job['devices']}",
            text.local_time(job["created_at"]),
            text.duration(text.between(job["started_at"], job["finished_at"])),
        )
    out = console()
    out.print(listing if page["jobs"] else "no jobs")
    if page.get("next"):
        out.print(f"more: --cursor {page['next']}", style="dim")
    return None


def show(job: JobId, url: Url = None, token: Token = None, as_json: AsJson = False) -> None:
    """Show one job: its state and why, where it runs, how far it is, and what came out."""
    with connect(url, token) as client:
        status = client.job(job)
    if as_json:
        return print_json(status)
    out = console()
    for label, value in status_lines(status):
        out.print(f"{label:<10} ", style="bold", end="")
        out.print(value)
    return None


def splits(
    job: JobId,
    attempt: Annotated[int | None, typer.Option(help="Default: the newest.", show_default=False)] = None,
    device: Annotated[int | None, typer.Option(help="Only this device of the lease.", show_default=False)] = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Show what each device got of every batch, what it cost there, and what to change."""
    with connect(url, token) as client:
        if as_json:
            print_json(client.splits(job, attempt=attempt, device=device))
        else:
            print(client.splits_text(job, attempt=attempt, device=device), end="")


def cancel(job: JobId, url: Url = None, token: Token = None, as_json: AsJson = False) -> None:
    """Cancel a job that waits or runs."""
    with connect(url, token) as client:
        status = client.cancel(job)
    if as_json:
        return print_json(status)
    return console().print(f"{status['name']} is {state_and_reason(status)}")


def delete(
    job: JobId,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Delete a finished job with its logs, report and files."""
    if not yes:
        typer.confirm(f"Delete job {job} with its logs, report and files?", abort=True)
    with connect(url, token) as client:
        client.delete(job)
    print(f"{job} is deleted")


def status_lines(status: dict[str, Any]) -> list[tuple[str, str]]:
    """A job's status as (label, value) lines; what has not happened is left out."""
    started = text.between(status["created_at"], status["started_at"]) if status["started_at"] else None
    took = text.between(status["started_at"], status["finished_at"]) if status["finished_at"] else None
    devices = text.plural(status["devices"], "device")
    lines = {
        "job": f"{status['name']}  {status['id']}",
        "state": state_and_reason(status),
        "asks for": f"{devices} of pool {status['pool']}, {status['strategy']}",
        "queue": status["queue_position"] and f"position {status['queue_position']}",
        "runs on": ", ".join(f"{place['node']} {text.device_names(place['devices'])}" for place in status["placement"]),
        "progress": progress_text(status["progress"] or {}),
        "created": text.local_time(status["created_at"]),
        "started": status["started_at"] and f"{text.local_time(status['started_at'])}, after {text.duration(started)}",
        "finished": status["finished_at"] and f"{text.local_time(status['finished_at'])}, after {text.duration(took)}",
        "attempts": status["attempt"] > 1 and str(status["attempt"]),
        "result": status["result"] and result_text(status["result"]),
        "error": status["error"] and error_text(status["error"]),
    }
    return [(label, value) for label, value in lines.items() if value]


def progress_text(progress: dict[str, Any]) -> str:
    """One line: epoch, step, rows a second, ETA, loss; only what is known."""
    parts = []
    for noun, total in (("epoch", "epochs"), ("step", "steps")):
        if progress.get(noun) is not None:
            parts.append(f"{noun} {progress[noun]}" + (f"/{progress[total]}" if progress.get(total) else ""))
    if progress.get("rows_per_second"):
        parts.append(f"{text.number(progress['rows_per_second'])} rows/s")
    if progress.get("eta_seconds"):
        parts.append(f"ETA {text.duration(progress['eta_seconds'])}")
    if progress.get("loss") is not None:
        parts.append(f"loss {text.number(progress['loss'])}")
    return "  ".join(parts)


def result_text(result: dict[str, Any]) -> str:
    numbers = {"loss": result.get("loss")} | (result.get("metrics") or {})
    return ", ".join(f"{name} {text.number(value)}" for name, value in numbers.items() if value is not None) or "none"


def error_text(error: dict[str, Any]) -> str:
    """The error's message, then its traceback when it has one."""
    message = str(error.get("message") or error)
    traceback = str(error.get("traceback") or "").rstrip()
    return f"{message}\n{traceback}" if traceback else message


def state_and_reason(status: dict[str, Any]) -> str:
    """The state, and behind it why, unless that says nothing more."""
    message = status["reason"]["message"]
    return f"{status['state']}: {message}" if message and message != status["state"] else str(status["state"])


def _read_spec(file: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise InvalidRequest(f"cannot read the job spec {file}: {error.strerror}") from error


def _watch(client: Any, job: str, as_json: bool) -> int:
    from shardyard.cli.watch import watch_job

    out = console()
    try:
        status = watch_job(client, job, out, quiet=as_json)
    except KeyboardInterrupt:
        out.print("\nThe job goes on.", soft_wrap=True)
        out.print(f"  shardyard watch {job}    follows it again", soft_wrap=True)
        out.print(f"  shardyard cancel {job}   ends it", soft_wrap=True)
        return INTERRUPTED
    if as_json:
        print_json(status)
    else:
        out.print(f"what each device got: shardyard splits {job}", style="dim", soft_wrap=True)
    return 0 if status["state"] == "succeeded" else 1


COMMANDS: Commands = {
    "submit": submit,
    "watch": watch,
    "list": list_jobs,
    "show": show,
    "splits": splits,
    "cancel": cancel,
    "delete": delete,
}
