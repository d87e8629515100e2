"""One reader of a job's events: compares its position with what the job's feed has, and adds what comes next."""

import asyncio
from dataclasses import dataclass

from api.data.log_streams import ALL_STREAMS, LogStreams
from api.events import event_id
from api.events.attempt_windows import POINTS
from api.events.broadcast_cache import BroadcastChunk, BroadcastKey, encode_events
from api.events.event_id import ReaderPosition, StreamEvent, nonzero_checksum
from api.events.job_feed import JobFeed, JobSnapshot
from api.events.windows import EventBatch, FilePart
from api.http import cursors
from api.http.cursors import LogCursor
from shardyard.contract import stream_events
from shardyard.contract.errors import NotFound
from shardyard.contract.stream_events import EventName

#: Bytes that are built for one reader at once; the rest waits until they are sent.
READY_BYTES = 256 * 1024
#: Earlier points that a new reader gets.
POINTS_BEFORE = 10_000
#: A reader that once had the newest lines and is so many behind is too slow.
LAG_ITEMS = 50_000


@dataclass(frozen=True, slots=True)
class WantedLines:
    """The devices whose lines a reader wants, and of which streams (None: those that suit the job's program). `tail`:
    only so many of the earlier lines, instead of all."""

    all_devices: bool = False
    devices: frozenset[int] = frozenset()
    tail: int | None = None
    streams: LogStreams | None = None

    def select_devices(self, count: int) -> frozenset[int]:
        return frozenset(range(count)) if self.all_devices else self.devices


