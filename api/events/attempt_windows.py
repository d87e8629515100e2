"""Windows of the newest lines and points of a running attempt, filled from the telemetry streams and from files."""

import errno
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from api.data.file_threads import AttemptStorage
from api.data.log_streams import ALL_STREAMS, LogStreams
from api.data.telemetry_reader import TelemetryUpdate
from api.events import windows as batches_of
from api.events.windows import BatchWindow, EventBatch, FilePart
from jobs.files.frame_file import CorruptFrame
from jobs.protocol import names
from shardyard.contract.errors import NotFound, StorageUnavailable

#: Text of all windows of a job, and of one at least.
WINDOW_BYTES = 4 * 1024 * 1024
SMALLEST_WINDOW_BYTES = 64 * 1024
#: In the place of a device's number: the points.
POINTS = -1


@dataclass(slots=True)
class ReaderCounts:
    """How many readers follow a job, and how many of them want each device's lines."""

    count: int = 0
    devices: dict[int, int] = field(default_factory=dict)


class AttemptWindows:
    """One window for each device whose lines a reader wants, and one for the points.

    `is_over` says whether an attempt has ended: what was read for it meanwhile is then dropped.
    """

    def __init__(self, tenant: str, job: str, storage: AttemptStorage, is_over: Callable[[int], bool]) -> None:
        self.readers = ReaderCounts()
        self._tenant = tenant
        self._job = job
        self._storage = storage
        self._is_over = is_over
        self._windows: dict[int, BatchWindow] = {}
        self._stream_ids: dict[int, str] = {}  # device -> id of the last stream entry that was read

    def get_window(self, device: int) -> BatchWindow | None:
        return self._windows.get(device)

    def clear(self) -> None:
        self._windows.clear()
        self._stream_ids.clear()

    async def open_wanted(self, attempt: int) -> None:
        """Open windows, at the end of the file, for what readers newly want; drop those that none wants any more."""
        wanted = {POINTS, *self.readers.devices}
        for device in self._windows.keys() - wanted:
            del self._windows[device]
            self._stream_ids.pop(device, None)
        limit = max(SMALLEST_WINDOW_BYTES, WINDOW_BYTES // len(wanted))
        for device in wanted - self._windows.keys():
            last = await self.find_end(attempt, device)
            if not self._is_over(attempt):
                self._windows[device] = BatchWindow(last, limit)
                self._stream_ids[device] = f"{last}-0"

    def stream_positions(self, attempt: int) -> dict[str, str]:
        """The key of each stream and the id of the last entry that was read from it."""
        return {self._stream_key(attempt, device): last for device, last in self._stream_ids.items()}

    async def add_entries(self, attempt: int, update: TelemetryUpdate) -> bool:
        """Add new stream entries; gaps are filled from the file. True when something was added."""
        changed = False
        devices = {self._stream_key(attempt, device): device for device in self._stream_ids}
        for key, entries in update.entries.items():
            device = devices[key]
            window = self._windows[device]
            decode, last_id = partial(_decode_entries, entries, attempt, device, window.last), entries[-1][0]
            is_whole, fresh = await self._storage.run_in_thread(decode)
            reached = fresh[-1].last if fresh else window.last
            if self._is_over(attempt) or self._windows.get(device) is not window:
                return changed
            if not is_whole:  # trimmed away, or damaged: the file has it
                reached, fresh = await self._read_gap(attempt, device, window.last)
                last_id = f"{reached}-0"
            self._stream_ids[device] = last_id
            changed = self._extend_window(device, fresh, reached) or changed
        return changed

    async def add_from_files(self, attempt: int) -> tuple[bool, bool]:
        """Read on in the files, while the telemetry Redis is away. Returns (something was added, there is more)."""
        parts: dict[int, FilePart] = {}
        with suppress(NotFound, OSError):
            for device, window in list(self._windows.items()):
                parts[device] = await self.read_file(attempt, device, window.last)
        if self._is_over(attempt):
            return False, False
        changed = False
        for device, part in parts.items():
            self._stream_ids[device] = f"{part.next}-0"
            changed = self._extend_window(device, part.batches, part.next) or changed
        return changed, any(not part.at_end for part in parts.values())

    async def read_file(self, attempt: int, device: int, after: int, streams: LogStreams = ALL_STREAMS) -> FilePart:
        """Part of a device's lines, or of the points, for a reader behind the window. Raises NotFound, OSError."""
        directory = await self._bring(attempt, device)
        if device == POINTS:
            return await self._storage.run_in_thread(partial(batches_of.read_points, directory, attempt, after))
        read = partial(batches_of.read_lines, directory, attempt, device, after, streams)
        return await self._storage.run_in_thread(read)

    async def find_end(self, attempt: int, device: int) -> int:
        """The number of the last line, or point. Raises NotFound, OSError."""
        directory = await self._bring(attempt, device)
        if device == POINTS:
            return await self._storage.run_in_thread(partial(batches_of.newest_point, directory))
        return await self._storage.run_in_thread(partial(batches_of.newest_line, directory, device))

    async def find_tail(self, attempt: int, device: int, tail: int, streams: LogStreams) -> int:
        """The number of the line before a device's newest `tail` lines of these streams. Raises NotFound, OSError."""
        directory = await self._bring(attempt, device)
        return await self._storage.run_in_thread(partial(batches_of.line_before_tail, directory, device, tail, streams))

    async def _read_gap(self, attempt: int, device: int, after: int) -> tuple[int, list[EventBatch]]:
        """A part of the file, and how far it goes."""
        with suppress(NotFound, OSError):
            part = await self.read_file(attempt, device, after)
            return part.next, part.batches
        return after, []

    def _extend_window(self, device: int, fresh: list[EventBatch], reached: int) -> bool:
        """Add to a window, unless it was dropped; True when something was added."""
        window = self._windows.get(device)
        if window is None or reached == window.last:
            return False
        window.add_batches(fresh, reached)
        return True

    def _stream_key(self, attempt: int, device: int) -> str:
        if device == POINTS:
            return names.metric_stream(self._tenant, self._job, attempt)
        return names.log_stream(self._tenant, self._job, attempt, device)

    async def _bring(self, attempt: int, device: int) -> Path:
        """The directory of an attempt, when it has a device's lines, or the points, as they are now. Raises OSError."""
        directory = self._storage.attempt_dir(self._tenant, self._job, attempt)
        is_over = self._is_over(attempt)
        try:
            if device == POINTS:
                await self._storage.bring_metrics(directory, is_over=is_over)
            else:
                await self._storage.bring_logs(directory, [device], is_over=is_over)
        except StorageUnavailable as error:  # readers try again, as after an error of a disk
            raise OSError(errno.EIO, error.message) from error
        return directory


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
