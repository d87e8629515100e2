"""The pipe of a rank's stdout or stderr, written so that lines of both can be read in the order of their printing.

The supervisor reads two pipes and cannot know which of two bytes was written first. So a write waits until the other
pipe of the device has been read. That takes about a tenth of a millisecond, and only where a program prints to both in
quick succession. All waits of a process together are bounded: a program that prints that way all the time is not made
slow, and its lines may then change places.
"""

import array
import fcntl
import io
import termios
import time
from typing import Any

#: What all waits may take together: so much at once, and this share of the time since the start.
FREE_SECONDS = 0.5
SHARE_OF_TIME = 0.01
#: The longest wait of one write: a supervisor that is busy or stopped must not hold up the program.
LONGEST_WAIT = 0.02
_POLL_SECONDS = 5e-5

_write = io.FileIO.write


class WaitBudget:
    """What the writes of a process have waited, and may wait."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._waited = 0.0

    def await_drained(self, fd: int) -> None:
        """Wait until everything in a pipe has been read, as far as the budget allows."""
        if not _unread_bytes(fd):
            return
        began = now = time.monotonic()
        left = FREE_SECONDS + SHARE_OF_TIME * (now - self._started) - self._waited
        deadline = now + min(LONGEST_WAIT, left)
        while now < deadline and _unread_bytes(fd):
            time.sleep(_POLL_SECONDS)
            now = time.monotonic()
        self._waited += now - began


class OrderedPipe(io.FileIO):
    """The write end of one of a device's two pipes. Only a write after one to the other pipe has to wait."""

    def __init__(self, fd: int, other_fd: int, budget: WaitBudget) -> None:
        super().__init__(fd, "w", closefd=False)
        self._other_fd = other_fd
        self._budget = budget
        self._other = self
        self._is_newest = False  # whether this pipe, of the two, was written last
        self.has_open_line = False  # whether what was written last is no whole line

    def write(self, data: Any, /) -> int:
        if not self._is_newest:
            self._budget.await_drained(self._other_fd)
            self._is_newest, self._other._is_newest = True, False
        self.has_open_line = data[-1:] != b"\n"
        return _write(self, data)

    @classmethod
    def make_pair(cls, out: int, err: int, budget: WaitBudget) -> tuple["OrderedPipe", "OrderedPipe"]:
        """The pipes of a device's stdout and stderr."""
        pair = cls(out, err, budget), cls(err, out, budget)
        pair[0]._other, pair[1]._other = pair[1], pair[0]
        return pair


def _unread_bytes(fd: int) -> int:
    """Bytes in a pipe that nothing has read; 0 where a program has put something else in its place."""
    count = array.array("i", [0])
    try:
        fcntl.ioctl(fd, termios.FIONREAD, count)
    except OSError:
        return 0
    return count[0]
