"""The command `shardyard`.

Exit codes:

    0  success; of a followed job: it succeeded
    1  a followed job failed or was cancelled; demo: it did not reach its goal
    2  wrong usage or bad input: nothing was done
    3  the service cannot be reached, cannot accept the request now, or does not start
    4  the service refused: not found, no permission, a conflict, or an internal error
    5  gate: the job breaks a limit
    6  gate: too noisy or too short to judge
  130  Ctrl-C; a submitted job continues

Modules of this package import what is slow (httpx, Redis, the service itself) inside the commands
that need it: `shardyard --help` must feel instant.
"""

import sys
from typing import Annotated, NoReturn

import typer

from shardyard import __version__
from shardyard.cli import (
    artifacts,
    attempts,
    backup,
    explain,
    hardware,
    jobs,
    logs,
    profile,
    redis_users,
    service,
    splits,
    submit,
    tune,
)
from shardyard.cli.accounts import audit, login, quotas, secrets, shares, tokens, webhooks
from shardyard.cli.common import Commands
from shardyard.cli.fleet import boxes, joining, pools
from shardyard.cli.framework.commands import make_app
from shardyard.cli.framework.references import takes_references
from shardyard.cli.gates import gate
from shardyard.cli.groups import manage as group_commands
from shardyard.cli.groups import start as group_start
from shardyard.cli.listing import job_list
from shardyard.cli.live import top
from shardyard.contract.errors import BodyTooLarge, InvalidRequest, ShardyardError, Unavailable
from shardyard.contract.plain_text import escape_unsafe

#: First match wins.
EXIT_CODES: tuple[tuple[type[ShardyardError], int], ...] = (
    (InvalidRequest, 2),
    (BodyTooLarge, 2),
    (Unavailable, 3),
    (ShardyardError, 4),
)

#: Blank lines keep the lines apart: rich joins those of a paragraph.
EXAMPLES = "\n\n".join(
    (
        "[bold]Examples[/]",
        "shardyard up --devices cpu:4            the whole service, on four virtual devices",
        "shardyard plan job.json                 the split, before anything runs",
        "shardyard submit job.json --watch       run it, and follow it until it ends",
        "shardyard submit --script train.py -- --epochs 3    a script of your own, unchanged",
        "shardyard splits JOB --against OTHER    two reports side by side",
        "shardyard logs JOB -f --device 1        one device's lines as they come",
        "shardyard top                           jobs and devices, live",
        "shardyard cancel --label team=vision    all jobs with that label",
        (
            "Exit codes: 0 done, 1 the watched job did not succeed, 2 bad input, 3 service unavailable, 4 refused, "
            "5 a gate is broken, 6 a gate cannot be judged."
        ),
    )
)
MORE_EXAMPLES = {
    "audit": audit.EXAMPLES,
    "compare": group_start.COMPARE_EXAMPLES,
    "sweep": group_start.SWEEP_EXAMPLES,
    "redis-acl": redis_users.EXAMPLES,
    "join": joining.EXAMPLES,
    "login": login.EXAMPLES,
    "watch": "\n\n".join(
        (
            "[bold]Examples[/]",
            "shardyard watch JOB                     a bar for each device, until the job ends",
            "shardyard watch JOB --no-color          the same without colours",
            "shardyard watch JOB --stream shard      with what each device gets of every batch",
            "shardyard watch JOB | tee progress.txt  a line for each change",
            "shardyard watch JOB --json              wait for it, then print its status",
        )
    ),
    "logs": "\n\n".join(
        (
            "[bold]Examples[/]",
            "shardyard logs JOB -f                   what it prints, until it ends",
            "shardyard logs JOB --stream shard       what each device got of every batch",
            "shardyard logs JOB --stream all -n 50   the end of everything, in order",
            "shardyard logs JOB --stream stderr --device 1",
            "A script's log is printed without shard lines (In Model: input size ...), unless --stream names them.",
        )
    ),
    "splits": "\n\n".join(
        (
            "[bold]Examples[/]",
            "shardyard splits JOB                    what each device got, its cost, what to change",
            "shardyard splits JOB --notes            and why numbers are missing",
            "shardyard splits JOB --against OTHER    two reports side by side",
            "shardyard splits JOB --html report.html everything in one file",
        )
    ),
    "gate": gate.EXAMPLES,
    "hardware": "\n\n".join(
        (
            "[bold]Examples[/]",
            "shardyard hardware JOB                  a line for each series of each device",
            "shardyard hardware JOB --device 0       one device",
            "shardyard hardware JOB --json           the buckets, with their times",
        )
    ),
    "artifacts": "\n\n".join(
        (
            "[bold]Examples[/]",
            "shardyard artifacts JOB                     your files, checkpoints, report",
            "shardyard artifacts JOB --get model.pt      one of them, into this directory",
            "shardyard artifacts JOB --attempt 1         what the first attempt left",
            "shardyard artifacts JOB --get runs/1/log.csv -o - | head    to standard output",
        )
    ),
    "profile": "\n\n".join(
        (
            "[bold]Examples[/]",
            "shardyard profile JOB                       ten steps of every rank, without a restart",
            "shardyard profile JOB --steps 3 --download  three steps, and the traces into this directory",
            "shardyard profile JOB --json                what each rank recorded, as JSON",
        )
    ),
    "explain": "\n\n".join(
        (
            "[bold]Examples[/]",
            "shardyard explain JOB                   what it waits for, and when it may start",
            "shardyard explain JOB --json            the numbers",
        )
    ),
    "suspend": "\n\n".join(
        (
            "[bold]Examples[/]",
            "shardyard suspend JOB                   it saves, and leaves its devices to others",
            "shardyard resume JOB                    it goes on",
        )
    ),
    "share": "\n\n".join(
        (
            "[bold]Examples[/]",
            "shardyard share                         all tenants, for operators",
            "shardyard share acme                    one of them",
            "shardyard share acme --weight 2         it may use twice as much as others",
        )
    ),
    "tune": tune.EXAMPLES,
    "top": "\n\n".join(
        (
            "[bold]Examples[/]",
            "shardyard top                           jobs and devices, live",
            "shardyard top --sort devices            the largest jobs first",
            "shardyard top --label team=vision       one team's jobs",
            "shardyard top | head                    once, in a pipe",
        )
    ),
}

