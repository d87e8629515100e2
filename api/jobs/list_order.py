"""Orders of lists of jobs. Ids sort by creation time, so a list in that order can be read to its end; in any other
order the newest jobs that match are sorted here."""

import operator
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, NamedTuple

from jobs.model.records import JobRow
from jobs.store import JobRowPage

Order = Literal[
    "-created_at",
    "created_at",
    "-started_at",
    "started_at",
    "-finished_at",
    "finished_at",
    "-priority",
    "priority",
    "-devices",
    "devices",
    "name",
    "-name",
]
NEWEST: Order = "-created_at"
OLDEST: Order = "created_at"
#: Jobs that are sorted at most: the newest that match.
MAX_SORTED = 1_000
#: Pages that they are read in, and of how many jobs: a filter that matches rarely is not followed to the end.
PAGES, PAGE_JOBS = 10, 200

_KEYS: Mapping[str, Callable[[JobRow], Any]] = {
    "started_at": operator.attrgetter("started"),
    "finished_at": operator.attrgetter("finished"),
    "priority": operator.attrgetter("priority"),
    "devices": operator.attrgetter("all_devices"),
    "name": lambda job: job.name.casefold(),
}


class SortedPage(NamedTuple):
    """A part of the sorted jobs, how many were sorted, and whether these are all that match."""

    jobs: tuple[JobRow, ...]
    sorted_jobs: int
    is_all: bool


async def read_sorted(read: Callable[..., Awaitable[JobRowPage]], order: Order, offset: int, limit: int) -> SortedPage:
    """`limit` jobs from `offset` on. `read` gives pages, newest first. Jobs without the value are last in any order."""
    found: list[JobRow] = []
    following: str | None = ""
    for _ in range(PAGES):
        page = await read(after=following, limit=PAGE_JOBS)
        found += page.jobs
        following = page.next_id
        if following is None or len(found) >= MAX_SORTED:
            break
    key = _KEYS[order.removeprefix("-")]
    with_value = [job for job in found if key(job) is not None]
    with_value.sort(key=key, reverse=order.startswith("-"))
    rows = with_value + [job for job in found if key(job) is None]
    return SortedPage(tuple(rows[offset : offset + limit]), len(rows), following is None)
