"""Reads the jobs of a list: several states, a time from which on, and an order, over as many pages as that takes."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from shardyard.cli.listing.job_columns import sort_jobs
from shardyard.client import endpoints
from shardyard.contract.responses import ListedJob

if TYPE_CHECKING:
    from shardyard.client import Client

#: Among so many of the newest jobs that match, an order finds the first.
SORTED_JOBS = 1_000
PAGE = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQuery:
    """Which jobs a list has. `filters` are those of the route; `since`: seconds before now."""

    filters: dict[str, Any] = field(default_factory=dict)
    states: tuple[str, ...] = ()
    since: float | None = None
    sort: str | None = None
    limit: int = 20
    cursor: str | None = None


@dataclass(frozen=True, slots=True)
class FoundJobs:
    """`raw` has the jobs as the service sent them. `next` is a cursor; `left_out` says why jobs may be missing."""

    jobs: list[ListedJob]
    raw: list[dict[str, Any]]
    next: str | None = None
    left_out: str = ""


def find_jobs(client: "Client", query: JobQuery) -> FoundJobs:
    """The jobs that match, newest first or as sorted, at most `limit`."""
    newest = None if query.since is None else datetime.now(UTC) - timedelta(seconds=query.since)
    wanted = SORTED_JOBS if query.sort else query.limit
    found: list[tuple[ListedJob, dict[str, Any]]] = []
    cursors: list[str | None] = []
    for state in query.states or (None,):
        some, cursor = _read_pages(client, query, state, newest, wanted)
        found += some
        cursors.append(cursor)
    if len(query.states) > 1:
        found.sort(key=lambda pair: (pair[0].created_at, pair[0].id), reverse=True)
    has_more = any(cursors) or len(found) > wanted
    found = found[:wanted]
    if query.sort:
        raw_of = {job.id: raw for job, raw in found}
        in_order = sort_jobs([job for job, _ in found], query.sort)
        found = [(job, raw_of[job.id]) for job in in_order]
        left_out = f"sorted among the newest {SORTED_JOBS:,} jobs that match" if has_more else ""
        left_out = left_out or (f"{len(found) - query.limit} more: --limit" if len(found) > query.limit else "")
        found = found[: query.limit]
        return FoundJobs([job for job, _ in found], [raw for _, raw in found], None, left_out)
    cursor = cursors[0] if len(cursors) == 1 else None
    left_out = "there are more: --limit" if has_more and cursor is None else ""
    return FoundJobs([job for job, _ in found], [raw for _, raw in found], cursor, left_out)


def _read_pages(
    client: "Client", query: JobQuery, state: str | None, newest: datetime | None, wanted: int
) -> tuple[list[tuple[ListedJob, dict[str, Any]]], str | None]:
    """At most `wanted` jobs, and the cursor after them; None where there are no more, or none from that time on."""
    found: list[tuple[ListedJob, dict[str, Any]]] = []
    cursor = query.cursor
    while len(found) < wanted:
        size = min(PAGE, wanted - len(found))
        page = client.json(endpoints.list_jobs(**query.filters, state=state, limit=size, cursor=cursor))
        cursor = page.get("next")
        for job, raw in _convert(page):
            if newest is not None and job.created_at < newest:
                return found, None
            found.append((job, raw))
        if cursor is None:
            break
    return found, cursor


def _convert(page: dict[str, Any]) -> Iterator[tuple[ListedJob, dict[str, Any]]]:
    for raw in page["jobs"]:
        yield msgspec.convert(raw, ListedJob), raw
