"""Waits for pipes and pidfds, and calls the handler of each one that is ready.

What ranks send is read no faster than a share of one core allows, beyond a burst: whoever writes more waits for room in
a pipe, and neither other jobs nor the deadlines of this loop wait for them.
"""

import array
import fcntl
import os
import selectors
import termios
import time
from collections import deque
from collections.abc import Callable, Iterator

READ_BYTES = 256 * 1024
#: What is read of a pipe whose writer is dead. It can hold more only where its size was changed.
MAX_REST_BYTES = 16 * 1024 * 1024
#: The share of a core for what ranks send, and the seconds of a core that may be spent at once.
INPUT_SHARE = 0.25
INPUT_BURST_SECONDS = 1.0
#: After so many seconds of a core the loop looks at its clock and at the other descriptors before it reads on.
ROUND_SECONDS = 0.05


class CpuPace:
    """A bucket of processor time of this thread, which fills up while time goes by."""

    def __init__(self, share: float, burst_seconds: float) -> None:
        self._share = share
        self._burst = self._left = burst_seconds
        self._filled_at = time.monotonic()

    def spend(self, seconds: float) -> None:
        self._left -= seconds

    def seconds_to_wait(self) -> float:
        """Until there is something left to spend; 0: there is."""
        now = time.monotonic()
        self._left = min(self._burst, self._left + (now - self._filled_at) * self._share)
        self._filled_at = now
        return max(0.0, -self._left / self._share)


class EventLoop:
    """A selector over descriptors with handlers. It never closes a descriptor that it was given."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._inputs = selectors.DefaultSelector()  # itself a descriptor that is ready when one of them is
        self._hears_inputs = False
        self._ready: deque[int] = deque()  # inputs that are not read yet in this round
        self._pace = CpuPace(INPUT_SHARE, INPUT_BURST_SECONDS)
        self.holds_inputs = False  # what ranks write is not read: there is no room for it elsewhere

    def register(self, fd: int, handle: Callable[[], object]) -> None:
        self._selector.register(fd, selectors.EVENT_READ, handle)

    def register_input(self, fd: int, handle: Callable[[], object]) -> None:
        """Watch a descriptor to which ranks write as much as they like."""
        self._inputs.register(fd, selectors.EVENT_READ, handle)

    def unregister(self, fd: int) -> None:
        """Stop watching a descriptor. It need not be registered; those of ranks on other nodes are none at all."""
        if fd < 0:
            return
        for selector in (self._selector, self._inputs):
            if fd in selector.get_map():
                selector.unregister(fd)

    def watches(self, fd: int) -> bool:
        return fd >= 0 and (fd in self._selector.get_map() or fd in self._inputs.get_map())

    def run_once(self, timeout: float) -> None:
        """Wait at most `timeout` seconds, and handle what is ready."""
        pause = self._pace.seconds_to_wait()
        self._hear_inputs(wanted=not pause and not self.holds_inputs)
        for key, _ in self._selector.select(min(timeout, pause) if pause else timeout):
            if key.fd in self._selector.get_map():  # an earlier handler of this round may have unregistered it
                key.data()

    def read_ready(self, fd: int) -> bytes:
        """The bytes that are ready now; b"" at the end of the pipe, which is then unregistered."""
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return b""
        if not data:
            self.unregister(fd)
        return data

    def read_rest(self, fd: int) -> Iterator[bytes]:
        """What a process had written before it died; the pipe is unregistered afterwards. Whoever else writes to it is
        not waited for."""
        if self.watches(fd):
            self.unregister(fd)
            yield from read_waiting(fd)

    def close(self) -> None:
        self._inputs.close()
        self._selector.close()

    def _hear_inputs(self, *, wanted: bool) -> None:
        if wanted != self._hears_inputs:
            self._hears_inputs = wanted
            inputs = self._inputs.fileno()
            if wanted:
                self._selector.register(inputs, selectors.EVENT_READ, self._handle_inputs)
            else:
                self._selector.unregister(inputs)

    def _handle_inputs(self) -> None:
        began, spent = time.thread_time(), 0.0
        self._ready = self._ready or deque(key.fd for key, _ in self._inputs.select(0))
        while self._ready and spent < ROUND_SECONDS:
            key = self._inputs.get_map().get(self._ready.popleft())
            if key is not None:
                key.data()
            spent = time.thread_time() - began
        self._pace.spend(spent)


def read_waiting(pipe: int) -> Iterator[bytes]:
    """The bytes that are in a pipe now and no more, in pieces, even where a process goes on writing to it."""
    count = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    left = min(count[0], MAX_REST_BYTES)
    while left > 0 and (data := os.read(pipe, min(left, READ_BYTES))):
        left -= len(data)
        yield data
