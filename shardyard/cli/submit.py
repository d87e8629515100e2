"""The command `submit`: a job spec from a file, or a script with the directory that it belongs to."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardyard.cli.common import (
    AsJson,
    NoColor,
    Token,
    Url,
    connect_client,
    parse_seconds,
    print_json,
    print_submitted,
    read_spec,
)
from shardyard.cli.framework.commands import PlainCommand
from shardyard.cli.framework.completion import complete_jobs, complete_pools
from shardyard.cli.framework.references import find_job_id
from shardyard.contract.errors import InvalidRequest

if TYPE_CHECKING:
    from shardyard.client import Client


class Strategy(StrEnum):
    SINGLE = "single"
    DP = "dp"
    DDP = "ddp"
    FSDP = "fsdp"


class Observe(StrEnum):
    AUTO = "auto"
    EVERY = "every"
    OFF = "off"


#: Where the help lists the options that describe a script.
PANEL = "A script of your own"
EXAMPLES = "\n\n".join(
    (
        "[bold]Examples[/]",
        "shardyard submit job.json --watch                     a job spec, in JSON or YAML",
        "shardyard submit job.yaml --set program.data.batch_size=64 --set labels.team=vision",
        "shardyard submit --from @last --set program.epochs=9  the spec of a job, changed",
        "shardyard submit job.yaml --start-after 2h            or 2026-01-31T20:00",
        "shardyard submit test.yaml --depends-on train --depends-on 8d3f0a12    when both have succeeded",
        "shardyard submit --script train.py -- --epochs 3      python train.py ...",
        "shardyard submit --module pkg.train --dir src         python -m pkg.train",
        "shardyard submit --script train.py --strategy ddp --devices 3    torchrun",
        "shardyard submit --script train.py --strategy dp --devices 3 --rehearse",
        "shardyard submit --script train.py --exclude '*.bin' --dry-run",
        "shardyard submit --script train.py --keep '*.pt' --keep runs/    files to keep",
        "shardyard submit --script train.py --observe off      no shard lines in the log",
        "Everything after -- goes to the script. Files that .gitignore names are not sent.",
    )
)


def script_option(*names: str, **how: Any) -> Any:
    """An option that the help lists under `PANEL`."""
    return typer.Option(*names, rich_help_panel=PANEL, **how)


File = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FILE|ARGS",
        help="A job spec in JSON or YAML, - for standard input; with --script or --module: arguments of the script, "
        "behind --.",
        show_default=False,
    ),
]
Script = Annotated[
    str | None, script_option("--script", metavar="FILE", help="Run this Python file.", show_default=False)
]
Module = Annotated[
    str | None, script_option("--module", metavar="NAME", help="Run this module of the directory.", show_default=False)
]
Directory = Annotated[
    str | None,
    script_option(
        "--dir", metavar="DIR", help="Directory to send; the script runs in it.", show_default="the current one"
    ),
]
Include = Annotated[
    list[str] | None, script_option(metavar="PATTERN", help="Send this although .gitignore leaves it out.")
]
Exclude = Annotated[list[str] | None, script_option(metavar="PATTERN", help="Do not send this; as in .gitignore.")]
Keep = Annotated[
    list[str] | None,
    script_option(
        metavar="PATTERN",
        help="Keep these of the files that it leaves, as in .gitignore; '!data/' keeps all but those.",
        show_default="all but caches",
    ),
]
NoKeep = Annotated[bool, script_option("--no-keep", help="Keep none of them.")]
ArtifactBytes = Annotated[
    int | None,
    script_option(min=0, help="Keep at most this many bytes of them.", show_default="the operator's limit"),
]
Devices = Annotated[int, script_option(min=1, help="How many devices, on each node.")]
Nodes = Annotated[
    int | None,
    script_option(min=1, help="How many nodes, for ddp and fsdp: one process per device on all.", show_default="1"),
]
HowToRun = Annotated[
    Strategy | None,
    script_option(
        help="ddp, fsdp: one process per device, as torchrun starts them. single, dp: one process with all devices.",
        show_default="ddp on several nodes, else single",
    ),
]
Pool = Annotated[
    str | None, script_option(help="Pool to run in.", show_default="default", autocompletion=complete_pools)
]
Name = Annotated[str | None, script_option(help="Name of the job.", show_default="from the script's")]
Labels = Annotated[list[str] | None, script_option("--label", metavar="KEY=VALUE", help="A label, to find the job by.")]
Priority = Annotated[int, script_option(min=-100, max=100, help="Higher goes first.")]
Env = Annotated[
    list[str] | None,
    script_option(
        metavar="KEY[=VALUE]", help="An environment variable for the script; KEY alone takes its value from your shell."
    ),
]
SecretNames = Annotated[
    list[str] | None,
    script_option(
        "--secret",
        metavar="KEY=NAME",
        help="An environment variable that gets your secret NAME (shardyard secret put NAME).",
    ),
]
PythonName = Annotated[
    str | None,
    script_option(
        "--python",
        metavar="NAME",
        help="A Python environment that the operator offers.",
        show_default="the worker's own",
    ),
]
Rehearse = Annotated[bool, script_option("--rehearse", help="Run on virtual devices as if they were GPUs.")]
WallSeconds = Annotated[
    float | None, script_option(min=0.001, help="End each attempt after this many seconds.", show_default="one day")
]
MaxRetries = Annotated[int, script_option(min=0, max=100, help="How many new attempts after the script fails.")]
ObserveMode = Annotated[
    Observe | None,
    typer.Option(
        help="When the log's stream shard says what each device got: auto, up to the 1,000th step and then when that "
        "changes; every step; or off.",
        show_default="the spec's, or auto",
    ),
]
StartAfter = Annotated[
    str | None,
    typer.Option(
        "--start-after",
        metavar="TIME",
        help="Do not start earlier: this long after the submit, such as 90s, 10m, 2h, 1d; or at a time such as "
        "2026-01-31T20:00, by this machine's clock unless it names its offset from UTC.",
        show_default="the spec's, or at once",
    ),
]
DependsOn = Annotated[
    list[str] | None,
    typer.Option(
        "--depends-on",
        metavar="JOB",
        help="Start when this job has succeeded; may be repeated. Give its id or a part of it, its name, or @last.",
        show_default="the spec's, or none",
        autocompletion=complete_jobs,
    ),
]
Yes = Annotated[
    bool,
    script_option("--yes", "-y", help="Do not ask about a directory that is large or not a project."),
]
DryRun = Annotated[bool, script_option("--dry-run", "-n", help="Show what would be sent, and send nothing.")]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="JOB",
        help="Submit the spec of this job again, with the changes of --set.",
        show_default=False,
        autocompletion=complete_jobs,
    ),
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Change a field of the spec, for example program.data.batch_size=64; null removes it.",
        show_default=False,
    ),
]
Watch = Annotated[
    bool | None,
    typer.Option(
        "--watch/--no-watch",
        "-w/-W",
        help="Follow the job and show its progress until it ends.",
        show_default="watch a script, do not watch a spec",
    ),
]


def submit_command(
    context: typer.Context,
    words: File = None,
    follow: Watch = None,
    from_job: From = None,
    changes: Changes = None,
    start_after: StartAfter = None,
    depends_on: DependsOn = None,
    script: Script = None,
    module: Module = None,
    directory: Directory = None,
    devices: Devices = 1,
    nodes: Nodes = None,
    strategy: HowToRun = None,
    rehearse: Rehearse = False,
    include: Include = None,
    exclude: Exclude = None,
    keep: Keep = None,
    no_keep: NoKeep = False,
    artifact_bytes: ArtifactBytes = None,
    env: Env = None,
    secrets: SecretNames = None,
    python: PythonName = None,
    pool: Pool = None,
    name: Name = None,
    labels: Labels = None,
    priority: Priority = 0,
    wall_seconds: WallSeconds = None,
    max_retries: MaxRetries = 0,
    observe: ObserveMode = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    no_color: NoColor = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Submit a job: a spec, or a script of your own with the directory that it belongs to.

    Repeating a request that got lost never creates a second job.
    """
    start = None if start_after is None else _parse_start(start_after)
    if script is None and module is None:
        _refuse_options(_options_of_scripts(context))
        source = SpecSource(words or [], from_job, changes or [], observe)
        spec = None if from_job is not None else _read_file(source)
        with connect_client(url, token) as client:
            spec = _read_spec_of_job(source, client) if spec is None else spec
            waits = _drop_unset(start_after=start, depends_on=_find_jobs(client, depends_on))
            spec = _edit_spec(spec, lambda fields: fields | waits) if waits else spec
            return _submit_spec(spec, client, bool(follow), as_json)
    _refuse_two_programs(from_job, script, module)
    from shardyard.cli import scripts
    from shardyard.client.scripts import build_script_spec
    from shardyard.specs.changes import change_spec

    wanted = build_script_spec(
        words or [],
        devices=devices,
        rehearse=rehearse,
        env=_parse_variables(env or []),
        secrets=_parse_pairs("--secret", secrets or []),
        labels=_parse_pairs("--label", labels or []),
        priority=priority,
        max_retries=max_retries,
        **_drop_unset(name=name, pool=pool, python=python, wall_seconds=wall_seconds, artifact_bytes=artifact_bytes),
        **_drop_unset(nodes=nodes, strategy=strategy and strategy.value),
        **_drop_unset(observe=observe and observe.value, keep=_choose_kept(keep or None, no_keep)),
    )
    wanted = change_spec(wanted, changes or []) | _drop_unset(start_after=start)
    where = scripts.directory_to_send(directory)
    patterns = tuple(include or ()), tuple(exclude or ())
    code = scripts.UserProgram(script, module, where, *patterns, named=directory is not None, confirmed=yes)
    if depends_on:
        scripts.entry_file(code)  # a mistake in the program is told before a service is asked
        with connect_client(url, token) as client:
            wanted["depends_on"] = _find_jobs(client, depends_on)
    service = scripts.SubmitTarget(url, token, as_json)
    return scripts.submit_script(code, wanted, service, dry_run=dry_run, follow=follow is not False)


