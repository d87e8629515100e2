"""What one job does, read once in this process for everybody who follows it here, and not at all while nobody does.

A feed keeps no list of events. It keeps the job as it stands, and windows of its newest lines and points; each reader
compares that with its own position (`api.events.service`). So memory does not follow the number of readers, nor how
slow they are.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec
import structlog

from api.data import attempt_files
from api.data.change_notifier import ChangeNotifier
from api.data.file_threads import AttemptStorage
from api.data.job_repository import JobRepository
from api.data.telemetry_reader import TelemetryReader, TelemetryUpdate
from api.events import windows as batches_of
from api.events.broadcast_cache import BroadcastCache
from api.events.event_id import nonzero_checksum
from api.events.windows import BatchWindow, EventBatch, FilePart
from api.schemas import views
from jobs.files.frame_file import CorruptFrame
from jobs.model.records import JobRecord
from jobs.model.state import TERMINAL, State
from jobs.protocol import names
from jobs.store import JobView
from shardyard.contract import stream_events
from shardyard.contract.errors import NotFound, Unavailable

log = structlog.get_logger(__name__)

#: How often a running attempt is looked at, and its report, which is larger and changes once a second. A look with news
#: is one write for each reader.
POLL_SECONDS = 0.15
REPORT_SECONDS = 1.0
#: A report that takes long to read is read less often: at most this part of the time.
REPORT_SHARE = 0.05
#: A place in the queue changes without the job; otherwise a change is told by `Changes`.
QUEUE_SECONDS = 2.0
STATE_SECONDS = 30.0
#: Readers look up at least so often.
TICK_SECONDS = 5.0
#: After Redis or the storage failed.
RETRY_SECONDS = 1.0
#: Text of all windows of a job, of one at least, and entries that are read from all streams at once.
WINDOW_BYTES = 4 * 1024 * 1024
SMALLEST_WINDOW_BYTES = 64 * 1024
POLL_ENTRIES = 64

#: In the place of a device's number: the points.
POINTS = -1
_LIVE = frozenset({State.STARTING, State.RUNNING})


@dataclass(frozen=True, slots=True)
class ReportEvents:
    """What readers are told of a report: `findings` are (checksum of what identifies it, data)."""

    tag: int
    changed: str
    splits: tuple[str, ...] = ()
    findings: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """The job as it stands. `live`: its attempt is on devices, so that windows are kept; else its files have it all."""

    record: JobRecord
    state: str
    live: bool

    @property
    def over(self) -> bool:
        return self.record.state in TERMINAL


@dataclass(slots=True)
class ReaderCounts:
    """Who follows: how many, and how many of them want each device's lines."""

    count: int = 0
    devices: dict[int, int] = field(default_factory=dict)


