"""What a supervisor asks its ranks for while they run: a few bytes of memory that all of them share.

A rank looks at one byte of it after each step, which costs less than a pipe that would have to be read. Its thread that
sends records looks at another one, also while the program hangs.
"""

import contextlib
import ctypes
import mmap
import os
from typing import Protocol

#: The number of the requested profile (0: none), and how many steps it is to record.
NUMBER, STEPS = 0, 1
#: The number of the latest request for the collectives that each rank has called (0: none).
CALLS = 2
#: Whether scripts wait with their next checkpoint.
HOLD = 3
_BYTES = 4
_FAILED = ctypes.c_void_p(-1).value


class RequestBytes(Protocol):
    def __getitem__(self, index: int, /) -> int: ...


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


def request_calls(fd: int, number: int) -> None:
    """Ask the ranks which collectives they have called."""
    os.pwrite(fd, bytes([number]), CALLS)


def hold_saves(fd: int, is_held: bool) -> None:
    """Have scripts wait with their next checkpoint, or not any more."""
    os.pwrite(fd, bytes([is_held]), HOLD)


def map_request(fd: int) -> RequestBytes:
    """The request as a rank sees it. The descriptor is closed: the memory stays mapped. Not by `mmap.mmap`, which keeps
    a descriptor of its own, where a program does not expect one."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
    address = libc.mmap(None, mmap.PAGESIZE, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    with contextlib.suppress(OSError):
        os.close(fd)
    return NO_REQUEST if address in (None, _FAILED) else (ctypes.c_ubyte * _BYTES).from_address(address)
