"""What a rank's process and all its descendants take of the node: processor time, memory, threads that want to run.

One look at every process of the host finds descendants; it is the most expensive part, so it is taken every few
seconds for all attempts together. In between, only the processes that are known are read.
"""

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from workers.runtime.process_status import read_stat_fields

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
#: Places in the fields of /proc/PID/stat from the state on.
_PARENT, _USER_TIME, _SYSTEM_TIME, _STARTED = 1, 11, 12, 19


@dataclass(frozen=True, slots=True)
class TreeSample:
    """`resident_bytes` counts pages that processes share for each of them; `anonymous_bytes` leaves those of files and
    of shared memory out."""

    cpu_seconds: float  # since the sample before
    resident_bytes: int
    anonymous_bytes: int


class ProcessTree:
    def __init__(self, pid: int, started: int) -> None:
        self._pid = pid
        self._ticks: dict[int, int] = {}  # of each process, at the last sample
        self._started = {pid: started}

    @property
    def pids(self) -> Sequence[int]:
        return list(self._started)

    def find_descendants(self, children: Mapping[int, Sequence[int]]) -> None:
        """Take up processes that have come. `children` is of the whole host."""
        waiting = [self._pid]
        while waiting:
            for pid in children.get(waiting.pop(), ()):
                waiting.append(pid)
                if pid not in self._started and (fields := read_stat_fields(pid)):
                    self._started[pid] = int(fields[_STARTED])
                    self._ticks[pid] = 0

    def sample(self) -> TreeSample | None:
        """None: the rank's process has ended, or has given its memory back to end."""
        ticks = resident = anonymous = 0
        for pid, started in list(self._started.items()):
            fields = read_stat_fields(pid)
            if not fields or int(fields[_STARTED]) != started:
                if pid == self._pid:
                    return None
                del self._started[pid]
                self._ticks.pop(pid, None)
                continue
            pages = _read_pages(pid)
            if pid == self._pid and not pages[0]:
                return None
            used = int(fields[_USER_TIME]) + int(fields[_SYSTEM_TIME])
            ticks += used - self._ticks.get(pid, used)
            self._ticks[pid] = used
            resident += pages[0]
            anonymous += max(0, pages[0] - pages[1])
        return TreeSample(ticks / _TICKS, resident * _PAGE_BYTES, anonymous * _PAGE_BYTES)

    def count_runnable_threads(self) -> int:
        """Threads that run, or wait for a core."""
        return sum(_count_runnable(pid) for pid in self._started)


def read_children() -> dict[int, list[int]]:
    """Every process of the host that has children, with these."""
    children: dict[int, list[int]] = defaultdict(list)
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := read_stat_fields(int(name))):
            children[int(fields[_PARENT])].append(int(name))
    return children


def count_cores() -> float:
    """Processor cores that this process and its kind may use: those of its affinity, or fewer where its cgroup has a
    quota."""
    cores = float(len(os.sched_getaffinity(0)))
    with suppress(OSError, ValueError):
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:
            quota, period = file.read().split()
        if quota != "max":
            cores = min(cores, int(quota) / int(period))
    return cores


def _read_pages(pid: int) -> tuple[int, int]:
    """Pages in memory, and how many of them belong to files or shared memory."""
    try:
        with open(f"/proc/{pid}/statm", "rb", buffering=0) as file:
            fields = file.read().split()
        return int(fields[1]), int(fields[2])
    except (OSError, IndexError, ValueError):
        return 0, 0


def _count_runnable(pid: int) -> int:
    count = 0
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            count += read_stat_fields(int(thread))[:1] == [b"R"]
    return count
