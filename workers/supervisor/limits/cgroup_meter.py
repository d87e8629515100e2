"""Reads what a cgroup says of its limits: whether the kernel has killed for memory, or refused a process.

Version 2 has all files in one directory, version 1 those of memory and of processes in two. A cgroup enforces its
limits itself; this only finds out that it did, so that the attempt ends with the reason. A cgroup is made for one
attempt, so whatever it counts is of this one: ranks may have hit a limit before anything here looks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from workers.runtime.limits import AttemptLimits
from workers.supervisor.limits.breach import LimitBreach, LimitName

#: Between two looks, which are a few reads.
LOOK_SECONDS = 0.25
#: A cgroup whose processes were killed for its own limit has used so much of it.
NEARLY = 0.9


@dataclass(frozen=True, slots=True)
class CgroupCounter:
    """A limit as a cgroup has it: the file of the limit, the file and the word of the event that says that it was hit,
    and the file of what was used at most, or, in earlier kernels, is used now."""

    limit: LimitName
    file: str
    events: str
    word: str
    used: tuple[str, ...]


COUNTERS = (
    CgroupCounter("memory", "memory.max", "memory.events", "oom_kill", ("memory.peak", "memory.current")),
    CgroupCounter("memory", "memory.limit_in_bytes", "memory.oom_control", "oom_kill", ("memory.max_usage_in_bytes",)),
    CgroupCounter("processes", "pids.max", "pids.events", "max", ("pids.peak", "pids.current")),
)


@dataclass(frozen=True, slots=True)
class _WatchedCounter:
    directory: Path
    counter: CgroupCounter
    allowed: int

    @property
    def _has_peak(self) -> bool:
        """Whether it is known what was used at most, and not only what is used now."""
        return (self.directory / self.counter.used[0]).exists()

    def find_breach(self) -> LimitBreach | None:
        if not _read_words(self.directory / self.counter.events).get(self.counter.word, 0):
            return None
        used = _read_first(self.directory, self.counter.used)
        if self.counter.limit == "memory" and self._has_peak and used < NEARLY * self.allowed:
            return None  # the kernel has killed for a limit above this cgroup's, or for the host
        return LimitBreach(self.counter.limit, max(used, self.allowed), self.allowed)


class CgroupMeter:
    """`directories` are those of the attempt's cgroup: one for each controller under version 1."""

    def __init__(self, limits: AttemptLimits, directories: Sequence[Path]) -> None:
        allowed = {"memory": limits.memory_bytes, "processes": limits.processes}
        self._counters = [
            _WatchedCounter(directory, counter, allowed[counter.limit])
            for directory in directories
            for counter in COUNTERS
            if (directory / counter.file).exists()
        ]
        self._look_at = 0.0

    @property
    def watched(self) -> frozenset[LimitName]:
        """The limits that the cgroup has."""
        return frozenset(one.counter.limit for one in self._counters)

    def check(self, now: float, *, at_once: bool = False) -> LimitBreach | None:
        if now < self._look_at and not at_once:
            return None
        self._look_at = now + LOOK_SECONDS
        return next(filter(None, (one.find_breach() for one in self._counters)), None)

    def close(self) -> None:
        pass


def _read_words(file: Path) -> Mapping[str, int]:
    """Lines such as "oom_kill 3"; empty where the file is not there."""
    try:
        pairs = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return {}
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _read_first(directory: Path, names: tuple[str, ...]) -> int:
    """The number in the first of these files that is there; 0 where none has one."""
    for name in names:
        try:
            return int((directory / name).read_text())
        except (OSError, ValueError):
            continue
    return 0
