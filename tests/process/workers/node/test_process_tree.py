"""What a process and its descendants take."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from workers.node.hardware.process_tree import ProcessTree, TreeSample, read_children
from workers.runtime.process_status import read_start_time

#: A process that computes in its second thread, and has a child that does nothing but hold memory.
PROGRAM = """
import subprocess, sys, threading
hold = "held = bytearray(64 << 20); import signal; print(flush=True); signal.pause()"
child = subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE)
child.stdout.readline()
def compute():
    while True:
        pass
threading.Thread(target=compute, daemon=True).start()
print(child.pid, flush=True)
sys.stdin.read()
child.kill()
child.wait()
"""


@contextmanager
def program() -> Iterator[tuple[subprocess.Popen[str], int]]:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield process, int(process.stdout.readline())
        finally:
            process.stdin.close()
            process.wait(30)


def until(found: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_tree_is_its_process_and_all_that_descend_from_it() -> None:
    with program() as (process, child):
        tree = ProcessTree(process.pid, read_start_time(process.pid))
        alone = tree.sample()
        tree.find_descendants(read_children())
        both = tree.sample()
        assert sorted(tree.pids) == sorted([process.pid, child])
        assert alone is not None
        assert both is not None
        assert both.anonymous_bytes - alone.anonymous_bytes >= 64 << 20
        assert both.resident_bytes > both.anonymous_bytes
        used = 0.0

        def computes() -> bool:
            nonlocal used
            sample = tree.sample()
            assert isinstance(sample, TreeSample)
            used += sample.cpu_seconds
            return used > 0.05

        until(computes)
        until(lambda: tree.count_runnable_threads() >= 1)
        assert sorted(tree.pids) == sorted([process.pid, child])
    assert tree.sample() is None


def test_another_process_of_the_same_number_is_not_the_rank() -> None:
    assert ProcessTree(os.getpid(), read_start_time(os.getpid()) - 1).sample() is None


def test_a_process_that_is_dead_and_not_reaped_has_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], stdin=-1, stdout=-1) as process:
        assert process.stdout is not None
        process.stdout.readline()
        tree = ProcessTree(process.pid, read_start_time(process.pid))
        assert tree.sample() is not None
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert tree.sample() is None
