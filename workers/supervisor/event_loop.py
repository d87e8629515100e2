"""Waits for pipes and pidfds, and calls the handler of each one that is ready."""

import array
import fcntl
import os
import selectors
import termios
from collections.abc import Callable, Iterator

READ_BYTES = 256 * 1024


class EventLoop:
    """A selector over descriptors with handlers. It never closes a descriptor that it was given."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def register(self, fd: int, handle: Callable[[], object]) -> None:
        self._selector.register(fd, selectors.EVENT_READ, handle)

    def unregister(self, fd: int) -> None:
        """Stop watching a descriptor. It need not be registered."""
        if self.watches(fd):
            self._selector.unregister(fd)

    def watches(self, fd: int) -> bool:
        return fd in self._selector.get_map()

    def run_once(self, timeout: float) -> None:
        """Wait at most `timeout` seconds, and handle what is ready."""
        for key, _ in self._selector.select(timeout):
            if self.watches(key.fd):  # an earlier handler of this round may have unregistered it
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
        """Everything that a process had written before it died; the pipe is unregistered afterwards."""
        while self.watches(fd):
            data = self.read_ready(fd)
            if not data:
                self.unregister(fd)
                return
            yield data

    def close(self) -> None:
        self._selector.close()


def read_waiting(pipe: int) -> bytes:
    """The bytes that are in a pipe now and no more, even where a process goes on writing to it."""
    count = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return os.read(pipe, count[0]) if count[0] else b""
