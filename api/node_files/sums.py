"""How much nodes may upload for one attempt, and for the checkpoints of one job, all files together.

A supervisor holds its job to the same limits where it runs; here they hold for a node that was taken over, too. What
lies there is counted on the disk once in a while, and what this process writes is added until the next count. A file
that replaces another one counts twice for that long.
"""

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from api.data.service_files import MOUNTED
from jobs.model.settings import Settings
from jobs.support.bounded_cache import keep_newest
from shardyard.contract.errors import BodyTooLarge

#: A count is good for so long, and for so many times as long as it took: many files cost the disk a twentieth of its
#: time at most. Where it would refuse something, it is made anew after the second time.
COUNT_SECONDS, AGAIN_SECONDS, REST = 60.0, 2.0, 20.0
MAX_COUNTED = 4096
#: Beside what is limited by itself: reports, samples of hardware, traces.
SMALL_BYTES = 4 * 1024**3


@dataclass(slots=True)
class _Sum:
    bytes: int
    counted_at: float
    good_until: float


@dataclass(frozen=True, slots=True)
class Bound:
    """A directory of the storage, what it may have, and which settings say so."""

    directory: PurePosixPath
    bytes: int
    settings: str


def bound_of_attempt(settings: Settings, directory: PurePosixPath, nodes: int) -> Bound:
    """That of an attempt over so many nodes."""
    most = settings.job_disk_bytes + settings.job_log_bytes + settings.job_record_bytes + SMALL_BYTES
    return Bound(
        directory, nodes * most, "SHARDYARD_JOB_DISK_BYTES, SHARDYARD_JOB_LOG_BYTES, SHARDYARD_JOB_RECORD_BYTES"
    )


def bound_of_checkpoints(settings: Settings, directory: PurePosixPath, nodes: int, kept: int) -> Bound:
    """That of the checkpoints of a job that keeps so many: one may be on its way, and one not yet removed."""
    return Bound(directory, (kept + 2) * nodes * settings.job_disk_bytes, "SHARDYARD_JOB_DISK_BYTES")


class BroughtSums:
    """`run` has a thread do what waits for the disk."""

    def __init__(self, root: Path, run: Callable[[Callable[[], int]], Awaitable[int]]) -> None:
        self._root = root
        self._run = run
        self._sums: OrderedDict[PurePosixPath, _Sum] = OrderedDict()

    async def require_room(self, bound: Bound, more: int) -> None:
        """Raises:
        BodyTooLarge: with so many bytes more there would be too many.
        """
        now, known = time.monotonic(), self._sums.get(bound.directory)
        if (
            known is None
            or now >= known.good_until
            or (known.bytes + more > bound.bytes and now - known.counted_at > AGAIN_SECONDS)
        ):
            known = await self._count(bound.directory)
        if known.bytes + more > bound.bytes:
            raise BodyTooLarge(
                f"{bound.directory} has {known.bytes} bytes, and nodes may bring {bound.bytes} there ({bound.settings})"
            )

    def add(self, bound: Bound, count: int) -> None:
        """So many bytes were written."""
        known = self._sums.get(bound.directory)
        if known is not None:
            known.bytes += count

    async def _count(self, directory: PurePosixPath) -> _Sum:
        began = time.monotonic()
        counted = await self._run(partial(MOUNTED.count_bytes, self._root / directory))
        took = time.monotonic() - began
        found = _Sum(counted, began, began + max(COUNT_SECONDS, REST * took))
        keep_newest(self._sums, directory, found, MAX_COUNTED)
        return found
