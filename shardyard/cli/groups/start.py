"""The commands `compare` and `sweep`, which start groups of jobs."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardyard.cli.common import AsJson, Commands, NoColor, Token, Url, connect_client, print_json, read_spec
from shardyard.cli.groups.follow import follow_group, print_started
from shardyard.contract.errors import InvalidRequest

if TYPE_CHECKING:
    from shardyard.client.transport import HttpCall

COMPARE_EXAMPLES = "\n\n".join(
    (
        "[bold]Examples[/]",
        "shardyard compare job.json --strategies single,dp,ddp --devices 1,2 --watch",
        "shardyard compare job.json --strategies ddp,fsdp --devices 2,4 --steps 200",
        "shardyard compare job.json --sweep program.data.batch_size=16,32,64 --steps 50",
        "shardyard group report GROUP            what it has found so far",
    )
)
SWEEP_EXAMPLES = "\n\n".join(
    (
        "[bold]Examples[/]",
        "shardyard sweep job.json --set program.data.batch_size=16,32 --set program.optimizer.args.lr=0.05,0.1",
        "shardyard sweep job.json --range program.optimizer.args.lr=1e-4:1e-1:log --trials 20 --max-concurrent 4",
        "shardyard sweep job.json --range program.optimizer.args.lr=1e-4:1e-1:log --trials 40 --search optuna",
        "shardyard sweep job.json --set program.seed=1,2,3 --metric metrics.accuracy --watch",
        "shardyard group report GROUP            the trials, the best first",
    )
)

SpecFile = Annotated[
    str,
    typer.Argument(metavar="FILE", help="A job spec in JSON or YAML, - for standard input.", show_default=False),
]
Name = Annotated[
    str | None, typer.Option(help="A name, and the beginning of the names of its jobs.", show_default="the spec's")
]
Watch = Annotated[bool, typer.Option("--watch", help="Follow it until it has ended, and print its report.")]
Metric = Annotated[
    str, typer.Option(help="What the best is chosen by: loss, rows_per_second, metrics.<name> of an evaluation.")
]
Mode = Annotated[
    str | None,
    typer.Option(
        metavar="min|max", help="Whether the least or the largest value is best.", show_default="min for loss, else max"
    ),
]


def compare_command(
    file: SpecFile,
    strategies: Annotated[
        str | None,
        typer.Option(
            metavar="LIST", help="Some of single, dp, ddp and fsdp, comma-separated.", show_default="the spec's"
        ),
    ] = None,
    devices: Annotated[
        str | None, typer.Option(metavar="LIST", help="Numbers of devices, such as 1,2,4.", show_default="the spec's")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps of each job.")] = 50,
    sweep: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD=LIST", help="Compare values of a field instead; may be repeated."),
    ] = None,
    name: Name = None,
    watch: Watch = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
    no_color: NoColor = False,
) -> None:
    """Compare strategies and numbers of devices with short jobs that have the same rows in each step.

    The jobs run one after another. The report has throughput, memory, communication and loss of each, and recommends
    one of them, unless the measurements are too noisy to tell.
    """
    from shardyard.client.groups import endpoints

    spec = read_spec(file)
    if sweep:
        grid = _read_grid(sweep, "--sweep")
        if strategies is not None:
            grid["parallelism.strategy"] = _split(strategies)
        if devices is not None:
            grid["resources.devices"] = _read_counts(devices)
        values = endpoints.sweep(spec, grid=grid, steps=steps, metric="rows_per_second", name=name)
        return _start(values, "sweep", url, token, watch=watch, as_json=as_json)
    if strategies is None and devices is None:
        raise InvalidRequest("say what to compare: --strategies single,dp,ddp --devices 1,2, or --sweep FIELD=LIST")
    own = _own_variant(spec)
    call = endpoints.compare(
        spec,
        strategies=own[0] if strategies is None else _split(strategies),
        devices=own[1] if devices is None else _read_counts(devices),
        steps=steps,
        name=name,
    )
    return _start(call, "comparison", url, token, watch=watch, as_json=as_json)


def sweep_command(
    file: SpecFile,
    values: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=LIST", help="Values of a field, comma-separated; may be repeated."),
    ] = None,
    ranges: Annotated[
        list[str] | None,
        typer.Option(
            "--range", metavar="FIELD=MIN:MAX[:log]", help="Draw values of a field from this range; may be repeated."
        ),
    ] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="How many to draw.", show_default="all combinations of the values")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="The same seed draws the same values.")] = None,
    search: Annotated[
        str | None,
        typer.Option(
            metavar="grid|random|optuna",
            help="How values are chosen; optuna: by the trials that have ended.",
            show_default="grid, or random with --range or --trials",
        ),
    ] = None,
    metric: Metric = "loss",
    mode: Mode = None,
    max_concurrent: Annotated[int, typer.Option(min=1, help="Jobs that may run at a time.")] = 1,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Optimizer steps of each job.", show_default="as the spec says")
    ] = None,
    name: Name = None,
    watch: Watch = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
    no_color: NoColor = False,
) -> None:
    """Run a spec with several values of its fields: all combinations, or a number of them drawn at random."""
    from shardyard.client.groups import endpoints

    choices: dict[str, Any] = _read_grid(values or (), "--set")
    choices |= dict(_read_range(one) for one in ranges or ())
    if not choices:
        raise InvalidRequest("say which values: --set FIELD=1,2,3, or --range FIELD=MIN:MAX with --trials")
    is_drawn = bool(ranges) or trials is not None or search in ("random", "optuna")
    call = endpoints.sweep(
        read_spec(file),
        grid=None if is_drawn else choices,
        random=choices if is_drawn else None,
        trials=trials,
        seed=seed,
        search=search,
        metric=metric,
        mode=mode,
        max_concurrent=max_concurrent,
        steps=steps,
        name=name,
    )
    _start(call, "sweep", url, token, watch=watch, as_json=as_json)


def _start(call: "HttpCall[Any]", kind: str, url: str | None, token: str | None, *, watch: bool, as_json: bool) -> None:
    with connect_client(url, token) as client:
        if as_json and not watch:
            return print_json(client.json(call))
        started = client.call(call)
        if watch:
            return follow_group(client, kind, started.id, as_json=as_json)
        return print_started(started)


def _own_variant(spec: Any) -> tuple[list[Any], list[Any]]:
    """The strategy and the devices that a spec asks for. What is wrong with them the service says."""
    parts = spec if isinstance(spec, dict) else {}
    parallelism, resources = (parts.get(name) or {} for name in ("parallelism", "resources"))
    return [parallelism.get("strategy", "single")], [resources.get("devices", 1)]


def _split(words: str) -> list[str]:
    return [word for word in (part.strip() for part in words.split(",")) if word]


def _read_counts(words: str) -> list[int]:
    try:
        return [int(word) for word in _split(words)]
    except ValueError:
        raise InvalidRequest(f"--devices {words}: comma-separated whole numbers, such as 1,2,4") from None


def _read_grid(options: Sequence[str], option: str) -> dict[str, list[Any]]:
    """Values by the path of their field, of `FIELD=LIST`; each value is JSON, or else text."""
    found: dict[str, list[Any]] = {}
    for each in options:
        path, equals, words = each.partition("=")
        if not equals or not path or not words:
            raise InvalidRequest(f"{option} {each}: write it as FIELD=LIST, such as program.data.batch_size=16,32")
        found[path] = _read_values(words)
    return found


def _read_values(words: str) -> list[Any]:
    """A JSON list, or values with commas between them."""
    if words.startswith("["):
        try:
            listed = json.loads(words)
        except ValueError as error:
            raise InvalidRequest(f"{words}: is not a JSON list: {error}") from None
        return list(listed)
    return [_read_value(word) for word in _split(words)]


def _read_value(word: str) -> Any:
    try:
        return json.loads(word)
    except ValueError:
        return word


def _read_range(option: str) -> tuple[str, dict[str, Any]]:
    path, _, words = option.partition("=")
    low, _, rest = words.partition(":")
    high, _, log = rest.partition(":")
    ends = [_read_value(low), _read_value(high)]
    if not path or log not in ("", "log") or not all(isinstance(end, int | float) for end in ends):
        raise InvalidRequest(f"--range {option}: write it as FIELD=MIN:MAX or FIELD=MIN:MAX:log")
    return path, {"min": ends[0], "max": ends[1], "log": log == "log"}


COMMANDS: Commands = {"compare": compare_command, "sweep": sweep_command}