class JobReader:
    """One reader of a job: what it has been sent, and what it is sent next.

    The id of each event is the position after it, so the connection may break anywhere, and readers that were sent an
    event with the same id are sent the same next (`api.events.broadcast_cache`).
    """

    def __init__(
        self,
        feed: JobFeed,
        devices: frozenset[int],
        wanted: WantedLines,
        position: ReaderPosition | None,
        *,
        known: bool,
    ) -> None:
        self.over = False
        self._feed = feed
        self._devices = sorted(devices)
        self._tail = wanted.tail
        self._streams = wanted.streams or ALL_STREAMS
        self._key: BroadcastKey | None = None  # once it was sent something
        self._position = position  # None: as `_key` says, and before there is one, as the job stands
        self._resync = "" if known else "unknown_id"
        self._pending: list[StreamEvent] = []
        self._size = 0
        self._shared = True
        self._caught_up: set[int] = set()  # devices (and the points) of which it once had the newest
        self._drained: set[int] = set()  # of which its attempt has no more, as of `_drained_at`
        self._drained_at: JobSnapshot | None = None
        self._live_data = True

    @property
    def changed(self) -> asyncio.Event:
        return self._feed.changed

    async def pending(self) -> bytes:
        """The next events, up to about `READY_BYTES`; empty when there is nothing to send now."""
        if self._feed.is_closed:
            self.over = True
            return b""
        chunk = await self._feed.broadcast.next_chunk(self._key, self._build_chunk)
        if chunk is None:
            return b""
        if chunk.key is not self._key:
            self._adopt_chunk(chunk)
        return chunk.data

    def _adopt_chunk(self, chunk: BroadcastChunk) -> None:
        """Take the position after a chunk that another reader has built."""
        self._key, self._position, self.over = chunk.key, None, chunk.is_last
        self._live_data, self._caught_up = chunk.key.live_data, set(chunk.caught_up)
        self._drained.clear()

    async def _build_chunk(self) -> BroadcastChunk | None:
        """The next chunk from here; the reader's position is then after it."""
        if self._key is not None and self._position is None:
            self._position = event_id.decode_position(self._key.id)
        self._pending, self._size, self._shared = [], 0, True
        now = self._feed.snapshot
        if self._feed.is_deleted:
            self._add_end(now)
        elif now is not None:
            await self._add_events(now)
        if not self._pending:
            return None
        self._key = BroadcastKey(self._pending[-1].id, tuple(self._devices), self._live_data, self._streams)
        return BroadcastChunk(
            encode_events(self._pending), self._key, frozenset(self._caught_up), self.over, self._shared
        )

    async def _add_events(self, now: JobSnapshot) -> None:
        here = await self._start_position(now)
        if here.state != (tag := nonzero_checksum(now.state.encode())):
            here.state = tag
            self._add_event(EventName.STATE, now.state)
        while here.attempt < now.record.attempt:  # the rest of an earlier attempt first
            await self._add_items(now, here, live=False)
            if self._pending or not self._has_drained(here):
                return
            here = self._move_to(here.at_attempt(here.attempt + 1))
        self._add_snapshots(here)
        await self._add_items(now, here, live=now.live)
        if now.over and not self._pending and self._has_drained(here) and now is self._feed.snapshot:
            self._add_end(now)

    async def _start_position(self, now: JobSnapshot) -> ReaderPosition:
        """The position of the reader; that of a new one is made first."""
        here = self._position
        if here is not None and here.attempt > now.record.attempt:
            here, self._resync = None, "unknown_id"
        if here is None:
            here = ReaderPosition(now.record.attempt)
            if here.attempt:
                here.points = max(0, await self._newest_item(here.attempt, POINTS) - POINTS_BEFORE)
        if self._position is not here or here.lines.keys() != set(self._devices):
            here.lines = {device: here.lines.get(device, -1) for device in self._devices}
            for device in [device for device, line in here.lines.items() if line < 0]:
                here.lines[device] = await self._first_line(here.attempt, device)
            self._position = here
        if self._resync:
            self._add_event(
                EventName.RESYNC,
                stream_events.data(stream_events.Resync(reason=self._resync, message=_RESYNC_MESSAGES[self._resync])),
            )
            self._resync = ""
        return here

    async def _first_line(self, attempt: int, device: int) -> int:
        """The line after which a new reader begins."""
        if self._tail is None or not attempt:
            return 0
        try:
            return await self._feed.windows.find_tail(attempt, device, self._tail, self._streams)
        except (NotFound, OSError):
            return 0

    async def _newest_item(self, attempt: int, device: int) -> int:
        try:
            return await self._feed.windows.find_end(attempt, device)
        except (NotFound, OSError):
            return 0

    def _move_to(self, position: ReaderPosition) -> ReaderPosition:
        self._position = position
        self._caught_up.clear()
        self._drained.clear()
        return position

    # -- progress, report and notices -----------------------------------------------------------------

    def _add_snapshots(self, here: ReaderPosition) -> None:
        feed = self._feed
        if self._live_data != feed.has_live_data:
            self._live_data = feed.has_live_data
            code = "live_data_back" if feed.has_live_data else "live_data_away"
            notice = stream_events.Notice(code=code, message=_NOTICE_MESSAGES[code])
            self._add_event(EventName.NOTICE, stream_events.data(notice))
        if feed.progress is not None and here.progress != (tag := nonzero_checksum(feed.progress.encode())):
            here.progress = tag
            self._add_event(EventName.PROGRESS, feed.progress)
        report = feed.report
        if report is None:
            return
        for split in report.splits[here.patterns :]:
            here.patterns += 1
            self._add_event(EventName.SPLIT, split)
        for tag, finding in report.findings:
            if tag not in here.findings:
                here.findings = (*here.findings, tag)
                self._add_event(EventName.FINDING, finding)
        if here.report != report.tag:
            here.report = report.tag
            self._add_event(EventName.REPORT, report.changed)

    # -- lines and points ----------------------------------------------------------------------------

    async def _add_items(self, now: JobSnapshot, here: ReaderPosition, *, live: bool) -> None:
        """The next points and lines. Those of an attempt that is not live are in its files alone."""
        if self._drained_at is not now:
            self._drained_at = now
            self._drained.clear()
        moved = True
        while moved and self._size < READY_BYTES:
            moved = False
            for device in [POINTS, *self._devices]:
                if device not in self._drained and self._size < READY_BYTES:
                    moved = await self._add_next_item(here, device, live=live) or moved

    async def _add_next_item(self, here: ReaderPosition, device: int, *, live: bool) -> bool:
        """The next batch of a device, or a part of its file; False when there is nothing new."""
        at = here.points if device == POINTS else here.lines[device]
        window = self._feed.windows.get_window(device) if live else None
        if window is not None and at >= window.last:
            self._caught_up.add(device)
            return False
        batch = None if window is None else window.batch_after(at)
        if batch is not None:
            self._caught_up.add(device)
            self._add_batch(here, device, batch)
            return True
        if window is not None and device in self._caught_up and window.last - at > LAG_ITEMS:
            await self._catch_up(here)
            return True
        part = await self._read_items(here.attempt, device, at)
        for batch in part.batches:
            self._add_batch(here, device, batch)
        self._advance(here, device, part.next)
        if part.at_end and part.next == at and not live:
            self._drained.add(device)
        return part.next != at

    def _add_batch(self, here: ReaderPosition, device: int, batch: EventBatch) -> None:
        """Go past a batch, with an event if it has lines of the wanted streams, or points."""
        self._advance(here, device, batch.last)
        selected = batch.select_lines(self._streams)
        if selected is not None:
            self._add_event(EventName.METRIC if device == POINTS else EventName.LOG, selected)

    async def _read_items(self, attempt: int, device: int, after: int) -> FilePart:
        if not attempt:
            return FilePart([], after, at_end=True)
        try:
            return await self._feed.windows.read_file(attempt, device, after, self._streams)
        except NotFound:
            return FilePart([], after, at_end=True)  # not a plain file: the route of the logs says so
        except OSError:
            return FilePart([], after, at_end=False)  # tried again in a while

    async def _catch_up(self, here: ReaderPosition) -> None:
        """Skip what a reader that is too slow has missed, and send it a resync."""
        missed = cursors.encode_log(LogCursor(here.attempt, dict(here.lines))) if here.lines else None
        for device in [POINTS, *self._devices]:
            window = self._feed.windows.get_window(device)
            newest = await self._newest_item(here.attempt, device) if window is None else window.last
            self._advance(here, device, newest)
        self._shared = False  # a reader at this position that never had the newest lines is not too slow
        words = stream_events.Resync(reason="too_slow", message=_RESYNC_MESSAGES["too_slow"], logs_after=missed)
        self._add_event(EventName.RESYNC, stream_events.data(words))

    def _advance(self, here: ReaderPosition, device: int, item: int) -> None:
        if device == POINTS:
            here.points = item
        else:
            here.lines[device] = item

    def _has_drained(self, here: ReaderPosition) -> bool:
        return not here.attempt or self._drained >= {POINTS, *self._devices}

    # -- events --------------------------------------------------------------------------------------

    def _add_end(self, now: JobSnapshot | None) -> None:
        self.over = True
        state = "deleted" if self._feed.is_deleted or now is None else str(now.record.state)
        attempt = 0 if now is None else now.record.attempt
        if self._position is None:
            self._position = ReaderPosition(attempt)
        self._position.ended = True
        end = stream_events.Ended(job_id=self._feed.job, state=state, attempt=attempt)
        self._add_event(EventName.END, stream_events.data(end))

    def _add_event(self, name: EventName, data: str) -> None:
        assert self._position is not None
        self._pending.append(StreamEvent(name, data, event_id.encode_position(self._position)))
        self._size += len(data)


_RESYNC_MESSAGES = {
    "too_slow": f"more than {LAG_ITEMS} lines or points behind: the missed ones are left out",
    "unknown_id": "the id of the last event is not known here; this stream begins again",
}
_NOTICE_MESSAGES = {
    "live_data_away": "the telemetry Redis does not answer: progress and report do not change, lines come from files",
    "live_data_back": "the telemetry Redis answers again",
}
