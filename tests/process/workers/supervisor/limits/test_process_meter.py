"""Memory and processes of real processes, which share pages, hide, or are many."""

import mmap
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from workers.runtime.limits import AttemptLimits
from workers.supervisor.limits.process_listing import list_descendants
from workers.supervisor.limits.process_meter import ProcessMeter, read_share, read_shared_memory, read_usage

MIB = 1024 * 1024


@contextmanager
def child(work: Callable[[], object] = lambda: None) -> Iterator[int]:
    """A forked process that has done `work`, and waits. Its own children die with it, as its group."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setpgid(0, 0)
            kept = work()
            os.write(writer, b"x")
            signal.pause()
            del kept
        finally:
            os._exit(1)
    os.close(writer)
    assert os.read(reader, 1) == b"x"
    os.close(reader)
    try:
        yield pid
    finally:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def fill(size: int, *, flags: int = mmap.MAP_PRIVATE) -> mmap.mmap:
    area = mmap.mmap(-1, size, flags | mmap.MAP_ANONYMOUS)
    for start in range(0, size, 4096):
        area[start] = 1
    return area


def fork_children(count: int) -> None:
    for _ in range(count):
        if os.fork() == 0:
            signal.pause()
            os._exit(0)


def limits(memory: int = 2**40, processes: int = 1000) -> AttemptLimits:
    return AttemptLimits(memory, processes, 2**30, 2**30, 1000, 2**20, 2**20)


@pytest.fixture
def meter_of() -> Callable[..., ProcessMeter]:
    """Meters that measure when a test calls `measure`, and not by themselves."""

    def make(chosen: AttemptLimits, *pids: int) -> ProcessMeter:
        meter = ProcessMeter(chosen, lambda: pids)
        meter.close()
        return meter

    return make


def test_all_that_descends_from_a_process_is_listed_whatever_it_did() -> None:
    def scatter() -> None:
        fork_children(2)
        if os.fork() == 0:  # of a session of its own, and forked by a thread
            os.setsid()
            thread = threading.Thread(target=fork_children, args=(1,))
            thread.start()
            signal.pause()

    with child(scatter) as pid:
        found: set[int] = set()
        while len(found) < 4:
            found = set(list_descendants(pid))
        assert pid not in found
        assert {pid, *found} <= set(list_descendants(os.getpid()))
        for one in found:
            os.kill(one, signal.SIGKILL)


def test_threads_and_processes_that_are_too_many_are_a_breach(meter_of: Callable[..., ProcessMeter]) -> None:
    def start() -> None:
        for _ in range(9):
            threading.Thread(target=threading.Event().wait, daemon=True).start()

    with child(start) as pid, child() as other:
        allowed, refused = meter_of(limits(processes=11), pid, other), meter_of(limits(processes=10), pid, other)
        allowed.measure()
        assert allowed.breach is None
        refused.measure()
        assert refused.breach is not None
        assert (refused.breach.limit, refused.breach.used) == ("processes", 11)


#: Four processes that share 64 MiB, in a Python of their own, until they are told to write to it.
SHARES = """
import mmap, os, signal
area = mmap.mmap(-1, 64 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
def write():
    for at in range(0, len(area), 4096):
        area[at] = 1
write()
os.fork(), os.fork()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
os.write(1, b"%d\\n" % os.getpid())
signal.sigwait([signal.SIGUSR1])
write()
os.write(1, b"written\\n")
signal.pause()
"""


@contextmanager
def sharing_processes() -> Iterator[tuple[list[int], Callable[[], None]]]:
    """Their process ids, and what has all but one of them write."""
    command = [sys.executable, "-S", "-c", SHARES]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:

        def write() -> None:
            assert process.stdout is not None
            for pid in pids[1:]:
                os.kill(pid, signal.SIGUSR1)
                assert process.stdout.readline() == b"written\n"

        try:
            assert process.stdout is not None
            pids = [int(process.stdout.readline()) for _ in range(4)]
            yield pids, write
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_pages_that_forked_processes_share_count_once(meter_of: Callable[..., ProcessMeter]) -> None:
    with sharing_processes() as (pids, _):
        assert sum(read_usage(pid).bytes for pid in pids) > 4 * 64 * MIB
        assert 64 * MIB <= sum(map(read_share, pids)) < 2 * 64 * MIB
        allowed, refused = meter_of(limits(memory=2 * 64 * MIB), *pids), meter_of(limits(memory=60 * MIB), *pids)
        allowed.measure()
        assert allowed.breach is None
        refused.measure()
        assert refused.breach is not None
        assert refused.breach.limit == "memory"
        assert 64 * MIB <= refused.breach.used < 2 * 64 * MIB


def test_shared_pages_that_are_written_to_are_found(meter_of: Callable[..., ProcessMeter]) -> None:
    """Each process then has its own, and shows no more than before."""
    with sharing_processes() as (pids, write):
        meter = meter_of(limits(memory=2 * 64 * MIB), *pids)
        meter.measure()
        assert meter.check(0.0) is None
        write()
        meter.measure()
        assert meter.breach is not None
        assert meter.breach.used > 4 * 64 * MIB


@pytest.mark.parametrize("flags", [mmap.MAP_PRIVATE, mmap.MAP_SHARED], ids=["own", "shared"])
def test_memory_of_either_kind_counts(flags: int, meter_of: Callable[..., ProcessMeter]) -> None:
    with child(lambda: fill(64 * MIB, flags=flags)) as pid:
        meter = meter_of(limits(memory=60 * MIB), pid)
        meter.measure()
        assert meter.breach is not None
        assert meter.breach.limit == "memory"


def test_a_process_that_has_ended_has_nothing() -> None:
    with child() as started:
        pid = started
    assert (read_usage(pid).bytes, read_usage(pid).threads, read_share(pid)) == (0, 0, 0)
    assert list(list_descendants(pid)) == []


#: Two small Pythons that share nothing but a file in memory, which the named ones of them have mapped.
MAPS = """
import mmap, signal, sys
area = mmap.mmap(int(sys.argv[1]), 64 << 20) if sys.argv[2] == "maps" else None
if area is not None:
    assert area[::4096].count(b"x") == len(area) // 4096
print(flush=True)
signal.pause()
"""


@contextmanager
def process_with_file(file: int, use: str) -> Iterator[int]:
    """Not a fork of the tests' own process: what that shares with its forks changes whenever it writes to it."""
    command = [sys.executable, "-S", "-c", MAPS, str(file), use]
    with subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=[file]) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"\n"
            yield process.pid
        finally:
            process.kill()


@pytest.mark.parametrize("uses", [("has", "has"), ("maps", "has"), ("maps", "maps")], ids="-".join)
def test_a_file_in_memory_counts_once_whether_it_is_mapped_or_not(
    uses: tuple[str, str], meter_of: Callable[..., ProcessMeter]
) -> None:
    file = os.memfd_create("shared")
    try:
        os.write(file, b"x" * 64 * MIB)
        with process_with_file(file, uses[0]) as one, process_with_file(file, uses[1]) as two:
            alone = sum(read_share(pid) - read_shared_memory(pid) for pid in (one, two))
            allowed, refused = (meter_of(limits(memory=alone + left), one, two) for left in (72 * MIB, 48 * MIB))
            allowed.measure()
            assert allowed.breach is None
            refused.measure()
            assert refused.breach is not None
            assert refused.breach.used == pytest.approx(alone + 64 * MIB, abs=8 * MIB)
    finally:
        os.close(file)