class JobFeed:
    """Of one job. `news` is set, and replaced, whenever there is something to look at."""

    def __init__(
        self,
        tenant: str,
        job: str,
        records: JobRepository,
        telemetry: TelemetryReader,
        storage: AttemptStorage,
        changes: ChangeNotifier,
    ) -> None:
        self.tenant = tenant
        self.job = job
        self.now: JobSnapshot | None = None
        self.gone = self.closed = False
        self.progress: str | None = None
        self.report: ReportEvents | None = None
        self.live_data = True  # the telemetry Redis answers
        self.windows: dict[int, BatchWindow] = {}
        self.readers = ReaderCounts()
        self.steps = BroadcastCache()
        self.news = asyncio.Event()
        self._records = records
        self._telemetry = telemetry
        self._storage = storage
        self._changes = changes
        self._live = asyncio.Event()
        self._streams: dict[int, str] = {}  # device -> id of the last entry that was read
        self._report_after = 0.0
        self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        self._task.cancel()

    def close(self) -> None:
        """Let all readers go: the process is about to end."""
        self.closed = True
        self.stop()
        self._tell()

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow_state())
                group.create_task(self._follow_attempt())
                group.create_task(self._tick())
        except* Exception as errors:  # its readers come again, and find another feed
            log.error("feed_failed", job=self.job, tenant=self.tenant, exc_info=errors.exceptions[0])
            self.closed = True
            self._tell()

    async def _tick(self) -> None:
        while not self.gone:
            await asyncio.sleep(TICK_SECONDS)
            self._tell()

    def _tell(self) -> None:
        told, self.news = self.news, asyncio.Event()
        told.set()

    # -- the state --------------------------------------------------------------------------------

    async def _follow_state(self) -> None:
        while not self.gone:
            try:
                view = await self._records.read_view(self.tenant, self.job)
            except NotFound:
                self.gone = True
                self._tell()
                return
            except (Unavailable, OSError):
                await asyncio.sleep(RETRY_SECONDS)
                continue
            await self._take(view)
            seconds = QUEUE_SECONDS if view.record.state is State.QUEUED else STATE_SECONDS
            try:
                await self._changes.wait_for_change(self.tenant, self.job, view.record.version, seconds)
            except Unavailable:
                await asyncio.sleep(RETRY_SECONDS)

    async def _take(self, view: JobView) -> None:
        record = view.record
        why = views.reason_view(record, view.queue)
        state = stream_events.data(
            stream_events.State(
                record.id, str(record.state), stream_events.Why(why.code, why.message), record.attempt, record.version
            )
        )
        if self.now is not None and self.now.state == state:
            return
        live = record.state in _LIVE
        if self.now is None or record.attempt != self.now.record.attempt:
            self._forget()
        if not live and record.attempt:
            await self._take_end(record)
        self.now = JobSnapshot(record, state, live)
        if live:
            self._live.set()
        else:
            self._live.clear()
            self.windows.clear()
            self._streams.clear()
        self._tell()

    def _forget(self) -> None:
        """Another attempt begins."""
        self.progress = self.report = None
        self.windows.clear()
        self._streams.clear()
        self._report_after = 0.0

    async def _take_end(self, record: JobRecord) -> None:
        """What an attempt left: its report's file, and the last progress."""
        progress = await self._telemetry.read_progress(self.tenant, self.job, record.attempt)
        if progress is not None:
            self.progress = _progress_event(record.attempt, msgspec.json.encode(progress))
        with suppress(NotFound, OSError):
            body = await self._storage.run_in_thread(
                partial(attempt_files.read_report, self._directory(record.attempt))
            )
            if body is not None:
                self.report = await self._read_report(record.attempt, body)

    # -- a running attempt ------------------------------------------------------------------------

    async def _follow_attempt(self) -> None:
        while not self.gone:
            await self._live.wait()
            now = self.now
            assert now is not None
            more = await self._look(now.record.attempt)
            await asyncio.sleep(0 if more else POLL_SECONDS)

    async def _look(self, attempt: int) -> bool:
        """Read what is new; True when there is more to read at once."""
        try:
            await self._open_windows(attempt)
            streams = self._positions(attempt)
            wants_report = time.monotonic() >= self._report_after
            entries = max(1, POLL_ENTRIES // max(1, len(streams)))
            look = await self._telemetry.read_update(
                self.tenant, self.job, attempt, report=wants_report, streams=streams, entries=entries
            )
        except Unavailable:
            return await self._look_at_files(attempt)
        except (NotFound, OSError) as error:
            log.warning("attempt_not_followed", job=self.job, error=str(error))
            await asyncio.sleep(RETRY_SECONDS)
            return False
        if self._is_over(attempt):
            return False
        changed = not self.live_data
        self.live_data = True
        if look.progress is not None:
            told = _progress_event(attempt, look.progress)
            changed, self.progress = changed or told != self.progress, told
        if look.report is not None:
            report = await self._read_report(attempt, look.report)
            if self._is_over(attempt):
                return False
            changed, self.report = changed or report is not self.report, report
        changed = await self._take_entries(attempt, look) or changed
        if changed:
            self._tell()
        return any(len(found) >= entries for found in look.entries.values())

    async def _look_at_files(self, attempt: int) -> bool:
        """While the telemetry Redis is away, lines and points come from where they lie anyway."""
        parts: dict[int, FilePart] = {}
        with suppress(NotFound, OSError):
            directory = self._directory(attempt)
            for device, window in list(self.windows.items()):
                parts[device] = await self._storage.run_in_thread(
                    self._reading(directory, attempt, device, window.last)
                )
        if self._is_over(attempt):
            return False
        changed, self.live_data = self.live_data, False
        for device, part in parts.items():
            self._streams[device] = f"{part.next}-0"
            changed = self._extend(device, part.batches, part.next) or changed
        if changed:
            self._tell()
        return any(not part.at_end for part in parts.values())

    def _is_over(self, attempt: int) -> bool:
        """Whether the attempt has ended while something was waited for: what came is of no use any more."""
        return self.now is None or not self.now.live or self.now.record.attempt != attempt

    # -- windows ----------------------------------------------------------------------------------

    async def _open_windows(self, attempt: int) -> None:
        """Begin windows, at the end of the file, of what a reader wants and nobody wanted before; drop the others."""
        wanted = {POINTS, *self.readers.devices}
        for device in self.windows.keys() - wanted:
            del self.windows[device]
            self._streams.pop(device, None)
        limit = max(SMALLEST_WINDOW_BYTES, WINDOW_BYTES // len(wanted))
        for device in wanted - self.windows.keys():
            last = await self._storage.run_in_thread(self._finding_end(attempt, device))
            if not self._is_over(attempt):
                self.windows[device] = BatchWindow(last, limit)
                self._streams[device] = f"{last}-0"

    def _positions(self, attempt: int) -> dict[str, str]:
        return {self._key(attempt, device): last for device, last in self._streams.items()}

    def _key(self, attempt: int, device: int) -> str:
        if device == POINTS:
            return names.metric_stream(self.tenant, self.job, attempt)
        return names.log_stream(self.tenant, self.job, attempt, device)

    async def _take_entries(self, attempt: int, look: TelemetryUpdate) -> bool:
        """Add what the streams had; what they lacked comes from the file. True when there was something."""
        changed = False
        devices = {self._key(attempt, device): device for device in self._streams}
        for key, found in look.entries.items():
            device = devices[key]
            window = self.windows[device]
            read, last = partial(_decode_entries, found, attempt, device, window.last), found[-1][0]
            whole, fresh = await self._storage.run_in_thread(read)
            reached = fresh[-1].last if fresh else window.last
            if self._is_over(attempt) or self.windows.get(device) is not window:
                return changed
            if not whole:  # trimmed away, or damaged: the file has it
                reached, fresh = await self._fill(attempt, device, window.last)
                last = f"{reached}-0"
            self._streams[device] = last
            changed = self._extend(device, fresh, reached) or changed
        return changed

    async def _fill(self, attempt: int, device: int, after: int) -> tuple[int, list[EventBatch]]:
        """A part of the file, and how far it goes."""
        with suppress(NotFound, OSError):
            part = await self._storage.run_in_thread(self._reading(self._directory(attempt), attempt, device, after))
            return part.next, part.batches
        return after, []

    def _extend(self, device: int, fresh: list[EventBatch], reached: int) -> bool:
        """Add to a window, unless it is gone; True when there was something."""
        window = self.windows.get(device)
        if window is None or reached == window.last:
            return False
        window.add_batches(fresh, reached)
        return True

    def _reading(self, directory: Path, attempt: int, device: int, after: int) -> Callable[[], FilePart]:
        if device == POINTS:
            return partial(batches_of.read_points, directory, attempt, after)
        return partial(batches_of.read_lines, directory, attempt, device, after)

    def _finding_end(self, attempt: int, device: int) -> Callable[[], int]:
        directory = self._directory(attempt)
        if device == POINTS:
            return partial(batches_of.newest_point, directory)
        return partial(batches_of.newest_line, directory, device)

    async def read_file(self, attempt: int, device: int, after: int) -> FilePart:
        """Part of a device's lines, or of the points, for a reader not at the newest. Raises NotFound, OSError."""
        return await self._storage.run_in_thread(self._reading(self._directory(attempt), attempt, device, after))

    async def find_end(self, attempt: int, device: int) -> int:
        """The number of the last line, or point. Raises NotFound, OSError."""
        return await self._storage.run_in_thread(self._finding_end(attempt, device))

    def _directory(self, attempt: int) -> Path:
        return self._storage.attempt_dir(self.tenant, self.job, attempt)

    # -- the report -------------------------------------------------------------------------------

    async def _read_report(self, attempt: int, body: bytes) -> ReportEvents:
        """The same object as before when nothing has changed."""
        begun, report = time.monotonic(), self.report
        if report is None or report.tag != nonzero_checksum(body):
            report = await self._storage.run_in_thread(partial(_read_report, attempt, body))
        taken = time.monotonic() - begun
        self._report_after = time.monotonic() + max(REPORT_SECONDS, taken / REPORT_SHARE)
        return report


class _ReportParts(msgspec.Struct):
    patterns: list[msgspec.Raw] = []
    devices: msgspec.Raw = msgspec.Raw(b"[]")
    findings: list[msgspec.Raw] = []


class _FindingCode(msgspec.Struct):
    code: str = ""


def _read_report(attempt: int, body: bytes) -> ReportEvents:
    """A report that cannot be read has no splits and no findings; who fetches it is told why."""
    etag = hashlib.blake2b(body, digest_size=9).hexdigest()
    changed = stream_events.data(stream_events.ReportChanged(attempt, etag))
    try:
        parts = msgspec.json.decode(body, type=_ReportParts)
        splits = [
            stream_events.data(stream_events.Split(attempt, pattern, parts.devices)) for pattern in parts.patterns
        ]
        findings = list(_finding_events(attempt, parts.findings))
    except msgspec.MsgspecError:
        return ReportEvents(nonzero_checksum(body), changed)
    return ReportEvents(nonzero_checksum(body), changed, tuple(splits), tuple(findings))


def _finding_events(attempt: int, found: list[msgspec.Raw]) -> Iterator[tuple[int, str]]:
    """The words of a finding change with its numbers: it is the same as long as it is the n-th with its code."""
    seen: dict[str, int] = {}
    for finding in found:
        code = msgspec.json.decode(finding, type=_FindingCode).code
        seen[code] = seen.get(code, 0) + 1
        yield (
            nonzero_checksum(f"{code} {seen[code]}".encode()),
            stream_events.data(stream_events.Finding(attempt, finding)),
        )


def _progress_event(attempt: int, body: bytes) -> str | None:
    try:
        found: Mapping[str, object] = msgspec.json.decode(body, type=dict[str, object])
    except msgspec.MsgspecError:
        return None
    return stream_events.data({"attempt": attempt} | dict(found))


def _decode_entries(
    entries: list[tuple[str, bytes]], attempt: int, device: int, after: int
) -> tuple[bool, list[EventBatch]]:
    """The batches in entries of a stream, and whether they follow `after` and one another without a gap."""
    found: list[EventBatch] = []
    for _, raw in entries:
        try:
            if device == POINTS:
                first, fresh = batches_of.batches_from_frame(raw, attempt, after)
            else:
                first, fresh = batches_of.batches_from_chunk(raw, attempt, device, after)
        except CorruptFrame:
            return False, []
        if fresh and first > after + 1:
            return False, []
        if fresh:
            after = fresh[-1].last
        found += fresh
    return True, found


class JobFeeds:
    """The feeds of all jobs that somebody follows in this process."""

    def __init__(
        self, records: JobRepository, telemetry: TelemetryReader, storage: AttemptStorage, changes: ChangeNotifier
    ) -> None:
        self._make: Callable[[str, str], JobFeed] = lambda tenant, job: JobFeed(
            tenant, job, records, telemetry, storage, changes
        )
        self._feeds: dict[tuple[str, str], JobFeed] = {}

    @contextmanager
    def join(self, tenant: str, job: str) -> Iterator[JobFeed]:
        """The feed of a job, for as long as it is read."""
        key = (tenant, job)
        feed = self._feeds.get(key)
        if feed is None or feed.gone or feed.closed:
            feed = self._feeds[key] = self._make(tenant, job)
        feed.readers.count += 1
        try:
            yield feed
        finally:
            feed.readers.count -= 1
            if not feed.readers.count:
                feed.stop()
                if self._feeds.get(key) is feed:
                    del self._feeds[key]

    def close(self) -> None:
        for feed in self._feeds.values():
            feed.close()

    @property
    def count(self) -> int:
        """Jobs that somebody follows."""
        return len(self._feeds)
