"""Lines on stdout and stderr of a rank, read as its supervisor reads them: in the order of their printing."""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from tests.support.timing import once_below
from workers.runtime import ordered_pipe
from workers.runtime.context import DeviceStreams
from workers.supervisor.event_loop import EventLoop


class Supervisor(threading.Thread):
    """Reads two pipes and keeps what comes, in the order in which it reads."""

    def __init__(self, ends: tuple[int, int]) -> None:
        super().__init__(daemon=True)
        self.text = b""
        self._left = set(ends)
        self._loop = EventLoop()
        for fd in ends:
            self._loop.register(fd, partial(self._read, fd))

    def run(self) -> None:
        while self._left:
            self._loop.run_once(0.05)

    def _read(self, fd: int) -> None:
        data = self._loop.read_ready(fd)
        self.text += data
        if not data:
            self._left.discard(fd)


@contextmanager
def printing(ends: list[tuple[int, int]]) -> Iterator[None]:
    before = sys.stdout, sys.stderr
    DeviceStreams([(ends[0][1], ends[1][1])]).install()
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


@pytest.fixture
def pipes() -> Iterator[list[tuple[int, int]]]:
    ends = [os.pipe(), os.pipe()]
    yield ends
    for pair in ends:
        os.close(pair[0])


def test_lines_of_both_pipes_are_read_in_the_order_of_their_printing(
    pipes: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ordered_pipe, "FREE_SECONDS", 60.0)  # a busy machine: the reader may be slow
    monkeypatch.setattr(ordered_pipe, "LONGEST_WAIT", 10.0)
    reader = Supervisor((pipes[0][0], pipes[1][0]))
    reader.start()
    with printing(pipes):
        for number in range(100):
            print(2 * number)
            print(2 * number + 1, file=sys.stderr)
    for _, end in pipes:
        os.close(end)
    reader.join(60)
    assert [int(line) for line in reader.text.split()] == list(range(200))


def test_a_program_may_close_one_of_the_two(pipes: list[tuple[int, int]]) -> None:
    with printing(pipes):
        print("before", file=sys.stderr)
        sys.stderr.close()
        print("after")
    assert os.read(pipes[0][0], 100) == b"after\n"
    for _, end in pipes:
        os.close(end)


def test_a_supervisor_that_does_not_read_holds_nobody_up(pipes: list[tuple[int, int]]) -> None:
    def took() -> float:
        began = time.monotonic()
        with printing(pipes):
            for number in range(100):
                print(number)
                print(number, file=sys.stderr)
        return time.monotonic() - began

    most = ordered_pipe.FREE_SECONDS + ordered_pipe.LONGEST_WAIT
    once_below(most + 1.0, took)
    for _, end in pipes:
        os.close(end)
