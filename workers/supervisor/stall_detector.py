"""Tells a run that has come to a stand from one that is slow.

A sign is whatever a rank cannot send without getting on: a step of any phase, or progress that the program tells of
itself. Signs of one rank speak for all: ranks that train together wait for each other, so a rank that hangs silences
every one of them, and ranks that do not are ended by their own exit.

Without `limits.stall_seconds` the run's own pauses are the measure: it has stalled when it has been silent for
twenty times its longest pause, and for half an hour. That may be far too late, but a healthy run must not end for
an evaluation that is long and sends no sign.
"""

from pathlib import Path

FACTOR = 20.0
LEAST_SECONDS = 1800.0
#: Pauses that must have been seen before they are a measure.
LEAST_SIGNS = 10

#: In the flags of a process (PF_EXITING), and what stands for the status of one that is gone.
_EXITING = 0x4
_GONE = ["X"] + 6 * ["0"]


class StallDetector:
    """Counts silence by a monotonic clock, whose readings it is given. `limit` is in seconds."""

    def __init__(self, limit: float | None) -> None:
        self._limit = limit
        self._last: float | None = None
        self._signs = 0
        self._longest = 0.0

    def start(self, now: float) -> None:
        """The first rank is up: from here on a limit that was asked for counts."""
        self._last = now

    def sign(self, now: float) -> None:
        """A rank has got on."""
        if self._last is not None:
            self._longest = max(self._longest, now - self._last)
        self._last = now
        self._signs += 1

    def hold(self, now: float) -> None:
        """The silence up to now has its reason, and is no measure."""
        if self._last is not None:
            self._last = now

    def stalled(self, now: float) -> str | None:
        """Why the run is to be ended; None while it is not."""
        allowed = self._allowed()
        if self._last is None or allowed is None or now - self._last <= allowed:
            return None
        if self._limit is not None:
            return f"no step for {self._limit:g} s, which is limits.stall_seconds"
        return f"no step for {allowed:.0f} s, when the longest pause before had been {self._longest:.0f} s"

    def _allowed(self) -> float | None:
        if self._limit is not None:
            return self._limit
        return max(LEAST_SECONDS, FACTOR * self._longest) if self._signs >= LEAST_SIGNS else None


def is_stopped(pid: int) -> bool:
    """Whether a process is held by SIGSTOP or the like."""
    return _status(pid)[0] in ("T", "t")


def is_dying(pid: int) -> bool:
    """Whether a process has begun to end: the kernel says so before it closes what the process had open, which is when
    others see their connections break. That it is dead may show much later, for one that held a GPU."""
    return bool(int(_status(pid)[6]) & _EXITING)


def _status(pid: int) -> list[str]:
    """What the kernel says of a process, from its state on: see proc(5)."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return _GONE
    return status[status.rindex(")") + 2 :].split()
