"""Columns of lists of jobs: what each shows, and how jobs are sorted by it."""

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.text import Text

from shardyard import formatting
from shardyard.cli.common import state_text
from shardyard.cli.status import progress_text
from shardyard.contract.errors import InvalidRequest

if TYPE_CHECKING:
    from shardyard.contract.responses import ListedJob

#: Of a job that succeeded, which its state says already.
_COMPLETED = "completed"


@dataclass(frozen=True, slots=True)
class JobColumn:
    """`show` gives a cell. `sort` gives what jobs are sorted by, and None for a job that has no such value yet;
    `falls`: the largest or the newest come first. `is_number`: it is aligned right."""

    show: "Callable[[ListedJob], str | Text]"
    sort: "Callable[[ListedJob], Any] | None" = None
    falls: bool = False
    is_number: bool = False


def _took(job: "ListedJob") -> float | None:
    return formatting.seconds_between(job.started_at, job.finished_at)


def _waited(job: "ListedJob") -> float | None:
    return formatting.seconds_between(job.created_at, job.started_at or job.finished_at)


def _age(when: datetime | None) -> str:
    return formatting.format_age(formatting.seconds_between(when, None))


def describe_outcome(job: "ListedJob") -> str:
    """Why a job failed or waits, or how far it is."""
    if job.state == "running" and job.progress is not None:
        done = "" if job.progress.fraction is None else f"{job.progress.fraction:.0%}  "
        return done + progress_text(job.progress)
    if job.state == "succeeded" or job.reason.message == job.state:
        return "-" if job.reason.code in (_COMPLETED, job.state) else job.reason.message
    position = f"position {job.queue_position}: " if job.queue_position else ""
    return formatting.single_line(position + job.reason.message) or "-"


def _places(job: "ListedJob") -> str:
    return ", ".join(f"{place.node} {formatting.device_names(place.devices)}" for place in job.placement) or "-"


def _labels(job: "ListedJob") -> str:
    return ",".join(f"{key}={value}" for key, value in job.labels.items()) or "-"


COLUMNS: dict[str, JobColumn] = {
    "job": JobColumn(lambda job: formatting.short_id(job.id)),
    "id": JobColumn(lambda job: job.id, lambda job: job.id, falls=True),
    "name": JobColumn(lambda job: job.name, lambda job: job.name.casefold()),
    "state": JobColumn(lambda job: state_text(job.state), lambda job: job.state),
    "outcome": JobColumn(describe_outcome),
    "reason": JobColumn(lambda job: job.reason.code or "-", lambda job: job.reason.code or None),
    "pool": JobColumn(lambda job: job.pool, lambda job: job.pool),
    "runs": JobColumn(lambda job: f"{job.strategy} on {formatting.devices_on_nodes(job.devices, job.nodes)}"),
    "strategy": JobColumn(lambda job: job.strategy, lambda job: job.strategy),
    "devices": JobColumn(
        lambda job: formatting.devices_on_nodes(job.devices, job.nodes),
        lambda job: job.devices * job.nodes,
        falls=True,
        is_number=True,
    ),
    "where": JobColumn(_places, lambda job: job.placement[0].node if job.placement else None),
    "priority": JobColumn(lambda job: str(job.priority), lambda job: job.priority, falls=True, is_number=True),
    "attempt": JobColumn(lambda job: str(job.attempt), lambda job: job.attempt, falls=True, is_number=True),
    "labels": JobColumn(_labels),
    "age": JobColumn(lambda job: _age(job.created_at), lambda job: -job.created_at.timestamp(), is_number=True),
    "created": JobColumn(lambda job: formatting.local_time(job.created_at), lambda job: job.created_at, falls=True),
    "started": JobColumn(lambda job: formatting.local_time(job.started_at), lambda job: job.started_at, falls=True),
    "finished": JobColumn(lambda job: formatting.local_time(job.finished_at), lambda job: job.finished_at, falls=True),
    "waited": JobColumn(lambda job: formatting.format_duration(_waited(job)), _waited, falls=True, is_number=True),
    "took": JobColumn(lambda job: formatting.format_duration(_took(job)), _took, falls=True, is_number=True),
}
SHOWN = ("job", "name", "state", "outcome", "runs", "age", "took")
WIDE = (
    *("id", "name", "state", "outcome", "pool", "runs", "where", "priority", "attempt"),
    *("created", "age", "waited", "took", "labels"),
)
SORTED = tuple(name for name, column in COLUMNS.items() if column.sort is not None)


def parse_columns(given: str) -> tuple[str, ...]:
    """The columns that `--columns` names. Raises InvalidRequest."""
    names = tuple(name.strip().lower() for name in given.split(",") if name.strip())
    for name in names:
        check_name(name, "--columns", COLUMNS)
    return names or SHOWN


def sort_jobs(jobs: "list[ListedJob]", by: str) -> "list[ListedJob]":
    """Jobs by a column; `-` in front turns its order. Jobs without a value come last.

    Raises:
        InvalidRequest: there is no such column, or none that has an order.
    """
    name = by.removeprefix("-")
    check_name(name, "--sort", SORTED)
    column = COLUMNS[name]
    assert column.sort is not None
    values = [(column.sort(job), job) for job in jobs]
    known = [pair for pair in values if pair[0] is not None]
    known.sort(key=lambda pair: pair[0], reverse=column.falls != by.startswith("-"))
    return [job for _, job in known] + [job for value, job in values if value is None]


def check_name(name: str, option: str, known: Iterable[str]) -> None:
    """Raises InvalidRequest, with a suggestion, if a name is not among those that are known."""
    names = list(known)
    if name in names:
        return
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise InvalidRequest(f"{option} {name!r}: {hint}There are {', '.join(names)}".replace(": There", ": there"))
