"""How much the attempts of a node have grown on each file system lately, and which is to blame for one that is low."""

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from jobs.store import AttemptId
from jobs.support.disk_space import DiskSpace
from workers.runtime.disk_ledger import DiskUsage

#: How far back growth counts.
WINDOW_SECONDS = 120.0
#: What a supervisor reports has come since its last report, which was not longer ago.
REPORT_SECONDS = 10.0
#: An attempt is to blame if its growth is this part of the reserve at least: a slower one leaves time for other means.
BLAMED_PART = 4
#: And this part of what the file system has lost: other nodes may be writing there, too.
LEAST_PART_OF_LOSS = 16


@dataclass(frozen=True, slots=True)
class Growth:
    """What an attempt has on a file system, in bytes or in files, and how much of it has come in the last `seconds`."""

    used: int
    grown: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _Reading:
    at: float
    usage: DiskUsage


class GrowthHistory:
    """The readings of the last `WINDOW_SECONDS`. Times are monotonic."""

    def __init__(self) -> None:
        self._attempts: dict[AttemptId, deque[_Reading]] = {}
        self._spaces: deque[tuple[float, dict[int, DiskSpace]]] = deque()

    def begin_attempt(self, attempt: AttemptId, at: float) -> None:
        """An attempt has begun, with nothing. Of one that has begun unseen, what it had when it was first seen is no
        growth."""
        self._attempts.setdefault(attempt, deque([_Reading(at, DiskUsage())]))

    def add(self, now: float, spaces: Collection[DiskSpace], usages: Mapping[AttemptId, DiskUsage | None]) -> None:
        """Add what was read at one moment; None where it could not be read. An attempt that is not among `usages` has
        ended."""
        self._spaces.append((now, {space.device: space for space in spaces}))
        while now - self._spaces[0][0] > WINDOW_SECONDS:
            self._spaces.popleft()
        self._attempts = {attempt: self._attempts.get(attempt, deque()) for attempt in usages}
        for attempt, usage in usages.items():
            readings = self._attempts[attempt]
            if usage is not None and (not readings or readings[-1].usage != usage):
                readings.append(_Reading(now, usage))
            while len(readings) > 1 and now - readings[1].at > WINDOW_SECONDS:
                readings.popleft()

    def restart(self) -> None:
        """Forget all but the newest readings: what has grown until now was somebody else's fault."""
        self._spaces = deque(list(self._spaces)[-1:])
        self._attempts = {attempt: deque(list(readings)[-1:]) for attempt, readings in self._attempts.items()}

    def find_grower(self, space: DiskSpace, now: float) -> tuple[AttemptId, Growth] | None:
        """The attempt that has grown most on a low file system, by what is short there; None where no growth is large
        enough to have been the cause."""
        count, threshold = self._measure_of(space)
        grown = {attempt: _growth(readings, count, now) for attempt, readings in self._attempts.items() if readings}
        attempt = max(grown, key=lambda one: grown[one].grown, default=None)
        if attempt is None or grown[attempt].grown < max(1, threshold):
            return None
        return attempt, grown[attempt]

    def _measure_of(self, space: DiskSpace) -> tuple[Callable[[DiskUsage], int], int]:
        """What to read of a usage, and how much growth is enough."""
        before = [found[space.device] for _, found in self._spaces if space.device in found]
        device = space.device
        if space.lacks_files:
            lost = max((one.free_files for one in before), default=0) - space.free_files
            return lambda usage: usage.files.get(device, 0), _threshold(space.reserve_files, lost)
        lost = max((one.free_bytes for one in before), default=0) - space.free_bytes
        return lambda usage: usage.bytes.get(device, 0), _threshold(space.reserve_bytes, lost)


def _threshold(reserve: int, lost: int) -> int:
    return max(reserve // BLAMED_PART, lost // LEAST_PART_OF_LOSS)


def _growth(readings: Collection[_Reading], count: Callable[[DiskUsage], int], now: float) -> Growth:
    first, *later = readings
    last = later[-1] if later else first
    began = max(first.at, later[0].at - REPORT_SECONDS) if later else first.at
    used = count(last.usage)
    return Growth(used, used - count(first.usage), now - began)
