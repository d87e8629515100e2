"""The deadline of a drain: after it, attempts that still run on the node move to other nodes."""

from time import monotonic

import structlog

from jobs import store

log = structlog.get_logger(__name__)


class DrainTimer:
    """The deadline of the newest drain, kept by this host's monotonic clock. The service knows what is left of it, for
    a worker that is restarted meanwhile."""

    def __init__(self) -> None:
        self._number: int | None = None  # of the drain, while that has a deadline which is not over
        self._ends_at = 0.0

    def remaining(self) -> store.DrainDeadline | None:
        if self._number is None:
            return None
        return store.DrainDeadline(self._number, max(0.0, self._ends_at - monotonic()))

    def update(self, reported: store.DrainDeadline | None) -> None:
        if reported is None:
            self._number = None
        elif reported.drain != self._number:
            self._number, self._ends_at = reported.drain, monotonic() + reported.seconds_left
            log.info("node_drains", seconds_left=round(reported.seconds_left, 1))

    def expired_number(self) -> int | None:
        """The number of the drain whose deadline is over; None while there is none."""
        return self._number if self._number is not None and monotonic() >= self._ends_at else None

    def clear(self) -> None:
        self._number = None
