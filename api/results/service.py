"""The service of results: split reports, logs, metrics and artifacts of attempts."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from api.data import attempt_files, hardware_series
from api.data.artifacts import OpenArtifact
from api.data.attempt_files import LogQuery, SeriesQuery
from api.data.file_threads import AttemptStorage
from api.data.job_repository import JobRepository
from api.data.log_streams import ALL_STREAMS, LogStreams, default_streams, stream_names
from api.data.telemetry_reader import TelemetryReader
from api.http import cursors
from api.http.auth import Principal
from api.http.cursors import LogCursor
from api.schemas.views import HIDDEN
from jobs.files import paths
from jobs.model.records import AttemptRecord
from jobs.model.spec import JobSpec, RecipeProgram
from jobs.model.state import AttemptState
from jobs.protocol.hardware import decode_samples
from shardyard.contract.errors import FieldError, InvalidRequest, NotFound, Unavailable, UnreadableSpec
from shardyard.contract.report import Report, decode_report, encode_report
from shardyard.contract.report_diff import ReportDiff
from shardyard.contract.responses import ArtifactList, LogPage, MetricList, SeriesView
from shardyard.render.svg.palette import By

if TYPE_CHECKING:
    from shardyard.render.svg.line_chart import MetricCurve
    from shardyard.render.svg.report_page import ReportContext

T = TypeVar("T")
#: What is decoded or encoded in a thread: a megabyte takes some milliseconds.
LARGE_BYTES = 128 * 1024
#: Points of one line in a page.
POINTS_OF_A_CURVE = 200


class ResultService:
    def __init__(self, records: JobRepository, telemetry: TelemetryReader, storage: AttemptStorage) -> None:
        self._records = records
        self._telemetry = telemetry
        self._storage = storage

    async def read_splits(self, who: Principal, job: str, attempt: int | None, device: int | None) -> Report:
        """The split report of an attempt (default: the newest), for one device if asked.

        Raises:
            NotFound: there is no such attempt, or no report of it yet, or one that cannot be read.
        """
        chosen, body = await self._read_report(who, job, attempt)
        with _refusing_damaged(job, chosen):
            found = await self.compute(partial(decode_report, body), size=len(body))
        return found if device is None else _select_device(found, device)

    async def compute(self, work: Callable[[], T], *, size: int = LARGE_BYTES) -> T:
        """What `work` returns that handles so many bytes: in a thread where they are many, since nobody else is served
        meanwhile. Raises TooManyReads, and what it raises."""
        return work() if size < LARGE_BYTES else await self._storage.run_in_thread(work)

    async def splits_json(self, who: Principal, job: str, attempt: int | None, device: int | None) -> bytes:
        """The same as JSON: the stored bytes, where they are asked for whole. Raises as `read_splits` does."""
        if device is not None:
            return encode_report(await self.read_splits(who, job, attempt, device))
        chosen, body = await self._read_report(who, job, attempt)
        with _refusing_damaged(job, chosen):
            await self.compute(partial(_head_decoder.decode, body), size=len(body))
        return body

    async def splits_text(
        self, who: Principal, job: str, attempt: int | None, device: int | None, *, notes: bool = False
    ) -> str:
        """The same for people. Raises as `read_splits` does."""
        from shardyard.render import report_text

        found = await self.read_splits(who, job, attempt, device)
        return await self._storage.run_in_thread(partial(report_text.render_report, found, notes=notes))

    async def splits_picture(self, who: Principal, job: str, attempt: int | None, device: int | None, by: By) -> str:
        """The heat map as SVG. Raises as `read_splits` does."""
        from shardyard.render.svg.heat_map import draw_heat_map

        found = await self.read_splits(who, job, attempt, device)
        about = await self._describe_job(who, job)
        drawn = partial(draw_heat_map, found, by, name=about.name, output_device=about.output_device)
        return await self._storage.run_in_thread(drawn)

    async def splits_page(self, who: Principal, job: str, attempt: int | None, device: int | None, by: By) -> str:
        """Everything in one HTML file. Raises as `read_splits` does."""
        from shardyard.render.svg.report_page import report_page

        found = await self.read_splits(who, job, attempt, device)
        about = await self._describe_job(who, job)
        series = await self.read_metrics(who, job, found.attempt, SeriesQuery(device, points=POINTS_OF_A_CURVE))
        about = replace(about, curves=[_series_curve(one) for one in series.series])
        return await self._storage.run_in_thread(partial(report_page, found, about, by))

    async def splits_diff_page(
        self, who: Principal, job: str, attempt: int | None, against: str, against_attempt: int | None
    ) -> str:
        """Two reports in one HTML file. Raises as `splits_diff` does."""
        from shardyard.render.svg.comparison_page import comparison_page

        this = await self.read_splits(who, job, attempt, None)
        other = await self.read_splits(who, against, against_attempt, None)
        sides = (this, await self._describe_job(who, job)), (other, await self._describe_job(who, against))
        return await self._storage.run_in_thread(partial(comparison_page, *sides))

    async def _describe_job(self, who: Principal, job: str) -> "ReportContext":
        """What a picture says of the job beside its report; nothing where another version has stored it."""
        from shardyard.render.svg.report_page import ReportContext

        try:
            view = await self._records.read_view(who.tenant, job)
        except UnreadableSpec:
            return ReportContext()
        record, how = view.record, view.spec.parallelism
        gathers = how.strategy == "dp" and isinstance(view.spec.program, RecipeProgram)
        return ReportContext(
            name=record.name,
            state=record.state,
            labels=record.labels,
            spec=_shown_spec(view.spec),
            output_device=how.output_device if gathers else None,
        )

    async def splits_diff(
        self, who: Principal, job: str, attempt: int | None, against: str, against_attempt: int | None
    ) -> ReportDiff:
        """The split reports of two jobs, or of two attempts of one, side by side.

        Raises:
            NotFound: one of the two has no report.
        """
        from shardyard.contract import report_diff

        this = await self.read_splits(who, job, attempt, None)
        other = await self.read_splits(who, against, against_attempt, None)
        return await self._storage.run_in_thread(partial(report_diff.compare_reports, this, other))

    async def splits_diff_text(
        self,
        who: Principal,
        job: str,
        attempt: int | None,
        against: str,
        against_attempt: int | None,
        *,
        notes: bool = False,
    ) -> str:
        """The same for people. Raises as `splits_diff` does."""
        from shardyard.render import diff_text

        found = await self.splits_diff(who, job, attempt, against, against_attempt)
        return await self._storage.run_in_thread(partial(diff_text.render_diff, found, notes=notes))

    async def list_artifacts(self, who: Principal, job: str, attempt: int | None) -> ArtifactList:
        """Files of an attempt (the newest one).

        Raises:
            NotFound: there is no such attempt.
        """
        chosen = await self._choose_attempt(who, job, attempt)
        if chosen is None:
            return ArtifactList(artifacts=[], total=0)
        directory = self._storage.attempt_dir(who.tenant, job, chosen.number)
        found = await self._storage.list_artifacts(directory)
        return ArtifactList(
            attempt=chosen.number,
            artifacts=found.artifacts,
            total=len(found.artifacts),
            truncated=found.truncated,
            left_out=found.left_out,
        )

    async def open_artifact(self, who: Principal, job: str, attempt: int | None, path: str) -> OpenArtifact:
        """One of these files, open; the caller closes it.

        Raises:
            NotFound: there is no such attempt, or no such file of it.
        """
        chosen = await self._choose_attempt(who, job, attempt)
        if chosen is None:
            raise NotFound(f"job {job} has not started, so it has no artifacts")
        directory = self._storage.attempt_dir(who.tenant, job, chosen.number)
        return await self._storage.open_artifact(directory, path)

    async def read_logs(self, who: Principal, job: str, attempt: int | None, cursor: str, query: LogQuery) -> LogPage:
        """A page of lines. `attempt` is the cursor's, else the newest; the streams are the query's, else those that
        suit the job's program.

        Raises:
            InvalidRequest: the parameters disagree.
            MalformedCursor: the cursor is not one of ours, or of another attempt than the one asked for.
            NotFound: there is no such attempt.
        """
        position = cursors.decode_log(cursor) if cursor else None
        if position is not None and attempt not in (None, position.attempt):
            raise InvalidRequest(
                "`after` and `attempt` disagree",
                fields=(
                    FieldError("attempt", f"the cursor is of attempt {position.attempt}; leave out one of the two"),
                ),
            )
        if query.before_line is not None and query.tail is None:
            raise InvalidRequest(
                "`before_line` needs `tail`",
                fields=(FieldError("before_line", "say with `tail` how many of the lines before it are wanted"),),
            )
        number = attempt if position is None else position.attempt
        chosen = await self._choose_attempt(who, job, number)
        if chosen is None:
            view = await self._records.read_view(who.tenant, job)
            ended = view.record.finished is not None
            streams = query.streams or default_streams(view.spec)
            return LogPage(attempt=0, streams=stream_names(streams), lines=[], ended=ended)
        streams = query.streams or await self._suitable_streams(who, job)
        query = replace(query, streams=streams)
        devices = _chosen_devices(chosen, query.device)
        seen = position.seen if position is not None else {}
        directory = self._storage.attempt_dir(who.tenant, job, chosen.number)
        await self._storage.bring_logs(directory, devices, is_over=chosen.state is AttemptState.ENDED)
        found = await self._storage.run_in_thread(partial(attempt_files.read_logs, directory, devices, seen, query))
        over = found.sealed or chosen.state is AttemptState.ENDED
        return LogPage(
            attempt=chosen.number,
            streams=stream_names(streams),
            lines=found.lines,
            dropped=found.dropped,
            next=cursors.encode_log(LogCursor(chosen.number, found.seen)),
            ended=found.at_end and over,
            cut_off=found.at_end and over and not found.sealed and chosen.claimed is not None,
        )

    async def _suitable_streams(self, who: Principal, job: str) -> LogStreams:
        """The streams of a request that names none; all of them where another version has stored the spec."""
        try:
            return default_streams((await self._records.read_view(who.tenant, job)).spec)
        except UnreadableSpec:
            return ALL_STREAMS

    async def read_metrics(self, who: Principal, job: str, attempt: int | None, query: SeriesQuery) -> MetricList:
        """Series of an attempt (the newest one)."""
        chosen = await self._choose_attempt(who, job, attempt)
        if chosen is None:
            return MetricList(series=[])
        directory = self._storage.attempt_dir(who.tenant, job, chosen.number)
        await self._storage.bring_metrics(directory, is_over=chosen.state is AttemptState.ENDED)
        read = partial(attempt_files.read_metrics, directory, query)
        return MetricList(attempt=chosen.number, series=await self._storage.run_in_thread(read))

    async def read_hardware(self, who: Principal, job: str, attempt: int | None, query: SeriesQuery) -> MetricList:
        """Series that the node has sampled of an attempt's hardware (the newest attempt)."""
        chosen = await self._choose_attempt(who, job, attempt)
        if chosen is None:
            return MetricList(series=[])
        read_running = partial(self._telemetry.read_samples, who.tenant, job, chosen.number)
        body = await self._read_stored(
            who, job, chosen, paths.hardware_file, hardware_series.read_samples, read_running
        )
        if body is None:
            return MetricList(attempt=chosen.number, series=[])
        try:
            series = await self.compute(lambda: hardware_series.list_series(decode_samples(body), query))
        except ValueError as error:
            raise NotFound(f"the samples of attempt {chosen.number} of job {job} cannot be read: {error}") from error
        return MetricList(attempt=chosen.number, series=series)

    async def _choose_attempt(self, who: Principal, job: str, number: int | None) -> AttemptRecord | None:
        """The attempt of that number, or the newest; `None` when the job has not had one.

        Raises:
            NotFound: there is no attempt of that number.
        """
        records = await self._records.read_attempts(who.tenant, job)
        if number is None:
            return records[-1] if records else None
        if number > len(records):
            raise NotFound(f"job {job} has had {len(records)} attempts; there is no attempt {number}")
        return records[number - 1]

    async def _read_report(self, who: Principal, job: str, attempt: int | None) -> tuple[AttemptRecord, bytes]:
        """The attempt and its report as it is stored. Raises NotFound."""
        chosen = await self._choose_attempt(who, job, attempt)
        if chosen is None:
            raise NotFound(f"job {job} has not started, so there is no split report; its status says what it waits for")
        read_running = partial(self._telemetry.read_report, who.tenant, job, chosen.number)
        body = await self._read_stored(who, job, chosen, paths.report_file, attempt_files.read_report, read_running)
        if body is None:
            raise NotFound(_no_report(job, chosen))
        return chosen, body

    async def _read_stored(
        self,
        who: Principal,
        job: str,
        attempt: AttemptRecord,
        file_of: Callable[[Path], Path],
        read_file: Callable[[Path], bytes | None],
        read_running: Callable[[], Awaitable[bytes | None]],
    ) -> bytes | None:
        """From the file of an attempt that has ended, else from the telemetry Redis, else from the file."""
        directory = self._storage.attempt_dir(who.tenant, job, attempt.number)
        if attempt.state is AttemptState.ENDED:
            await self._storage.bring_file(file_of(directory))
            stored = await self._storage.run_in_thread(partial(read_file, directory))
            if stored is not None:
                return stored
        unavailable: Unavailable | None = None
        try:
            body = await read_running()
            if body is not None:
                return body
        except Unavailable as error:
            unavailable = error
        await self._storage.bring_file(file_of(directory))
        stored = await self._storage.run_in_thread(partial(read_file, directory))
        if stored is None and unavailable is not None:
            raise unavailable
        return stored


