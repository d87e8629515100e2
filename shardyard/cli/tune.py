"""The command that finds the strategy, the devices and the batch size of a recipe by short runs."""

import json
import secrets
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardyard import formatting
from shardyard.cli.common import AsJson, Commands, Token, Url, connect_client, make_console, make_table, read_spec
from shardyard.cli.output.documents import Output, parse_output, print_document
from shardyard.cli.submit import Changes, build_spec
from shardyard.contract.errors import InvalidRequest

if TYPE_CHECKING:
    from rich.console import Console

    from shardyard.tuning.measurements import TuningTrial
    from shardyard.tuning.search import Choice, Search

DEFAULT_STEPS = 300
MAX_STEPS = 1_000_000
#: Of a chosen step over that of the spec: from here on the learning rate was set for something else.
MUCH_LARGER = 1.5

EXAMPLES = "\n\n".join(
    (
        "[bold]Examples[/]",
        "shardyard tune job.json                                 on one device and on those that it asks for",
        "shardyard tune job.json --devices 1,2,4 --steps 600     with more numbers of devices",
        "shardyard tune job.json --strategies ddp,fsdp --batch-sizes 64,128,256",
        "shardyard list --label tune=ID                          the jobs of a search",
    )
)


def tune_command(
    file: Annotated[
        str, typer.Argument(metavar="SPEC|-", help="A job spec in JSON or YAML; - reads it from standard input.")
    ],
    steps: Annotated[
        int, typer.Option(min=1, max=MAX_STEPS, help="The most optimizer steps of all runs together.")
    ] = DEFAULT_STEPS,
    strategies: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Some of single, ddp, dp, fsdp. Default: all.", show_default=False),
    ] = None,
    devices: Annotated[
        str | None,
        typer.Option(metavar="NUMBERS", help="Default: 1, and as many as the spec asks for.", show_default=False),
    ] = None,
    batch_sizes: Annotated[
        str | None,
        typer.Option(
            metavar="ROWS",
            help="Rows of a step, of all devices together. Default: the spec's, doubled up to four times.",
            show_default=False,
        ),
    ] = None,
    changes: Changes = None,
    output: Output = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Find the strategy, the number of devices and the batch size with which a recipe trains fastest, by short runs,
    one after another. Prints what was tried, what was chosen and why."""
    from shardyard.tuning.search import BudgetTooSmall, NothingMeasured, Search
    from shardyard.tuning.trial_jobs import TrialJobs
    from shardyard.tuning.variants import make_space

    form = parse_output(output, as_json)
    body, out = build_spec(read_spec(file), changes or []), make_console()
    with connect_client(url, token) as client:
        dataset_rows = client.plan(body).rows  # the service says what is wrong with a spec
        spec: dict[str, Any] = json.loads(body)
        space = make_space(
            spec,
            _split(strategies),
            _numbers(devices, "--devices"),
            _numbers(batch_sizes, "--batch-sizes"),
            dataset_rows,
        )
        name = secrets.token_hex(4)
        print(f"search {name}: its jobs have the label tune={name}", file=sys.stderr)
        jobs = TrialJobs(client, spec, {"tune": name}, lambda trial: _print_trial(out, trial, not form.is_document))
        search = Search(space, steps, jobs.run)
        try:
            choice = search.find()
        except (BudgetTooSmall, NothingMeasured) as error:
            raise InvalidRequest(f"{error}; see --steps, --strategies, --devices and --batch-sizes") from None
    if form.is_document:
        print_document(_describe(name, search, choice, spec), form)
    else:
        _print_choice(out, file, spec, search, choice)


def _split(names: str | None) -> list[str]:
    return [name.strip() for name in (names or "").split(",") if name.strip()]


def _numbers(given: str | None, option: str) -> list[int]:
    """Raises InvalidRequest."""
    parts = _split(given)
    if not all(part.isascii() and part.isdigit() and 0 < int(part) <= MAX_STEPS for part in parts):
        raise InvalidRequest(f"{option} {given}: comma-separated whole numbers above 0, such as 1,2,4")
    return [int(part) for part in parts]


def _print_trial(out: "Console", trial: "TuningTrial", wanted: bool) -> None:
    from statistics import median

    if wanted:
        shown = f"{median(trial.rates):,.0f} rows/s" if trial.rates else trial.problem
        job = f"  {formatting.short_id(trial.job)}" if trial.job else ""
        out.print(f"{trial.steps:>5} steps of {trial.candidate}: {shown}{job}")


def _print_choice(out: "Console", file: str, spec: dict[str, Any], search: "Search", choice: "Choice") -> None:
    from shardyard.tuning.variants import list_changes, rows_of_step

    table = make_table("", "STRATEGY", "#DEVICES", "#ROWS A STEP", "#ROWS/S", "#FROM", "#TO")
    for candidate, rate in sorted(choice.rates.items(), key=lambda one: one[1].estimate, reverse=True):
        numbers = (f"{value:,.0f}" for value in (candidate.rows, rate.estimate, rate.low, rate.high))
        mark = "*" if candidate == choice.chosen else ""
        table.add_row(mark, candidate.arm.strategy, str(candidate.arm.devices), *numbers)
    out.print()
    out.print(table)
    used = search.budget - search.left
    out.print(f"\n{choice.reason}. {len(search.trials)} runs took {used:,} of {search.budget:,} steps.")
    if choice.chosen.rows >= MUCH_LARGER * rows_of_step(spec):
        times = choice.chosen.rows / rows_of_step(spec)
        out.print(f"A step has {times:.3g} times as many rows as before: another learning rate may be needed.")
    options = " ".join(f"--set {change}" for change in list_changes(spec, choice.chosen))
    out.print(f"\nshardyard submit {file} {options}", soft_wrap=True)


def _describe(name: str, search: "Search", choice: "Choice", spec: dict[str, Any]) -> dict[str, Any]:
    """The whole search as JSON."""
    from shardyard.tuning.candidates import Candidate
    from shardyard.tuning.variants import make_variant

    def known(candidate: Candidate) -> dict[str, Any]:
        return {"strategy": candidate.arm.strategy, "devices": candidate.arm.devices, "rows": candidate.rows}

    return {
        "id": name,
        "budget": search.budget,
        "steps": search.budget - search.left,
        "trials": [
            known(trial.candidate)
            | {"steps": trial.steps, "rates": list(trial.rates), "problem": trial.problem, "job": trial.job}
            for trial in search.trials
        ],
        "candidates": [
            known(candidate) | {"rows_per_second": rate.estimate, "low": rate.low, "high": rate.high}
            for candidate, rate in choice.rates.items()
        ],
        "chosen": known(choice.chosen),
        "fastest": known(choice.fastest),
        "reason": choice.reason,
        "spec": make_variant(spec, choice.chosen),
    }


COMMANDS: Commands = {"tune": tune_command}
