"""Measures what the records of an attempt take: memory of this process, and disk for its metrics.

Every kind of record has bounds of its own (`jobs.protocol.records`, and those who keep them), and honest programs stay
far below their sum. Whoever comes near to it all the same forges records. The memory that this process has taken since
the ranks began is therefore measured as records are read, and no faster than it can grow: after each `CHECK_BYTES`.
"""

import os
from collections.abc import Callable

from workers.supervisor.limits.breach import LimitBreach

#: What the records of an attempt may take of this process's memory. The rest of 256 MiB is for what it needs itself,
#: and for decoding the packet at hand.
MAX_GROWTH_BYTES = 128 * 1024 * 1024
#: Bytes of records between two looks. A byte of a packet becomes a dozen in memory at most.
CHECK_BYTES = 512 * 1024
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_FORGED = (
    "Records of steps, splits and metrics as the service makes them stay far below this. If the program writes none of "
    "its own to the service, tell the operator what it does."
)


class RecordMeter:
    """`kept_bytes` says how much of the attempt's metrics is on disk, of which it may have `allowed` bytes; None:
    without a limit. Used by the supervisor's loop alone."""

    def __init__(self, allowed: int | None, kept_bytes: Callable[[], int]) -> None:
        self._allowed = allowed
        self._kept_bytes = kept_bytes
        self._own_bytes = read_own_memory()
        self._unchecked = 0
        self._breach: LimitBreach | None = None

    def add(self, count: int) -> bool:
        """Count bytes of records that were read; True while more may be read."""
        self._unchecked += count
        if self._unchecked >= CHECK_BYTES:
            self._measure()
        return self._breach is None

    def check(self, now: float, *, at_once: bool = False) -> LimitBreach | None:
        if self._unchecked:
            self._measure()
        return self._breach

    def close(self) -> None:
        pass

    def _measure(self) -> None:
        self._unchecked = 0
        grown, kept = read_own_memory() - self._own_bytes, self._kept_bytes()
        if grown > MAX_GROWTH_BYTES:
            self._breach = self._breach or LimitBreach("records", grown, MAX_GROWTH_BYTES, _FORGED)
        elif self._allowed is not None and kept > self._allowed:
            self._breach = self._breach or LimitBreach("records", kept, self._allowed)


def read_own_memory() -> int:
    """Bytes of memory that this process has for itself, without files and what is shared with others by name. Pages
    that it was forked with count from the beginning, so a difference is what it has taken since."""
    with open("/proc/self/statm", "rb", buffering=0) as file:
        _, resident, shared, *_ = file.read().split()
    return (int(resident) - int(shared)) * _PAGE_BYTES
