"""What the loop reads, in which order, and how much of a core that takes: real pipes, and writers without an end."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from workers.supervisor import event_loop
from workers.supervisor.event_loop import READ_BYTES, EventLoop, read_waiting


@contextmanager
def flooded_pipe() -> Iterator[int]:
    """A pipe to which a process writes as fast as it can."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        while True:
            os.write(writer, b"x" * 65536)
    os.close(writer)
    os.set_blocking(reader, False)
    try:
        yield reader
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(reader)


def burn(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_inputs_take_their_share_of_a_core_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_loop, "INPUT_SHARE", 0.1)
    monkeypatch.setattr(event_loop, "INPUT_BURST_SECONDS", 0.05)
    loop = EventLoop()
    with flooded_pipe() as pipe:
        loop.register_input(pipe, lambda: burn(0.01))
        began, spent = time.monotonic(), time.thread_time()
        while time.monotonic() - began < 1.0:
            loop.run_once(0.1)
        share = (time.thread_time() - spent) / (time.monotonic() - began)
    loop.close()
    assert 0.01 < share < 0.5


def test_deadlines_and_other_descriptors_do_not_wait_for_a_flood() -> None:
    loop = EventLoop()
    death, died = os.pipe()
    heard: list[float] = []
    with flooded_pipe() as first, flooded_pipe() as second:
        for pipe in (first, second):
            loop.register_input(pipe, partial(loop.read_ready, pipe))
        loop.register(death, lambda: heard.append(os.read(death, 1)[0]))
        turns = 0
        while not heard:
            loop.run_once(0.1)
            turns += 1
            if turns == 200:
                os.write(died, b"x")
            assert turns < 300
    loop.close()
    os.close(death)
    os.close(died)


def test_a_round_that_takes_long_is_gone_on_with_before_the_first_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_loop, "INPUT_BURST_SECONDS", 3600.0)
    loop, read = EventLoop(), list[int]()

    def handle(number: int) -> None:
        burn(event_loop.ROUND_SECONDS)
        read.append(number)

    pipes = [os.pipe() for _ in range(3)]
    for number, (reader, writer) in enumerate(pipes):
        os.write(writer, b"x" * 10)
        loop.register_input(reader, partial(handle, number))
    for _ in range(6):
        loop.run_once(0.1)
    assert sorted(read[:3]) == sorted(read[3:6]) == [0, 1, 2]
    loop.close()
    for pipe in pipes:
        os.close(pipe[0])
        os.close(pipe[1])


def test_of_a_flood_only_what_is_there_is_the_rest() -> None:
    with flooded_pipe() as pipe:
        while not (pieces := list(read_waiting(pipe))):
            time.sleep(0)
        assert max(map(len, pieces)) <= READ_BYTES
        assert sum(map(len, pieces)) <= 1024 * 1024
        loop = EventLoop()
        loop.register_input(pipe, lambda: None)
        assert sum(map(len, loop.read_rest(pipe))) <= 1024 * 1024
        assert not loop.watches(pipe)
        assert list(loop.read_rest(pipe)) == []
        loop.close()


def test_a_large_pipe_is_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    monkeypatch.setattr(event_loop, "READ_BYTES", 1000)
    monkeypatch.setattr(event_loop, "MAX_REST_BYTES", 2500)
    thread = threading.Thread(target=os.write, args=(writer, b"x" * 4000))
    thread.start()
    thread.join()
    assert [len(piece) for piece in read_waiting(reader)] == [1000, 1000, 500]
    os.close(reader)
    os.close(writer)
