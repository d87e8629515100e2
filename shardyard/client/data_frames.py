"""Lists of the client as pandas tables with real types: times are datetimes, counts are integers, states categories."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from shardyard.contract.responses import AttemptView, JobStatus, JobSummary, ListedJob, PlacementView, SeriesView
from shardyard.formatting import seconds_between

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]

T = TypeVar("T")
#: Rows that a terminal shows.
SHOWN = 20
#: Of a table without rows, too.
METRIC_COLUMNS = ("name", "device", "step", "value", "at")
#: Types of columns by their names, where pandas would choose another one. Int64 is an integer that may be missing.
TYPES = {
    **dict.fromkeys(("created_at", "claimed_at", "started_at", "first_step_at", "finished_at"), "datetime64[us, UTC]"),
    **dict.fromkeys(("ended_at", "at", "first_at", "last_at"), "datetime64[us, UTC]"),
    **dict.fromkeys(("state", "reason", "pool", "strategy", "node", "network"), "category"),
    **dict.fromkeys(("devices", "nodes", "priority", "attempt", "device", "count"), "int64"),
    **dict.fromkeys(("step", "steps", "epoch", "epochs", "resumed_step", "number", "first_step", "last_step"), "Int64"),
    **dict.fromkeys(("fraction", "loss", "rows_per_second", "took_seconds", "waited_seconds"), "float64"),
    **dict.fromkeys(("value", "minimum", "maximum", "mean"), "float64"),
}


class Rows(list[T], Generic[T]):
    """A list whose values are also a table."""

    def __init__(
        self,
        values: Iterable[T],
        rows: Callable[[Sequence[T]], list[dict[str, Any]]],
        index: str | None,
        columns: Sequence[str] = (),
    ) -> None:
        super().__init__(values)
        self._rows = rows
        self._index = index
        self._columns = columns

    def to_pandas(self) -> "pandas.DataFrame":
        """The same as a table of pandas. Raises ImportError if pandas is not installed."""
        return make_frame(self._rows(self), self._index, self._columns)

    def __repr__(self) -> str:
        from shardyard.client.notebook import format_table

        rows = self._rows(self)
        more = f"\nand {len(rows) - SHOWN} more" if len(rows) > SHOWN else ""
        return format_table(rows[:SHOWN]) + more if rows else "[]"

    def _repr_html_(self) -> str:
        from shardyard.client.notebook import render_table

        return render_table(self._rows(self))


def attempt_rows(attempts: Sequence[AttemptView]) -> list[dict[str, Any]]:
    return [
        {
            "attempt": attempt.attempt,
            "state": attempt.state,
            "reason": None if attempt.reason is None else attempt.reason.code,
            "message": None if attempt.reason is None else attempt.reason.message,
            "where": _describe_places(attempt.placement),
            "resumed_step": None if attempt.resumed_from is None else attempt.resumed_from.step,
            "created_at": attempt.created_at,
            "started_at": attempt.started_at,
            "first_step_at": attempt.first_step_at,
            "ended_at": attempt.ended_at,
            "took_seconds": _between(attempt.started_at, attempt.ended_at),
        }
        for attempt in attempts
    ]


def metric_rows(series: Sequence[SeriesView]) -> list[dict[str, Any]]:
    """A row for each point, or for each bucket of points that were combined."""
    points = [
        {"name": one.name, "device": one.device, "step": point.step, "value": point.value, "at": point.at}
        for one in series
        for point in one.points
    ]
    buckets = [
        {
            "name": one.name,
            "device": one.device,
            "step": bucket.last.step,
            "value": bucket.mean,
            "at": bucket.last.at,
            "first_step": bucket.first.step,
            "count": bucket.count,
            "minimum": bucket.minimum,
            "maximum": bucket.maximum,
        }
        for one in series
        for bucket in one.buckets
    ]
    return points + buckets


def job_rows(jobs: Sequence[JobSummary]) -> list[dict[str, Any]]:
    return [_job_row(job) for job in jobs]


def _job_row(job: JobSummary) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": job.id,
        "name": job.name,
        "state": job.state,
        "reason": job.reason.code,
        "message": job.reason.message,
        "pool": job.pool,
        "strategy": job.strategy,
        "devices": job.devices,
        "nodes": job.nodes,
        "priority": job.priority,
        "attempt": job.attempt,
        "where": _describe_places(job.placement),
        "created_at": job.created_at,
        "started_at": job.started_at,
        "first_step_at": job.first_step_at,
        "finished_at": job.finished_at,
        "waited_seconds": _between(job.created_at, job.started_at),
        "took_seconds": _between(job.started_at, job.finished_at),
    }
    progress = job.progress if isinstance(job, ListedJob | JobStatus) else None
    for name in ("epoch", "step", "fraction", "rows_per_second", "loss"):
        row[name] = None if progress is None else getattr(progress, name)
    result = (job.result or {}) if isinstance(job, JobStatus) else {}
    row |= {
        f"result.{name}": value
        for name, value in ({"loss": result.get("loss")} | (result.get("metrics") or {})).items()
    }
    return row | {f"label.{key}": value for key, value in job.labels.items()}


def make_frame(rows: list[dict[str, Any]], index: str | None, columns: Sequence[str] = ()) -> "pandas.DataFrame":
    """`columns` are those of a table without rows."""
    try:
        import pandas
    except ImportError as error:
        raise ImportError("to_pandas() needs pandas: pip install pandas") from error
    frame = pandas.DataFrame(rows, columns=None if rows else list(columns))
    if "count" in frame and frame["count"].isna().any():  # points beside buckets
        frame["count"] = frame["count"].fillna(1)
    frame = frame.astype({name: kind for name, kind in TYPES.items() if name in frame})
    if "name" in frame and "value" in frame:
        frame["name"] = frame["name"].astype("category")
    return frame if index is None or frame.empty else frame.set_index(index)


def _between(start: Any, end: Any) -> float | None:
    return None if end is None else seconds_between(start, end)


def _describe_places(places: Sequence[PlacementView]) -> str | None:
    return ", ".join(f"{place.node} {' '.join(place.devices)}" for place in places) or None
