"""Many jobs at once: lists, counts and searches, and what is read or cancelled of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import msgspec

from jobs.model.records import ROW_FIELDS, JobRecord, JobRow, QueueView
from jobs.model.state import TERMINAL, JobState
from jobs.protocol.names import job_ref
from jobs.store.call import Call, Word, call_function, read_hash
from jobs.store.specs import decompress_spec

MAX_CANCEL_SCANNED = 1_000
#: Jobs that one call cancels, and looks at: Redis answers nobody else meanwhile.
MAX_CANCELLED = 50
#: Jobs that one page looks at, when a filter matches rarely.
MAX_SCANNED = 1_000
#: A spec that is stored in more bytes has no columns in tables of jobs.
MAX_COLUMN_SPEC_BYTES = 32_768
#: Rows of jobs that have ended which a process keeps decoded, at about a kilobyte each.
KEPT_ROWS = 4096


@dataclass(frozen=True, slots=True)
class JobFilter:
    state: JobState | None = None
    pool: str = ""
    label: tuple[str, str] | None = None
    name: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class JobRowPage:
    jobs: tuple[JobRow, ...]
    next_id: str | None  # pass it as `after` for the next page; None at the end
    queues: dict[str, QueueView] = field(default_factory=dict)  # by the ids of jobs that wait, as far as was asked for


def list_jobs(
    tenant: str,
    chosen: JobFilter,
    *,
    after: str = "",
    limit: int = 50,
    max_queues: int = 0,
    oldest_first: bool = False,
) -> Call[JobRowPage]:
    """A page of jobs, newest first unless it is said otherwise, with the queues of the first `max_queues` jobs that
    wait. A page may be short, even empty, while `next_id` is set: a filter that matches rarely looks at `MAX_SCANNED`
    jobs a call."""

    def decode(reply: Sequence[Any]) -> JobRowPage:
        next_id, waiting, *rows = reply
        queues = {job.decode(): QueueView(*map(int, queue)) for job, *queue in waiting}
        pairs = zip(rows[::2], rows[1::2], strict=True)
        jobs = tuple(_read_row(tenant, job, tuple(values)) for job, values in pairs)
        return JobRowPage(jobs, next_id.decode() or None, queues)

    return call_function(
        "list_jobs",
        decode,
        *ROW_FIELDS,
        **_filter_arguments(tenant, chosen),
        after=after,
        limit=limit,
        max_scanned=MAX_SCANNED,
        max_queues=max_queues,
        order="oldest" if oldest_first else "newest",
    )


@dataclass(frozen=True, slots=True)
class JobCount:
    """How many jobs match a filter; where that is not `exact`, more may match."""

    number: int
    exact: bool


def count_matching(tenant: str, chosen: JobFilter) -> Call[JobCount]:
    """Of a filter by more than the state only the newest `MAX_SCANNED` jobs are counted."""

    def decode(reply: Sequence[int]) -> JobCount:
        return JobCount(reply[0], bool(reply[1]))

    return call_function("count_matching", decode, **_filter_arguments(tenant, chosen), max_scanned=MAX_SCANNED)


def _read_row(tenant: str, job: bytes, values: tuple[bytes | None, ...]) -> JobRow:
    """The row of a job from the values of `ROW_FIELDS`; the same object as before where a job has ended, and so cannot
    change."""
    return (_decode_ended_row if values[0] in _ENDED else _decode_row)(tenant, job, values)


def _decode_row(tenant: str, job: bytes, values: tuple[bytes | None, ...]) -> JobRow:
    fields = {name: value for name, value in zip(ROW_FIELDS, values, strict=True) if value is not None}
    return JobRow.from_fields(tenant, job.decode(), fields)


_ENDED = frozenset(str(state).encode() for state in TERMINAL)
_decode_ended_row = lru_cache(KEPT_ROWS)(_decode_row)


def _filter_arguments(tenant: str, chosen: JobFilter) -> dict[str, Word]:
    key, value = chosen.label or ("", "")
    return {
        "tenant": tenant,
        "state": chosen.state or "",
        "pool": chosen.pool,
        "label_key": key,
        "label_value": value,
        "name": chosen.name,
        "group": job_ref(tenant, chosen.group) if chosen.group else "",
    }


@dataclass(frozen=True, slots=True)
class FoundJobs:
    """Ids of jobs that begin, and that end, with what was searched for."""

    beginning: tuple[str, ...]
    ending: tuple[str, ...]


def find_jobs(tenant: str, text: str, limit: int) -> Call[FoundJobs | None]:
    """Jobs whose ids begin or end with a text, at most so many of each. None: the index that this needs has grown, and
    is not complete yet; call it again."""

    def decode(reply: Sequence[Any]) -> FoundJobs | None:
        if not reply[0]:
            return None
        beginning, ending = (tuple(job.decode() for job in ids) for ids in reply[1:])
        return FoundJobs(beginning, ending)

    return call_function("find_jobs", decode, tenant=tenant, text=text, limit=limit)


def newest_jobs(tenant: str, token: str, limit: int) -> Call[tuple[str, ...]]:
    """Ids of the newest jobs that a token has submitted, newest first; where none of the newest `MAX_SCANNED` is its
    own, those of the whole tenant."""

    def decode(reply: Sequence[bytes]) -> tuple[str, ...]:
        return tuple(job.decode() for job in reply)

    return call_function("newest_jobs", decode, tenant=tenant, token=token, limit=limit, max_scanned=MAX_SCANNED)


@dataclass(frozen=True, slots=True)
class CancelledChunk:
    next_id: str | None  # pass it as `after` to go on; None at the end
    cancelled: int
    cancelling: int  # told to end


def cancel_many(tenant: str, chosen: JobFilter, *, after: str) -> Call[CancelledChunk]:
    """Cancel a chunk of the jobs that match, newest first, with ids below `after`. The filter must name a state."""

    def decode(reply: Sequence[Any]) -> CancelledChunk:
        next_id, cancelled, cancelling = reply
        return CancelledChunk(next_id.decode() or None, cancelled, cancelling)

    return call_function(
        "cancel_many",
        decode,
        **_filter_arguments(tenant, chosen),
        after_id=after,
        max_jobs=MAX_CANCELLED,
        max_scanned=MAX_CANCEL_SCANNED,
    )


def count_jobs(tenant: str) -> Call[dict[JobState, int]]:
    """Jobs of a tenant in every state."""

    def decode(reply: Sequence[int]) -> dict[JobState, int]:
        return dict(zip(JobState, reply, strict=True))

    return call_function("count_jobs", decode, *JobState, tenant=tenant)


@dataclass(frozen=True, slots=True)
class JobColumns:
    """What a table shows of a job beside its row. `spec` is JSON, empty where it is too large for tables."""

    token: str
    result: dict[str, Any]
    spec: bytes


def read_columns(tenant: str, jobs: Sequence[str]) -> Call[tuple[JobColumns, ...]]:
    """Of jobs of a tenant, in their order; of one that is gone, nothing is known."""

    def decode(reply: Sequence[Any]) -> tuple[JobColumns, ...]:
        return tuple(
            JobColumns(
                token.decode(),
                msgspec.json.decode(result, type=dict[str, Any]) if result else {},
                decompress_spec(spec) if spec else b"",
            )
            for token, result, spec in reply
        )

    refs = [job_ref(tenant, job) for job in jobs]
    return call_function("read_columns", decode, *refs, max_spec_bytes=MAX_COLUMN_SPEC_BYTES)


def read_versions(jobs: Sequence[tuple[str, str]]) -> Call[tuple[int | None, ...]]:
    """Versions of jobs that are given as (tenant, id); None for one that is gone."""

    def decode(reply: Sequence[bytes]) -> tuple[int | None, ...]:
        return tuple(int(version) if version else None for version in reply)

    return call_function("read_versions", decode, *(job_ref(tenant, job) for tenant, job in jobs))


@dataclass(frozen=True, slots=True)
class ChangePage:
    """Part of the list of changes: (id of the entry, tenant, job), oldest first. `newest` is the id of the last entry
    there is; `known` is whether the entry that was asked for is still there, so that nothing after it was trimmed."""

    newest: str
    known: bool
    entries: tuple[tuple[str, str, str], ...]


def read_changes(after: str, limit: int) -> Call[ChangePage]:
    """Which jobs, of all tenants, changed after an entry, at most so many."""

    def decode(reply: Sequence[Any]) -> ChangePage:
        newest, known, entries = reply
        found = ((name.decode(), *fields[1].decode().split("/", 1)) for name, fields in entries)
        return ChangePage(newest.decode(), known == b"1", tuple(found))

    return call_function("read_changes", decode, after=after, limit=limit)


def read_records(jobs: Sequence[tuple[str, str]]) -> Call[tuple[JobRecord | None, ...]]:
    """Jobs that are given as (tenant, id); None for one that is gone."""

    def decode(reply: Sequence[Any]) -> tuple[JobRecord | None, ...]:
        return tuple(
            JobRecord.from_fields(tenant, job, read_hash(found)) if found else None
            for (tenant, job), found in zip(jobs, reply, strict=True)
        )

    return call_function("read_records", decode, *(job_ref(tenant, job) for tenant, job in jobs))