class _ReportHead(msgspec.Struct):
    """What tells a report from other JSON. Decoding it checks the syntax of the whole, and builds no objects of it."""

    job_id: str
    attempt: int
    devices: msgspec.Raw
    patterns: msgspec.Raw


_head_decoder = msgspec.json.Decoder(_ReportHead)


@contextmanager
def _refusing_damaged(job: str, attempt: AttemptRecord) -> Iterator[None]:
    """Raises NotFound for what is not a report."""
    try:
        yield
    except ValueError as error:
        raise NotFound(
            f"the split report of attempt {attempt.number} of job {job} cannot be read; it is damaged, or was written "
            f"by a newer version: {error}"
        ) from error


def _shown_spec(spec: JobSpec) -> str:
    """The spec as people wrote it, to be sent around: values of environment variables are left out."""
    shown = spec.model_dump(mode="json", exclude_defaults=True)
    program = shown.get("program", {})
    if program.get("env"):
        program["env"] = dict.fromkeys(program["env"], HIDDEN)
    return msgspec.json.format(msgspec.json.encode(shown), indent=2).decode()


def _series_curve(series: SeriesView) -> "MetricCurve":
    """A series for a picture: of points that were joined, their mean at the last one's step."""
    from shardyard.render.svg.line_chart import MetricCurve

    points = [(float(point.step), point.value) for point in series.points]
    points += [(float(bucket.last.step), bucket.mean) for bucket in series.buckets]
    return MetricCurve(series.name, series.device, tuple(points))


def _no_report(job: str, attempt: AttemptRecord) -> str:
    if attempt.state is AttemptState.ENDED:
        why = attempt.message or attempt.reason
        return f"attempt {attempt.number} of job {job} ended without a split report: {why}"
    return f"attempt {attempt.number} of job {job} has made no step yet, so there is no split report; ask again later"


def _select_device(found: Report, device: int) -> Report:
    """The same report with the entries of one device; patterns keep their rows for all devices."""
    if all(entry.device != device for entry in found.devices):
        raise NotFound(f"the attempt had {len(found.devices)} devices, numbered from 0; there is no device {device}")
    return msgspec.structs.replace(
        found,
        devices=tuple(entry for entry in found.devices if entry.device == device),
        per_device=tuple(entry for entry in found.per_device if entry.device == device),
        per_node=tuple(entry for entry in found.per_node if device in entry.devices),
        hardware=tuple(entry for entry in found.hardware if entry.device == device),
    )


def _chosen_devices(attempt: AttemptRecord, device: int | None) -> list[int]:
    count = attempt.device_count
    if device is None:
        return list(range(count))
    if device >= count:
        raise NotFound(f"the attempt had {count} devices, numbered from 0; there is no device {device}")
    return [device]
