"""Measures the memory and counts the processes of an attempt whom no cgroup limits.

What memory several processes take together is not the sum of what each of them shows: forked ones share pages until
one writes to them, and DataLoader workers share tensors with their rank. The kernel knows the shares (`Pss` of
smaps_rollup), and has to look at every page for them. So the sum of what each process has, which is never less, is
looked at often, and the shares only where that sum is over the limit.

A file system in memory whose files no process has mapped does not count: where jobs have such ones of their own, their
size is limited.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from workers.runtime.limits import AttemptLimits
from workers.supervisor.limits.background_meter import BackgroundMeter
from workers.supervisor.limits.breach import LimitBreach

#: Between two measurements: at least this, and so many times what the last one took of a core, up to the third.
PAUSE_SECONDS = 0.25
PAUSE_FACTOR = 20
MAX_PAUSE_SECONDS = 30.0

_WANTED = frozenset((b"RssAnon", b"RssShmem", b"VmSwap", b"Threads", b"Pss", b"Pss_Anon", b"Pss_Shmem", b"SwapPss"))

ListProcesses = Callable[[], Iterable[int]]


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """One process: bytes in memory or swapped out, without files, and its threads."""

    bytes: int
    threads: int


class ProcessMeter(BackgroundMeter):
    """`list_processes` gives the process ids of the attempt; it is called by another thread."""

    def __init__(self, limits: AttemptLimits, list_processes: ListProcesses) -> None:
        self._limits = limits
        self._list_processes = list_processes
        super().__init__("processes")

    def measure(self) -> float:
        began = time.thread_time()
        self.breach = self._find_breach() or self.breach
        return min(MAX_PAUSE_SECONDS, max(PAUSE_SECONDS, PAUSE_FACTOR * (time.thread_time() - began)))

    def _find_breach(self) -> LimitBreach | None:
        pids, total, threads = [], 0, 0
        for pid in self._list_processes():
            usage = read_usage(pid)
            pids.append(pid)
            total += usage.bytes
            threads += usage.threads
            if threads > self._limits.processes:
                return LimitBreach("processes", threads, self._limits.processes)
        if total <= self._limits.memory_bytes:
            return None
        taken = sum(map(read_share, pids))
        return LimitBreach("memory", taken, self._limits.memory_bytes) if taken > self._limits.memory_bytes else None


def read_usage(pid: int) -> ProcessUsage:
    """What a process has, of which it may share some with others; nothing where it has ended."""
    fields = _read_fields(f"/proc/{pid}/status")
    size = sum(fields.get(name, 0) for name in (b"RssAnon", b"RssShmem", b"VmSwap"))
    return ProcessUsage(size * 1024, fields.get(b"Threads", 0))


def read_share(pid: int) -> int:
    """Bytes of what a process has, shared pages divided by the number of those that share them. Where a process does
    not let itself be looked at, all that it has."""
    fields = _read_fields(f"/proc/{pid}/smaps_rollup")
    shared_out = fields.get(b"SwapPss", 0) + fields.get(b"Pss_Anon", fields.get(b"Pss", 0))
    has = read_usage(pid).bytes
    return min(has, (shared_out + fields.get(b"Pss_Shmem", 0)) * 1024) if fields else has


def _read_fields(path: str) -> dict[bytes, int]:
    """Lines such as "VmSwap:   12 kB"; empty where the file cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            lines = file.read().splitlines()
    except OSError:
        return {}
    pairs = (line.partition(b":") for line in lines)
    return {name: int(rest.split()[0]) for name, _, rest in pairs if name in _WANTED}