@dataclass(frozen=True, slots=True)
class SpecSource:
    """Where a spec comes from, a file or a job, and what is changed of it."""

    words: list[str]
    from_job: str | None
    changes: list[str]
    observe: Observe | None = None

    @property
    def all_changes(self) -> list[str]:
        return self.changes + ([] if self.observe is None else [f"observe={self.observe.value}"])


def _submit_spec(spec: bytes, client: "Client", follow: bool, as_json: bool) -> None:
    """Submit a spec. Raises Exit if the job was followed to its end."""
    from shardyard.cli.live.watch import follow_until_end
    from shardyard.client import endpoints

    call = endpoints.submit_job(spec)
    if follow:
        raise typer.Exit(follow_until_end(client, client.call(call).id, as_json))
    return print_json(client.json(call)) if as_json else print_submitted(client.call(call))


class SubmitCommand(PlainCommand):
    """Explains where the arguments of a script go, if one is mistaken for an option of the command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        typed = list(args)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            # By its name: typer brings a click of its own, or uses the installed one.
            is_script = any(word.startswith(("--script", "--module")) for word in typed)
            if type(error).__name__ == "NoSuchOption" and is_script:
                error.message += "; arguments of the script go after --, as in: -- --epochs 3"  # type: ignore[attr-defined]
            raise


def _read_file(source: SpecSource) -> bytes:
    words = source.words
    if len(words) != 1:
        raise InvalidRequest("name one job spec, or a program with --script or --module, or a job with --from")
    if words[0].endswith(".py"):
        raise InvalidRequest(f"{words[0]} is a script, not a job spec: shardyard submit --script {words[0]}")
    return build_spec(read_spec(words[0]), source.all_changes)


def _read_spec_of_job(source: SpecSource, client: "Client") -> bytes:
    """The spec of a job, as it was stored: with the defaults of that time."""
    from shardyard.client import endpoints

    if source.words:
        raise InvalidRequest("--from takes the spec of a job; leave out the file")
    job = find_job_id(client, source.from_job or "")
    return build_spec(json.dumps(client.json(endpoints.get_job(job))["spec"]).encode(), source.all_changes)


def build_spec(spec: bytes, changes: list[str]) -> bytes:
    """A spec with changes; without any it is sent as it was written. Raises InvalidRequest."""
    if not changes:
        return spec
    from shardyard.specs.changes import change_spec

    return _edit_spec(spec, lambda fields: change_spec(fields, changes))


def _edit_spec(spec: bytes, edit: Callable[[dict[str, Any]], dict[str, Any]]) -> bytes:
    """A spec that is no object stays as it is: the service says what is wrong with it, and where."""
    try:
        fields = json.loads(spec)
    except ValueError:
        return spec
    return json.dumps(edit(fields)).encode() if isinstance(fields, dict) else spec


def _parse_start(given: str) -> float | str:
    """Seconds after the submit, or a time with its offset from UTC. Raises InvalidRequest."""
    try:
        return parse_seconds(given, "--start-after")
    except InvalidRequest:
        pass
    try:
        time = datetime.fromisoformat(given)
        return (time if time.tzinfo is not None else time.astimezone()).isoformat()
    except (ValueError, OverflowError):
        words = "write how long after the submit, such as 90s, 10m, 2h, 1d, or a time such as 2026-01-31T20:00"
        raise InvalidRequest(f"--start-after {given!r} is not a time; {words}") from None


def _find_jobs(client: "Client", references: list[str] | None) -> list[str] | None:
    """The ids of these jobs, each once. Raises NotFound, AmbiguousReference."""
    return None if not references else list(dict.fromkeys(find_job_id(client, one) for one in references))


def _options_of_scripts(context: typer.Context) -> list[str]:
    """The given options that are only for scripts."""
    return [
        parameter.opts[0]
        for parameter in context.command.params
        if getattr(parameter, "rich_help_panel", None) == PANEL
        and getattr(context.get_parameter_source(parameter.name or ""), "name", "") == "COMMANDLINE"
    ]


def _refuse_options(options: list[str]) -> None:
    if options:
        raise InvalidRequest(f"{', '.join(options)}: only with --script or --module; a job spec says this itself")


def _refuse_two_programs(from_job: str | None, script: str | None, module: str | None) -> None:
    if from_job is not None:
        raise InvalidRequest("--from names a job, and --script or --module a program; give one of them")
    if script is not None and module is not None:
        raise InvalidRequest("--script and --module name two programs; give one of them")


def _choose_kept(patterns: list[str] | None, none: bool) -> list[str] | None:
    """`program.keep`: patterns, an empty list for nothing, or None for what the service does by itself."""
    if none and patterns:
        raise InvalidRequest("--keep and --no-keep contradict each other; give one of them")
    return [] if none else patterns


def _drop_unset(**options: Any) -> Any:
    """The spec without fields that were not given, for which the service has defaults."""
    return {name: value for name, value in options.items() if value is not None}


def _parse_pairs(option: str, given: list[str]) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in given]
    wrong = next(("".join(pair) for pair in pairs if not (pair[0] and pair[1])), None)
    if wrong is not None:
        raise InvalidRequest(f"{option} {wrong}: write it as key=value")
    return {key: value for key, _, value in pairs}


def _parse_variables(given: list[str]) -> dict[str, str]:
    """Environment variables for the script; one without a value takes it from this environment."""
    missing = [name for name in given if "=" not in name and name not in os.environ]
    if missing:
        raise InvalidRequest(f"--env {missing[0]}: not set here; write it as {missing[0]}=VALUE")
    return _parse_pairs("--env", [pair if "=" in pair else f"{pair}={os.environ[pair]}" for pair in given])
