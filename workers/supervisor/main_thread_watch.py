"""Notices that the supervisor's main thread is stuck, as in a call on a storage that does not answer.

Nobody reads the ranks then, or could end them, and nothing of the attempt will be written. The main thread says again
and again by when it will be heard from; another one, which touches no file, checks that.
"""

from collections.abc import Callable
from math import inf
from time import monotonic

#: How long it may be silent while it starts the ranks (bundles are unpacked and checkpoints copied), while it watches
#: them, where a longer lease counts, and while it completes files.
START_SECONDS, LOOP_SECONDS, END_SECONDS = 3600.0, 120.0, 3600.0
#: And once the lease is lost, until it ends the ranks.
LOST_SECONDS = 3.0


def loop_seconds(lease_seconds: float) -> float:
    """How long a main thread may stand still in its loop."""
    return max(LOOP_SECONDS, lease_seconds)


class MainThreadWatch:
    """`on_overdue` is called by the thread that checks, and may not touch files. `ticks` counts how often the main
    thread was heard from."""

    def __init__(self) -> None:
        self.on_overdue: Callable[[], None] = lambda: None
        self.ticks = 0
        self._expected_by = inf

    def expect_within(self, seconds: float) -> None:
        """The main thread calls this again within so many seconds."""
        self.ticks += 1
        self._expected_by = monotonic() + seconds

    def expect_tick(self, lease_seconds: float) -> None:
        """The main thread is in its loop, and calls this in each round."""
        self.expect_within(loop_seconds(lease_seconds))

    @property
    def is_overdue(self) -> bool:
        return monotonic() > self._expected_by
