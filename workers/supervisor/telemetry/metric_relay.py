"""Writes the metrics of an attempt. Points wait only while the disk has no room for them.

The supervisor's loop adds points, and calls `flush_due` at the time that `next_deadline` gives. They are appended to
the attempt's file; then the shipper is notified that the file has grown.
"""

import errno
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog

from jobs.files import paths
from jobs.files.metric_file import MetricWriter
from jobs.protocol.records import MetricSample
from workers.supervisor.telemetry.log_relay import is_due, log_event
from workers.supervisor.telemetry.shipper import StreamShipper

#: So many points are written together.
BATCH_POINTS = 1000
#: Between two tries to write points to a disk that has refused them.
RETRY_SECONDS = 0.2
#: How many points wait while the disk has no room for them; more are dropped.
MAX_WAITING_POINTS = 100_000
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
A_DAY = 86_400.0

_log = structlog.get_logger(__name__)


class MetricRelay:
    """The metrics of one attempt. Used by one thread; does not wait for anything but the disk."""

    def __init__(self, attempt: Path, shipper: StreamShipper | None, clock: Callable[[], float] = time.time) -> None:
        self._writer = MetricWriter(paths.metrics_file(attempt))
        self._points: list[MetricSample] = []
        self._tried_at = 0.0
        self._earlier: Path | None = None  # whose points come first, once there is room for them
        self._is_failing = False
        self._shipper = shipper
        self._clock = clock

    @property
    def dropped(self) -> int:
        """Points that could not be written, up to now."""
        return self._writer.dropped

    @property
    def kept_bytes(self) -> int:
        """Length of the file."""
        return self._writer.end

    def add_point(self, record: MetricSample) -> None:
        """Take one point of a series. An impossible time (a program may claim any) becomes the time of arrival."""
        now = self._clock()
        if not 0 <= record.at <= now + A_DAY:
            record = msgspec.structs.replace(record, at=now)
        if self._disk_refuses and len(self._points) >= MAX_WAITING_POINTS:
            self._writer.dropped += 1
            return
        self._points.append(record)
        if not self._disk_refuses and len(self._points) >= BATCH_POINTS:
            self._write_points()

    def start_from(self, earlier: Path) -> None:
        """Begin with the points of an earlier attempt. Where the disk is full, they are copied as soon as it has room,
        and new points wait until then.

        Raises:
            OSError: the earlier points cannot be read.
        """
        self._earlier = earlier
        self._copy_earlier_points()

    def flush(self) -> tuple[Path, int]:
        """Write all points that wait; returns the file and its length with every point up to now.

        Raises:
            OSError: the disk has no room for all of them yet.
        """
        self._write_points()
        if self._earlier is not None or self._points:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._writer.path, self._writer.end

    def next_deadline(self) -> float | None:
        """When `flush_due` is to be called, by the relay's clock; `None` while nothing waits."""
        if not self._points:
            return None
        return self._tried_at + RETRY_SECONDS if self._disk_refuses else self._clock()

    def flush_due(self, now: float) -> None:
        if self._points and (not self._disk_refuses or is_due(self._tried_at, RETRY_SECONDS, now)):
            self._write_points()

    def close(self) -> None:
        """Write all that is left, and seal the file. Call it once."""
        self._write_points()
        self._writer.dropped += len(self._points)  # there was no room for them until the end
        try:
            self._writer.seal()
        except OSError as error:
            log_event(_log.error, "metrics_not_sealed", dropped=self._writer.dropped, error=str(error))
            self._writer.close()
            return
        self._ship()

    @property
    def _disk_refuses(self) -> bool:
        """Whether the disk had no room for points, or for those of an earlier attempt."""
        return self._earlier is not None or self._is_failing

    def _copy_earlier_points(self) -> None:
        """Copy the points of an earlier attempt if there is room for them. Raises OSError: they cannot be read."""
        assert self._earlier is not None
        try:
            self._writer.begin_with(self._earlier)
        except OSError as error:
            if error.errno not in NO_ROOM:
                self._earlier = None
                raise
            return
        self._earlier = None
        self._ship()

    def _write_points(self) -> None:
        if self._earlier is not None:
            with suppress(OSError):  # new points are no worse for it
                self._copy_earlier_points()
        if self._earlier is not None:
            self._tried_at = self._clock()
            return
        if not self._points:
            return
        while points := self._points[:BATCH_POINTS]:
            try:
                self._writer.append(points)
            except OSError as error:
                if not self._is_failing:
                    log_event(_log.error, "metrics_not_written", error=str(error))
                self._is_failing = True
                if error.errno in NO_ROOM:
                    self._tried_at = self._clock()
                    return
                self._writer.dropped += len(points)
            else:
                self._is_failing = False
            del self._points[:BATCH_POINTS]
        self._ship()

    def _ship(self) -> None:
        if self._shipper is not None:
            self._shipper.ship_metrics(self._writer.path, self._writer.end)
