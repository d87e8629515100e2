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
class ListRow:
    """A job of a list, with values of the columns that only the service knows. `raw` is the job as it was sent."""

    job: "ListedJob"
    raw: dict[str, Any]
    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ShownColumn:
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


def describe_outcome(job: "ListedJob", loss: float | None = None) -> str:
    """Why a job failed or waits, how far it is, or the loss that it has reached."""
    if job.state == "running" and job.progress is not None:
        done = "" if job.progress.fraction is None else f"{job.progress.fraction:.0%}  "
        return done + progress_text(job.progress)
    if job.state == "succeeded" and loss is not None:
        return f"loss {formatting.format_number(loss)}"
    if job.state == "succeeded" or job.reason.message == job.state:
        return "-" if job.reason.code in (_COMPLETED, job.state) else job.reason.message
    position = f"position {job.queue_position}: " if job.queue_position else ""
    return formatting.single_line(position + job.reason.message) or "-"


def _labels(job: "ListedJob") -> str:
    return ",".join(f"{key}={value}" for key, value in job.labels.items()) or "-"


COLUMNS: dict[str, ShownColumn] = {
    "job": ShownColumn(lambda job: formatting.short_id(job.id)),
    "id": ShownColumn(lambda job: job.id, lambda job: job.id, falls=True),
    "name": ShownColumn(lambda job: job.name, lambda job: job.name.casefold()),
    "state": ShownColumn(lambda job: state_text(job.state), lambda job: job.state),
    "outcome": ShownColumn(describe_outcome),
    "reason": ShownColumn(lambda job: job.reason.code or "-", lambda job: job.reason.code or None),
    "pool": ShownColumn(lambda job: job.pool, lambda job: job.pool),
    "runs": ShownColumn(lambda job: f"{job.strategy} on {formatting.devices_on_nodes(job.devices, job.nodes)}"),
    "strategy": ShownColumn(lambda job: job.strategy, lambda job: job.strategy),
    "devices": ShownColumn(
        lambda job: formatting.devices_on_nodes(job.devices, job.nodes),
        lambda job: job.devices * job.nodes,
        falls=True,
        is_number=True,
    ),
    "where": ShownColumn(
        lambda job: ", ".join(formatting.place_names(job.placement)) or "-",
        lambda job: job.placement[0].node if job.placement else None,
    ),
    "priority": ShownColumn(lambda job: str(job.priority), lambda job: job.priority, falls=True, is_number=True),
    "attempt": ShownColumn(lambda job: str(job.attempt), lambda job: job.attempt, falls=True, is_number=True),
    "labels": ShownColumn(_labels),
    "age": ShownColumn(lambda job: _age(job.created_at), lambda job: -job.created_at.timestamp(), is_number=True),
    "created": ShownColumn(lambda job: formatting.local_time(job.created_at), lambda job: job.created_at, falls=True),
    "started": ShownColumn(lambda job: formatting.local_time(job.started_at), lambda job: job.started_at, falls=True),
    "finished": ShownColumn(
        lambda job: formatting.local_time(job.finished_at), lambda job: job.finished_at, falls=True
    ),
    "waited": ShownColumn(lambda job: formatting.format_duration(_waited(job)), _waited, falls=True, is_number=True),
    "took": ShownColumn(lambda job: formatting.format_duration(_took(job)), _took, falls=True, is_number=True),
}
SHOWN = ("job", "name", "state", "outcome", "runs", "age", "took")
WIDE = (
    *("id", "name", "state", "outcome", "pool", "runs", "where", "priority", "attempt"),
    *("created", "age", "waited", "took", "labels"),
)
SORTED = tuple(name for name, column in COLUMNS.items() if column.sort is not None)


#: Columns that the service fills in: what was measured, and fields of the spec.
EXTRA = ("loss", "rows_per_second", "owner")
EXTRA_PREFIXES = ("metrics.", "spec.")


def is_extra(name: str) -> bool:
    return name in EXTRA or name.startswith(EXTRA_PREFIXES)


def show_cell(name: str, row: ListRow) -> "str | Text":
    if name == "outcome":
        loss = row.values.get("loss")
        return describe_outcome(row.job, loss if isinstance(loss, int | float) else None)
    if name in COLUMNS:
        return COLUMNS[name].show(row.job)
    value = row.values.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return formatting.format_number(value)
    return "-" if value is None else formatting.single_line(str(value))


def parse_columns(given: str) -> tuple[str, ...]:
    """The columns that `--columns` names. Raises InvalidRequest."""
    names = tuple(name.strip() for name in given.split(",") if name.strip())
    for name in names:
        if not is_extra(name):
            check_name(name, "--columns", [*COLUMNS, *EXTRA])
    return names or SHOWN


def sort_rows(rows: list[ListRow], by: str) -> list[ListRow]:
    """Rows by a column; `-` in front turns its order. Jobs without a value come last."""
    name = by.removeprefix("-")
    column = COLUMNS.get(name)

    def value_of(row: ListRow) -> Any:
        if column is not None and column.sort is not None:
            return column.sort(row.job)
        value = row.values.get(name)
        return None if value is None else (isinstance(value, str), value)  # text behind numbers

    values = [(value_of(row), row) for row in rows]
    known = [pair for pair in values if pair[0] is not None]
    falls = column is not None and column.falls
    known.sort(key=lambda pair: pair[0], reverse=falls != by.startswith("-"))
    return [row for _, row in known] + [row for value, row in values if value is None]


def check_sort(by: str) -> None:
    """Raises InvalidRequest if there is no such column, or none that has an order."""
    name = by.removeprefix("-")
    if not is_extra(name):
        check_name(name, "--sort", [*SORTED, *EXTRA])


def check_name(name: str, option: str, known: Iterable[str]) -> None:
    """Raises InvalidRequest, with a suggestion, if a name is not among those that are known."""
    names = list(known)
    if name in names:
        return
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise InvalidRequest(f"{option} {name!r}: {hint}There are {', '.join(names)}".replace(": There", ": there"))
