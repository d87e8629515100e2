"""The request for a profile that a supervisor shows its ranks: a few bytes of memory that all of them share.

A rank looks at one byte of it after each step, which costs less than a pipe that would have to be read.
"""

import contextlib
import mmap
import os

#: The number of the requested profile (0: none), and how many steps it is to record.
NUMBER, STEPS = 0, 1
_BYTES = 2
RequestBytes = bytes | mmap.mmap
#: What a process sees that cannot be asked for a profile.
NO_REQUEST: RequestBytes = bytes(_BYTES)


def create_request() -> int:
    """A file in memory, for `show_request` and `map_request`. Nothing is requested yet."""
    fd = os.memfd_create("profile")
    os.ftruncate(fd, mmap.PAGESIZE)
    return fd


def show_request(fd: int, number: int, steps: int) -> None:
    """Ask the ranks for profile `number`; 0 takes the request back."""
    os.pwrite(fd, bytes([steps]), STEPS)
    os.pwrite(fd, bytes([number]), NUMBER)


def map_request(fd: int) -> RequestBytes:
    """The request as a rank sees it. The descriptor is closed: the memory stays mapped."""
    try:
        return mmap.mmap(fd, mmap.PAGESIZE, prot=mmap.PROT_READ)
    except (OSError, ValueError):
        return NO_REQUEST
    finally:
        with contextlib.suppress(OSError):
            os.close(fd)
