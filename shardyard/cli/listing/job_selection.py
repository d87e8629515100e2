"""Reads the jobs of a list: several states, a time from which on, and an order, over as many pages as that takes."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from shardyard.cli.listing.job_columns import ListRow, sort_rows
from shardyard.client import endpoints
from shardyard.contract.errors import NotFound
from shardyard.contract.responses import ListedJob

if TYPE_CHECKING:
    from shardyard.client import Client

#: Among so many of the newest jobs that match, an order finds the first.
SORTED_JOBS = 1_000
PAGE = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQuery:
    """Which jobs a list has. `filters` are those of the route; `columns` those that the service fills in beside the
    jobs; `since`: seconds before now."""

    filters: dict[str, Any] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    since: float | None = None
    sort: str | None = None
    limit: int = 20
    cursor: str | None = None


@dataclass(frozen=True, slots=True)
class JobSelection:
    """`next` is a cursor; `left_out` says why jobs may be missing."""

    rows: list[ListRow]
    next: str | None = None
    left_out: str = ""


def find_jobs(client: "Client", query: JobQuery) -> JobSelection:
    """The jobs that match, newest first or as sorted, at most `limit`."""
    oldest = None if query.since is None else datetime.now(UTC) - timedelta(seconds=query.since)
    wanted = SORTED_JOBS if query.sort else query.limit
    found: list[ListRow] = []
    cursors: list[str | None] = []
    for state in query.states or (None,):
        some, cursor = _read_pages(client, query, state, oldest, wanted)
        found += some
        cursors.append(cursor)
    if len(query.states) > 1:
        found.sort(key=lambda row: (row.job.created_at, row.job.id), reverse=True)
    has_more = any(cursors) or len(found) > wanted
    found = found[:wanted]
    if query.sort:
        return _cut_sorted(sort_rows(found, query.sort), query.limit, has_more)
    cursor = cursors[0] if len(cursors) == 1 else None
    return JobSelection(found, cursor, "there are more: --limit" if has_more and cursor is None else "")


def _cut_sorted(rows: list[ListRow], limit: int, has_more: bool) -> JobSelection:
    if has_more:
        return JobSelection(rows[:limit], None, f"sorted among the newest {SORTED_JOBS:,} jobs that match")
    return JobSelection(rows[:limit], None, f"{len(rows) - limit} more: --limit" if len(rows) > limit else "")


def _read_pages(
    client: "Client", query: JobQuery, state: str | None, oldest: datetime | None, wanted: int
) -> tuple[list[ListRow], str | None]:
    """At most `wanted` jobs, and the cursor after them; None where there are no more, or none from that time on."""
    found: list[ListRow] = []
    cursor = query.cursor
    while len(found) < wanted:
        filters = query.filters | {"state": state, "limit": min(PAGE, wanted - len(found)), "cursor": cursor}
        page = _read_page(client, query.columns, filters)
        cursor = page.get("next")
        for row in _convert(page):
            if oldest is not None and row.job.created_at < oldest:
                return found, None
            found.append(row)
        if cursor is None:
            break
    return found, cursor


def _read_page(client: "Client", columns: tuple[str, ...], filters: dict[str, Any]) -> Any:
    if columns:
        with suppress(NotFound):  # a service of an earlier version has no tables
            return client.json(endpoints.read_job_table(columns, **filters))
    return client.json(endpoints.list_jobs(**filters))


def _convert(page: dict[str, Any]) -> Iterator[ListRow]:
    names = page.get("columns", [])
    values = page.get("values") or [[] for _ in page["jobs"]]
    for raw, known in zip(page["jobs"], values, strict=True):
        yield ListRow(msgspec.convert(raw, ListedJob), raw, dict(zip(names, known, strict=True)))
