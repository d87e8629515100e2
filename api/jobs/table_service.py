"""The service of jobs as a table: their rows, and values from their specs, results and progress as columns."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from api.data.job_repository import JobRepository
from api.data.telemetry_reader import TelemetryReader
from api.http.auth import Principal
from api.jobs.listed_rows import EncodedJobList
from api.jobs.owner_names import OwnerNames
from api.jobs.service import JobService
from jobs import store
from jobs.store import JobFilter
from jobs.store.client import AsyncRedisStore
from jobs.store.job_lists import JobColumns
from shardyard.contract.errors import FieldError, InvalidRequest
from shardyard.contract.responses import Answer, JobColumn, JobColumnList, Progress

MAX_COLUMNS = 200
#: The newest jobs, whose columns are listed.
SAMPLED_JOBS = 200
#: Longer texts are cut: a cell shows no more.
MAX_TEXT = 120
#: Values of the environment are secrets as often as not, and code is no column.
HIDDEN = ("spec.program.env.", "spec.program.code", "spec.labels.", "spec.name", "spec.pool", "spec.priority")

Value = str | float | int | bool | None


class EncodedJobTable(Answer, frozen=True):
    """A `JobTable` whose rows are encoded already."""

    columns: list[str]
    jobs: list[msgspec.Raw]
    values: list[list[Any]]
    counts: dict[str, int]
    next: str | None = None
    total: int | None = None
    total_is_exact: bool = True
    links: dict[str, str] = msgspec.field(default_factory=dict)


class _Row(msgspec.Struct, frozen=True):
    """What the values of a row need of it."""

    id: str
    attempt: int


class TableService:
    def __init__(
        self,
        control: AsyncRedisStore,
        jobs: JobService,
        records: JobRepository,
        telemetry: TelemetryReader,
        owners: OwnerNames,
    ) -> None:
        self._store = control
        self._jobs = jobs
        self._records = records
        self._telemetry = telemetry
        self._owners = owners

    async def read_table(
        self,
        who: Principal,
        chosen: JobFilter,
        columns: str,
        cursor: str,
        limit: int,
        *,
        archived: bool = False,
        search: str = "",
    ) -> EncodedJobTable:
        """Raises:
        InvalidRequest: too many columns.
        MalformedCursor: the cursor is not one of ours.
        """
        wanted = _parse_columns(columns)
        page: EncodedJobList = await self._jobs.list_jobs(who, chosen, cursor, limit, archived=archived, search=search)
        rows = [msgspec.json.decode(job, type=_Row) for job in page.jobs]
        known = await self._read_values(who, rows, archived=archived) if wanted else [{} for _ in rows]
        counts = await self._store.run(store.count_jobs(who.tenant))
        return EncodedJobTable(
            wanted,
            list(page.jobs),
            [[values.get(name) for name in wanted] for values in known],
            {str(state): count for state, count in counts.items()},
            page.next,
            page.total,
            page.total_is_exact,
        )

    async def list_columns(self, who: Principal) -> JobColumnList:
        page = await self._jobs.list_jobs(who, JobFilter(), "", SAMPLED_JOBS)
        rows = [msgspec.json.decode(job, type=_Row) for job in page.jobs]
        counts: Counter[str] = Counter()
        kinds: dict[str, str] = {}
        for values in await self._read_values(who, rows, archived=False):
            for name, value in values.items():
                if value is not None:
                    counts[name] += 1
                    kinds[name] = _kind_of(value) if kinds.get(name) in (None, _kind_of(value)) else "text"
        return JobColumnList(
            [JobColumn(name, kinds[name], count) for name, count in sorted(counts.items())], len(counts)
        )

    async def _read_values(self, who: Principal, rows: Sequence[_Row], *, archived: bool) -> list[dict[str, Value]]:
        """Of each row the values of all columns, by their names."""
        attempts = [(who.tenant, row.id, row.attempt) for row in rows]
        columns, progress = await asyncio.gather(
            self._read_archived(who, rows) if archived else self._read_columns(who, rows),
            self._telemetry.read_many_progress(attempts),
        )
        owners = await self._owners.read_names({one.token for one in columns if one.token})
        return [dict(_flatten(one, last, owners.get(one.token))) for one, last in zip(columns, progress, strict=True)]

    async def _read_columns(self, who: Principal, rows: Sequence[_Row]) -> Sequence[JobColumns]:
        return await self._store.run(store.read_columns(who.tenant, [row.id for row in rows]))

    async def _read_archived(self, who: Principal, rows: Sequence[_Row]) -> Sequence[JobColumns]:
        found = await asyncio.gather(*(self._records.read_archived(who.tenant, row.id) for row in rows))
        return [
            JobColumns("", {}, b"") if one is None else JobColumns(one.record.token, one.record.result or {}, one.spec)
            for one in found
        ]


def _parse_columns(columns: str) -> list[str]:
    """Names of columns, each once. Raises InvalidRequest."""
    wanted = list(dict.fromkeys(name for name in (part.strip() for part in columns.split(",")) if name))
    if len(wanted) > MAX_COLUMNS:
        words = f"name {MAX_COLUMNS} columns at most; these are {len(wanted)}"
        raise InvalidRequest("the table is not valid", fields=(FieldError("columns", words),))
    return wanted


def _flatten(columns: JobColumns, progress: Progress | None, owner: str | None) -> Iterator[tuple[str, Value]]:
    if owner is not None:
        yield "owner", owner
    if progress is not None:
        yield "rows_per_second", progress.rows_per_second
    loss = columns.result.get("loss")
    if loss is None and progress is not None:
        loss = progress.loss
    yield "loss", loss
    metrics = columns.result.get("metrics")
    if isinstance(metrics, dict):
        yield from ((f"metrics.{name}", value) for name, value in metrics.items())
    if columns.spec:
        fields = _flatten_json(msgspec.json.decode(columns.spec), "spec")
        yield from ((name, value) for name, value in fields if not name.startswith(HIDDEN))


def _flatten_json(value: Any, path: str) -> Iterator[tuple[str, Value]]:
    """The leaves of a JSON value by their dotted path; lists are leaves, as text."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _flatten_json(part, f"{path}.{name}")
    elif isinstance(value, list):
        if value:
            yield path, msgspec.json.encode(value).decode()[:MAX_TEXT]
    elif isinstance(value, str):
        yield path, value[:MAX_TEXT]
    else:
        yield path, value


def _kind_of(value: Value) -> str:
    if isinstance(value, bool):
        return "switch"
    return "number" if isinstance(value, int | float) else "text"
