"""Measures the memory and counts the processes of an attempt that no cgroup limits.

What memory several processes take together is not the sum of what each of them shows: forked ones share pages until
one writes to them, and DataLoader workers share tensors with their rank. The kernel knows the shares (`Pss` of
smaps_rollup), and has to look at every page for them. So the sum of what each process has, which is never less, is
looked at often, and the shares only where that sum is over the limit.

A file of memfd_create(2) is in no file system whose size could be limited, and what no process has mapped of it is in
none of these sums, so it is looked for among what the processes have open. Files in other file systems in memory do not
count: where jobs have such ones of their own, their size is limited.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache

from workers.runtime.limits import AttemptLimits
from workers.supervisor.limits.background_meter import BackgroundMeter
from workers.supervisor.limits.breach import LimitBreach

#: Between two measurements: at least this, and so many times what the last one took of a core, up to the third.
PAUSE_SECONDS = 0.25
PAUSE_FACTOR = 20
MAX_PAUSE_SECONDS = 30.0
#: Open files that are looked at in one measurement.
MAX_OPEN_FILES = 65_536

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
        pids, total, threads, files = [], 0, 0, MemoryFiles()
        for pid in self._list_processes():
            usage = read_usage(pid)
            pids.append(pid)
            total += usage.bytes
            files.add_process(pid)
            threads += usage.threads
            if threads > self._limits.processes:
                return LimitBreach("processes", threads, self._limits.processes)
        if total + files.bytes <= self._limits.memory_bytes:
            return None
        mapped = sum(map(read_shared_memory, pids))  # of these files, perhaps, and counted in the shares
        taken = sum(map(read_share, pids)) + max(0, files.bytes - mapped)
        return LimitBreach("memory", taken, self._limits.memory_bytes) if taken > self._limits.memory_bytes else None


class MemoryFiles:
    """Files of memfd_create(2) that processes have open; each counts once, whoever has it."""

    def __init__(self) -> None:
        self.bytes = 0
        self._looked_at = 0
        self._seen: set[int] = set()

    def add_process(self, pid: int) -> None:
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                self._looked_at += 1
                if self._looked_at > MAX_OPEN_FILES:
                    return
                with contextlib.suppress(OSError):
                    self._add(os.stat(f"/proc/{pid}/fd/{fd}"))

    def _add(self, status: os.stat_result) -> None:
        if status.st_dev == _device_of_memory_files() and status.st_ino not in self._seen:
            self._seen.add(status.st_ino)
            self.bytes += status.st_blocks * 512


@cache
def _device_of_memory_files() -> int:
    """All of them are on one device, which nobody can mount."""
    file = os.memfd_create("shardyard")
    try:
        return os.fstat(file).st_dev
    finally:
        os.close(file)


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


def read_shared_memory(pid: int) -> int:
    """Bytes that a process has mapped of files in memory, each page divided by the number of those that share it."""
    return _read_fields(f"/proc/{pid}/smaps_rollup").get(b"Pss_Shmem", 0) * 1024


def _read_fields(path: str) -> dict[bytes, int]:
    """Lines such as "VmSwap:   12 kB"; empty where the file cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            lines = file.read().splitlines()
    except OSError:
        return {}
    pairs = (line.partition(b":") for line in lines)
    return {name: int(rest.split()[0]) for name, _, rest in pairs if name in _WANTED}
