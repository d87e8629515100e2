"""What the jobs of a group have measured."""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from api.data.attempt_files import SeriesQuery
from api.data.fleet_cache import FleetCache
from api.data.job_repository import JobRepository
from api.groups.windows import MAX_WINDOWS, is_mark
from api.http.auth import Principal
from api.results.service import ResultService
from api.schemas import views
from jobs.model.records import JobRecord
from jobs.model.state import TERMINAL, JobState
from jobs.store.groups import Child
from jobs.support.bounded_cache import keep_newest
from shardyard.contract.errors import NotFound, UnreadableSpec
from shardyard.contract.groups import CurvePoint
from shardyard.contract.report import Report
from shardyard.contract.responses import PlacementView, SeriesView

#: Jobs whose files are read at a time.
READ_AT_ONCE = 8
#: What jobs have measured that have ended, and so cannot change, which a process keeps.
KEPT_MEASURES = 512
#: Points of a curve in a report.
MAX_CURVE_POINTS = 200


@dataclass(frozen=True, slots=True)
class JobMeasures:
    """Of one job; a job that is deleted has no record. `ends` are steps with the times at which they had ended."""

    record: JobRecord | None
    report: Report | None = None
    ends: Sequence[tuple[int, float]] = ()
    curve: list[CurvePoint] = field(default_factory=list)
    placement: list[PlacementView] = field(default_factory=list)

    @property
    def loss(self) -> float | None:
        result: dict[str, Any] = (self.record.result if self.record is not None else None) or {}
        loss = result.get("loss")
        if isinstance(loss, int | float):
            return float(loss)
        return self.curve[-1].value if self.curve else None

    @property
    def seconds(self) -> float | None:
        record = self.record
        if record is None or record.started is None or record.finished is None:
            return None
        return (record.finished - record.started) / 1e6

    def read_metric(self, name: str) -> float | None:
        """Of its result: `loss`, `metrics.<name>`; `rows_per_second` of its report."""
        if name == "loss":
            return self.loss
        if name == "rows_per_second":
            return self.report.rows_per_second if self.report is not None else None
        result: dict[str, Any] = (self.record.result if self.record is not None else None) or {}
        value = (result.get("metrics") or {}).get(name.removeprefix("metrics."))
        return float(value) if isinstance(value, int | float) else None


class MeasureReader:
    def __init__(self, records: JobRepository, results: ResultService, fleet: FleetCache) -> None:
        self._records = records
        self._results = results
        self._fleet = fleet
        self._ended: OrderedDict[tuple[str, str, int], JobMeasures] = OrderedDict()

    async def read_all(self, who: Principal, children: Sequence[Child]) -> list[JobMeasures]:
        """In the order of the children."""
        slots = asyncio.Semaphore(READ_AT_ONCE)

        async def read(child: Child) -> JobMeasures:
            async with slots:
                return await self._read_job(who, child.job)

        return list(await asyncio.gather(*map(read, children)))

    async def _read_job(self, who: Principal, job: str) -> JobMeasures:
        try:
            record = (await self._records.read_view(who.tenant, job)).record
        except (NotFound, UnreadableSpec):
            return JobMeasures(None)
        if record.state is JobState.QUEUED or not record.attempt:
            return JobMeasures(record)
        key = (who.tenant, job, record.version)
        if key in self._ended:
            self._ended.move_to_end(key)
            return self._ended[key]
        found = await self._read_files(who, record)
        if record.state in TERMINAL and found.report is not None and found.report.final:
            keep_newest(self._ended, key, found, KEPT_MEASURES)
        return found

    async def _read_files(self, who: Principal, record: JobRecord) -> JobMeasures:
        try:
            report: Report | None = _shorten(await self._results.read_splits(who, record.id, None, None))
        except NotFound:
            report = None
        query = SeriesQuery(device=-1, name="loss")
        series = (await self._results.read_metrics(who, record.id, None, query)).series
        facts = await self._fleet.read_facts()
        placement = views.placement_views(record.placement, facts, record.strategy)
        return JobMeasures(record, report, _step_ends(series), _read_curve(series), placement)


def _shorten(report: Report) -> Report:
    """What is read of it here, since many are kept."""
    return msgspec.structs.replace(report, patterns=(), findings=(), notes={})


def _step_ends(series: Sequence[SeriesView]) -> list[tuple[int, float]]:
    """Of the steps at which windows begin and end, as many as are measured at most."""
    points = [point for one in series for point in one.points if point.at is not None and is_mark(point.step)]
    return [(point.step, datetime.fromisoformat(str(point.at)).timestamp()) for point in points[: MAX_WINDOWS + 1]]


def _read_curve(series: Sequence[SeriesView]) -> list[CurvePoint]:
    points = [CurvePoint(point.step, point.value) for one in series for point in one.points]
    every = -(-len(points) // MAX_CURVE_POINTS) or 1
    return points[::every]