app = make_app(
    name="shardyard",
    help="PyTorch training on GPU pools, with a report of what each device got of every batch.",
    epilog=EXAMPLES,
    rich_markup_mode="rich",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS: tuple[tuple[str, Commands], ...] = (
    ("Running the service", service.COMMANDS | joining.COMMANDS | backup.COMMANDS | redis_users.COMMANDS),
    (
        "Jobs",
        job_list.COMMANDS
        | jobs.COMMANDS
        | attempts.COMMANDS
        | explain.COMMANDS
        | splits.COMMANDS
        | gate.COMMANDS
        | tune.COMMANDS
        | hardware.COMMANDS
        | logs.COMMANDS
        | artifacts.COMMANDS
        | profile.COMMANDS
        | group_start.COMMANDS,
    ),
    ("Machines and access", login.COMMANDS | top.COMMANDS | pools.COMMANDS | shares.COMMANDS | audit.COMMANDS),
)
for panel, commands in COMMANDS:
    for name, command in commands.items():
        if command is submit.submit_command:
            app.command(name, rich_help_panel=panel, cls=submit.SubmitCommand, epilog=submit.EXAMPLES)(command)
        elif command is service.worker_command:
            app.command(name, rich_help_panel=panel, cls=service.WorkerCommand)(command)
        else:
            app.command(name, rich_help_panel=panel, epilog=MORE_EXAMPLES.get(name))(takes_references(command))
app.add_typer(group_commands.app, name="group", rich_help_panel="Jobs")
app.add_typer(boxes.app, name="pool", rich_help_panel="Machines and access")
app.add_typer(tokens.app, name="token", rich_help_panel="Machines and access")
app.add_typer(quotas.app, name="quota", rich_help_panel="Machines and access")
app.add_typer(secrets.app, name="secret", rich_help_panel="Machines and access")
app.add_typer(webhooks.app, name="webhook", rich_help_panel="Machines and access")


def _show_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def shardyard(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...


@app.command("version", rich_help_panel="Running the service")
def print_version() -> None:
    """Print the version."""
    print(__version__)


def main(args: list[str] | None = None) -> NoReturn:
    """Run the command line and end the process. `args` default to the process's own."""
    try:
        app(args)
    except ShardyardError as error:
        print(describe_error(error), file=sys.stderr)
        sys.exit(exit_code(error))
    sys.exit(0)


def exit_code(error: ShardyardError) -> int:
    return next(code for kind, code in EXIT_CODES if isinstance(error, kind))


def describe_error(error: ShardyardError) -> str:
    """The message, then one line per wrong field. A job may have chosen some of the words."""
    told = (wrong for wrong in error.fields if wrong.message not in error.message)
    lines = [f"error: {error.message}", *(f"  {wrong.field}: {wrong.message}" for wrong in told)]
    return escape_unsafe("\n".join(lines), keep="\t\n")
