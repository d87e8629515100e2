"""Feeds of jobs: each follows one job for all its readers in this process, and ends with the last of them.

A feed keeps no list of events. It keeps the job as it stands, and windows of its newest lines and points; each
reader compares that with its own position (`api.events.job_reader`). So memory does not grow with the number of
readers, nor with how slow they are.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

import msgspec
import structlog

from api.data import attempt_files
from api.data.change_notifier import ChangeNotifier
from api.data.file_threads import AttemptStorage
from api.data.fleet_cache import FleetCache
from api.data.job_repository import JobRepository
from api.data.telemetry_reader import TelemetryReader, TelemetryUpdate
from api.events.attempt_windows import AttemptWindows
from api.events.broadcast_cache import BroadcastCache
from api.events.event_id import nonzero_checksum
from api.events.report_events import ReportEvents, read_report_events
from api.schemas import views
from api.schemas.fleet_facts import FleetFacts
from jobs.files import paths
from jobs.model.records import JobRecord
from jobs.model.state import TERMINAL, JobState
from jobs.store import JobView
from shardyard.contract import stream_events
from shardyard.contract.errors import NotFound, StorageUnavailable, Unavailable

log = structlog.get_logger(__name__)

#: How often a running attempt is polled, and its report, which is larger and changes once a second. A poll that finds
#: something is one write for each reader.
POLL_SECONDS = 0.15
REPORT_SECONDS = 1.0
#: A report that takes long to read is read less often: at most this part of the time.
REPORT_SHARE = 0.05
#: A position in the queue changes without the job; the `ChangeNotifier` reports the other changes.
QUEUE_SECONDS = 2.0
STATE_SECONDS = 30.0
#: Readers are woken at least so often.
TICK_SECONDS = 5.0
#: After Redis or the storage failed.
RETRY_SECONDS = 1.0
#: Entries that are read from all streams at once.
POLL_ENTRIES = 64

_LIVE = frozenset({JobState.STARTING, JobState.RUNNING})


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """The job as it stands. `live`: its attempt is on devices, so that windows are kept; else its files have it all."""

    record: JobRecord
    state: str
    live: bool

    @property
    def over(self) -> bool:
        return self.record.state in TERMINAL


@dataclass(frozen=True, slots=True)
class FeedSources:
    """Where feeds read from."""

    records: JobRepository
    telemetry: TelemetryReader
    storage: AttemptStorage
    changes: ChangeNotifier
    fleet: FleetCache


class JobFeed:
    """The feed of one job. `changed` is set, and replaced, whenever readers have something to compare."""

    def __init__(self, tenant: str, job: str, sources: FeedSources) -> None:
        self.tenant = tenant
        self.job = job
        self.snapshot: JobSnapshot | None = None
        self.is_deleted = self.is_closed = False
        self.progress: str | None = None
        self.report: ReportEvents | None = None
        self.has_live_data = True  # the telemetry Redis answers
        self.windows = AttemptWindows(tenant, job, sources.storage, self._is_over)
        self.broadcast = BroadcastCache()
        self.changed = asyncio.Event()
        self._sources = sources
        self._live = asyncio.Event()
        self._report_after = 0.0
        self._task = asyncio.create_task(self._run_tasks())

    def stop(self) -> None:
        self._task.cancel()

    def close(self) -> None:
        """End the streams of all readers: the process is about to end."""
        self.is_closed = True
        self.stop()
        self._notify_readers()

    async def _run_tasks(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow_state())
                group.create_task(self._follow_attempt())
                group.create_task(self._notify_periodically())
        except* Exception as errors:  # its readers come again, and find another feed
            log.error("feed_failed", job=self.job, tenant=self.tenant, exc_info=errors.exceptions[0])
            self.is_closed = True
            self._notify_readers()

    async def _notify_periodically(self) -> None:
        while not self.is_deleted:
            await asyncio.sleep(TICK_SECONDS)
            self._notify_readers()

    def _notify_readers(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    # -- the state --------------------------------------------------------------------------------

    async def _follow_state(self) -> None:
        while not self.is_deleted:
            try:
                view = await self._sources.records.read_view(self.tenant, self.job)
                fleet = await self._sources.fleet.read_facts()
            except NotFound:
                self.is_deleted = True
                self._notify_readers()
                return
            except (Unavailable, OSError):
                await asyncio.sleep(RETRY_SECONDS)
                continue
            await self._update_state(view, fleet)
            seconds = QUEUE_SECONDS if view.record.state is JobState.QUEUED else STATE_SECONDS
            try:
                await self._sources.changes.wait_for_change(self.tenant, self.job, view.record.version, seconds)
            except Unavailable:
                await asyncio.sleep(RETRY_SECONDS)

    async def _update_state(self, view: JobView, fleet: FleetFacts) -> None:
        record, state = view.record, _state_event(view, fleet)
        if self.snapshot is not None and self.snapshot.state == state:
            return
        live = record.state in _LIVE
        if self.snapshot is None or record.attempt != self.snapshot.record.attempt:
            self._reset_attempt()
        if not live and record.attempt:
            await self._read_end(record)
        self.snapshot = JobSnapshot(record, state, live)
        if live:
            self._live.set()
        else:
            self._live.clear()
            self.windows.clear()
        self._notify_readers()

    def _reset_attempt(self) -> None:
        """Another attempt begins."""
        self.progress = self.report = None
        self.windows.clear()
        self._report_after = 0.0

    async def _read_end(self, record: JobRecord) -> None:
        """Read what an attempt left: its report's file, and the last progress."""
        progress = await self._sources.telemetry.read_progress(self.tenant, self.job, record.attempt)
        if progress is not None:
            self.progress = _progress_event(record.attempt, msgspec.json.encode(progress))
        storage = self._sources.storage
        with suppress(NotFound, OSError, StorageUnavailable):
            directory = storage.attempt_dir(self.tenant, self.job, record.attempt)
            await storage.bring_file(paths.report_file(directory))
            body = await storage.run_in_thread(partial(attempt_files.read_report, directory))
            if body is not None:
                self.report = await self._read_report(record.attempt, body)

    # -- a running attempt ------------------------------------------------------------------------

    async def _follow_attempt(self) -> None:
        while not self.is_deleted:
            await self._live.wait()
            snapshot = self.snapshot
            assert snapshot is not None
            more = await self._poll_attempt(snapshot.record.attempt)
            await asyncio.sleep(0 if more else POLL_SECONDS)

    async def _poll_attempt(self, attempt: int) -> bool:
        """Read what is new; True when there is more to read at once."""
        try:
            await self.windows.open_wanted(attempt)
            streams = self.windows.stream_positions(attempt)
            wants_report = time.monotonic() >= self._report_after
            entries = max(1, POLL_ENTRIES // max(1, len(streams)))
            update = await self._sources.telemetry.read_update(
                self.tenant, self.job, attempt, report=wants_report, streams=streams, entries=entries
            )
        except Unavailable:
            return await self._poll_files(attempt)
        except (NotFound, OSError) as error:
            log.warning("attempt_not_followed", job=self.job, error=str(error))
            await asyncio.sleep(RETRY_SECONDS)
            return False
        if self._is_over(attempt):
            return False
        if await self._apply_update(attempt, update):
            self._notify_readers()
        return any(len(found) >= entries for found in update.entries.values())

    async def _apply_update(self, attempt: int, update: TelemetryUpdate) -> bool:
        """True when something has changed for readers."""
        changed = not self.has_live_data
        self.has_live_data = True
        if update.progress is not None:
            progress = _progress_event(attempt, update.progress)
            changed, self.progress = changed or progress != self.progress, progress
        if update.report is not None:
            report = await self._read_report(attempt, update.report)
            if self._is_over(attempt):
                return False
            changed, self.report = changed or report is not self.report, report
        return await self.windows.add_entries(attempt, update) or changed

    async def _poll_files(self, attempt: int) -> bool:
        """While the telemetry Redis is away, lines and points come from their files."""
        added, more = await self.windows.add_from_files(attempt)
        if self._is_over(attempt):
            return False
        changed, self.has_live_data = self.has_live_data, False
        if added or changed:
            self._notify_readers()
        return more

    def _is_over(self, attempt: int) -> bool:
        """Whether the attempt has ended during a wait: what was read for it is of no use any more."""
        return self.snapshot is None or not self.snapshot.live or self.snapshot.record.attempt != attempt

    async def _read_report(self, attempt: int, body: bytes) -> ReportEvents:
        """The same object as before when nothing has changed."""
        started, report = time.monotonic(), self.report
        if report is None or report.tag != nonzero_checksum(body):
            report = await self._sources.storage.run_in_thread(partial(read_report_events, attempt, body))
        taken = time.monotonic() - started
        self._report_after = time.monotonic() + max(REPORT_SECONDS, taken / REPORT_SHARE)
        return report


def _state_event(view: JobView, fleet: FleetFacts) -> str:
    record, reason = view.record, views.reason_view(view.record, view.queue, fleet)
    return stream_events.data(
        stream_events.StateChanged(
            job_id=record.id,
            state=str(record.state),
            reason=reason,
            attempt=record.attempt,
            version=record.version,
        )
    )


def _progress_event(attempt: int, body: bytes) -> str | None:
    try:
        found: Mapping[str, object] = msgspec.json.decode(body, type=dict[str, object])
    except msgspec.MsgspecError:
        return None
    return stream_events.data({"attempt": attempt} | dict(found))


class JobFeeds:
    """The feeds of all jobs that are followed in this process."""

    def __init__(self, sources: FeedSources) -> None:
        self._sources = sources
        self._feeds: dict[tuple[str, str], JobFeed] = {}

    @contextmanager
    def join(self, tenant: str, job: str) -> Iterator[JobFeed]:
        """The feed of a job, for as long as it is read."""
        key = (tenant, job)
        feed = self._feeds.get(key)
        if feed is None or feed.is_deleted or feed.is_closed:
            feed = self._feeds[key] = JobFeed(tenant, job, self._sources)
        feed.windows.readers.count += 1
        try:
            yield feed
        finally:
            feed.windows.readers.count -= 1
            if not feed.windows.readers.count:
                feed.stop()
                if self._feeds.get(key) is feed:
                    del self._feeds[key]

    def close(self) -> None:
        for feed in self._feeds.values():
            feed.close()

    @property
    def count(self) -> int:
        """Jobs that are followed."""
        return len(self._feeds)
