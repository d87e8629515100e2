"""The command of a gate: whether a job keeps limits, for CI."""

import os
import re
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from shardyard import formatting
from shardyard.cli.common import (
    AsJson,
    Commands,
    JobId,
    Token,
    Url,
    connect_client,
    make_console,
    make_table,
    parse_seconds,
    write_file,
)
from shardyard.cli.framework.completion import complete_jobs
from shardyard.cli.output.documents import Output, OutputForm, parse_output, print_document
from shardyard.contract.errors import InvalidRequest, JobNotFinished

if TYPE_CHECKING:
    from shardyard.client import Client
    from shardyard.contract.gate import GateVerdict

#: By the outcome.
EXIT_CODES = {"passed": 0, "broken": 5, "unclear": 6}
STYLES = {"passed": "green", "broken": "red", "unclear": "yellow"}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(|B|KiB|MiB|GiB|TiB)", re.IGNORECASE)
_UNITS = {"": 0, "b": 0, "kib": 1, "mib": 2, "gib": 3, "tib": 4}

EXAMPLES = "\n\n".join(
    (
        "[bold]Examples[/]",
        "shardyard gate JOB --max-time-imbalance 1.2 --max-idle 0      no device holds the others up",
        "shardyard gate JOB --no-finding slow-device,input-bound       the report has neither",
        "shardyard gate JOB --against BASE --max-slowdown 1.05         a step is as fast as it was",
        "shardyard gate JOB --wait --no-finding warning --junit gate.xml   for CI",
        "Exit codes: 0 passed, 5 broken, 6 too noisy or too short to judge.",
    )
)


def gate_command(
    job: JobId,
    max_time_imbalance: Annotated[
        float | None,
        typer.Option(help="The busiest device's time over the mean of all; 1 is even.", show_default=False),
    ] = None,
    max_row_imbalance: Annotated[
        float | None, typer.Option(help="The most rows of a device over the mean of all.", show_default=False)
    ] = None,
    max_idle: Annotated[
        int | None,
        typer.Option(help="Steps in which a device got nothing, summed over all devices.", show_default=False),
    ] = None,
    min_throughput: Annotated[
        float | None, typer.Option(help="Rows per second of all devices together.", show_default=False)
    ] = None,
    max_memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Peak memory of the device that needs most: bytes, or 500MiB, 8GiB.",
            show_default=False,
        ),
    ] = None,
    no_finding: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CODES",
            help="Findings that the report must not have, comma-separated; warning: any of that severity.",
            show_default=False,
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="BASE", help="Another job, for --max-slowdown.", show_default=False, autocompletion=complete_jobs
        ),
    ] = None,
    max_slowdown: Annotated[
        float | None,
        typer.Option(help="Time of a step over that of BASE; 1.05: 5 % slower.", show_default=False),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the job has ended.")] = False,
    timeout: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="How long --wait waits at most, such as 30m.", show_default=False),
    ] = None,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the verdict as JUnit XML.", show_default=False)
    ] = None,
    github: Annotated[
        bool | None,
        typer.Option(
            "--github/--no-github", help="Print GitHub's annotations. Default: in GitHub Actions.", show_default=False
        ),
    ] = None,
    output: Output = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Check a job's report against limits, for CI: exit code 0 if it keeps all, 5 if it breaks one, 6 if it is too
    noisy to tell."""
    form = parse_output(output, as_json)
    longest = _parse_timeout(timeout, wait)
    limits = {
        "max_time_imbalance": max_time_imbalance,
        "max_row_imbalance": max_row_imbalance,
        "max_idle": max_idle,
        "min_throughput": min_throughput,
        "max_memory": None if max_memory is None else parse_size(max_memory, "--max-memory"),
        "no_finding": _split_codes(no_finding or []) or None,
        "against": against,
        "max_slowdown": max_slowdown,
    }
    began = time.monotonic()
    with connect_client(url, token) as client:
        if wait:
            _await_end(client, job, longest)
        answer, verdict = _judge(client, job, limits)
    if junit is not None:
        from shardyard.cli.gates.junit import write_junit

        write_file(junit, write_junit(verdict, time.monotonic() - began))
    _show_verdict(answer, verdict, form, github)
    raise typer.Exit(EXIT_CODES[verdict.outcome])


def _parse_timeout(timeout: str | None, wait: bool) -> float | None:
    """Seconds of --timeout. Raises InvalidRequest."""
    if timeout is None:
        return None
    if not wait:
        raise InvalidRequest("--timeout needs --wait; add it, or leave --timeout out")
    return parse_seconds(timeout, "--timeout")


def _judge(client: "Client", job: str, limits: dict[str, Any]) -> "tuple[Any, GateVerdict]":
    """The answer as it is, and as it is read."""
    import msgspec

    from shardyard.client import endpoints
    from shardyard.contract.gate import GateVerdict

    answer = client.json(endpoints.judge_job(job, **limits))
    return answer, msgspec.convert(answer, GateVerdict)


def _await_end(client: "Client", job: str, timeout: float | None) -> None:
    from shardyard.client import operations

    try:
        client.run(operations.wait_for_end(job, timeout))
    except TimeoutError:
        raise JobNotFinished(f"job {job} has not ended within {timeout:g} s; it goes on") from None


def _split_codes(given: list[str]) -> list[str]:
    return [code.strip() for part in given for code in part.split(",") if code.strip()]


def parse_size(given: str, option: str) -> int:
    """The bytes of a size such as 8GiB, the value of `option`. Raises InvalidRequest."""
    match = _SIZE.fullmatch(given.strip())
    if match is None:
        raise InvalidRequest(f"{option} {given!r} is not a size; write bytes, or 500MiB, 8GiB")
    return int(float(match[1]) * 1024 ** _UNITS[match[2].lower()])


def _show_verdict(answer: Any, verdict: "GateVerdict", form: OutputForm, github: bool | None) -> None:
    """`github`: whether with GitHub's annotations; None: in GitHub Actions."""
    if form.is_document:
        print_document(answer, form)
    else:
        _print_verdict(verdict)
    if github if github is not None else os.environ.get("GITHUB_ACTIONS") == "true":
        _print_annotations(verdict, sys.stderr if form.is_document else sys.stdout)


def _print_verdict(verdict: "GateVerdict") -> None:
    out, table = make_console(), make_table("", "CHECK", "FIGURE")
    for check in verdict.checks:
        table.add_row(Text(check.outcome, style=STYLES[check.outcome]), check.name, check.message)
    table.columns[-1].no_wrap = False
    out.print(table)
    counted = Counter[str](check.outcome for check in verdict.checks)
    beside = "" if verdict.against is None else f", beside {formatting.short_id(verdict.against)}"
    told = ", ".join(f"{counted[outcome]} {outcome}" for outcome in EXIT_CODES if counted[outcome])
    out.print(Text.assemble((verdict.outcome, STYLES[verdict.outcome]), f": {told}{beside}"))


def _print_annotations(verdict: "GateVerdict", to: Any) -> None:
    from shardyard.cli.gates.annotations import annotate

    for line in annotate(verdict):
        print(line, file=to)


COMMANDS: Commands = {"gate": gate_command}
