"""Commands that look ahead (plan), compare (splits --against), repeat (resubmit), and act on many (cancel, drain)."""

import sys
from typing import Annotated

import typer

from jobs.errors import InvalidRequest
from shardyard import text
from shardyard.cli import jobs
from shardyard.cli.common import AsJson, Commands, JobId, Token, Url, connect, console, print_json

Attempt = Annotated[int | None, typer.Option(help="Default: the newest.", show_default=False)]


def plan(
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="A job spec in JSON; - reads it from standard input.")],
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Show what a job spec would give each device, and what to change. Nothing is created."""
    spec = jobs._read_spec(file)
    with connect(url, token) as client:
        if as_json:
            print_json(client.plan(spec))
        else:
            print(client.plan_text(spec), end="")


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
        return jobs.splits(job, attempt, device, url, token, as_json)
    if device is not None:
        raise InvalidRequest("--against compares whole reports; leave --device out")
    with connect(url, token) as client:
        if as_json:
            print_json(client.splits_diff(job, against, attempt=attempt))
        else:
            print(client.splits_diff_text(job, against, attempt=attempt), end="")
    return None


def resubmit(job: JobId, url: Url = None, token: Token = None, as_json: AsJson = False) -> None:
    """Submit a job's spec again, as a new job."""
    with connect(url, token) as client:
        made = client.resubmit(job)
    if as_json:
        print_json(made)
    elif sys.stdout.isatty():
        console().print(f"{made['name']} is {made['state']}: {made['id']}")
    else:
        print(made["id"])  # what a script wants to catch


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
    chosen = {field: value for field, value in options.items() if value is not None}
    if (job is not None) + bool(chosen) + everything != 1:
        raise InvalidRequest("name one job, or describe jobs by --state, --pool, --label, --name, or give --all")
    if job is not None:
        return jobs.cancel(job, url, token, as_json)
    if not yes:
        which = " and ".join(f"{field} {value}" for field, value in chosen.items())
        typer.confirm(f"Cancel all jobs {f'with {which}' if which else 'that have not ended'}?", abort=True, err=True)
    body: dict[str, str | bool] = {**chosen} or {"all": True}
    with connect(url, token) as client:
        done = client.cancel_many(**body)
        while not done["complete"]:
            more = client.cancel_many(**body)
            done = more | {field: done[field] + more[field] for field in ("cancelled", "cancelling")}
    if as_json:
        return print_json(done)
    return print(f"{text.plural(done['cancelled'], 'job')} cancelled, {done['cancelling']} more told to end")


def drain(
    node: Annotated[str, typer.Argument(help="The node's id from `shardyard nodes`.", show_default=False)],
    undo: Annotated[bool, typer.Option("--undo", help="Give it work again.")] = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Give a node no new work. What runs there goes on; a restart of its worker changes nothing."""
    with connect(url, token) as client:
        found = client.drain(node, undo=undo)
    if as_json:
        return print_json(found)
    busy = sum(device["state"] == "leased" for device in found["devices"])
    words = f"takes no new work; {text.plural(busy, 'device')} still leased" if found["draining"] else "takes work"
    return print(f"{found['id']} {words}")


COMMANDS: Commands = {"plan": plan}
#: In place of commands of `shardyard.cli.jobs`, which they lean on.
WIDER: Commands = {"splits": splits, "cancel": cancel, "resubmit": resubmit}
MACHINES: Commands = {"drain": drain}
