"""What a process sets for itself with prctl(2), for which Python has no names, and the descriptors that it keeps."""

import contextlib
import ctypes
import os
import resource
import signal
from collections.abc import Container
from typing import Final

#: Exit code of a process of an attempt that came to nothing, and left its traceback in the attempt's log.
EXIT_BROKEN: Final = 99

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_SET_NAME: Final = 15
_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_SET_NO_NEW_PRIVS: Final = 38
_NAME_BYTES: Final = 15

_libc = ctypes.CDLL(None, use_errno=True)


def name_process(name: str) -> None:
    """Set what `ps -o comm` and top show of this process: forked from one server, all look alike otherwise."""
    _set_option(_PR_SET_NAME, name.encode()[:_NAME_BYTES])


def adopt_orphans(adopt: bool = True) -> None:
    """Become the parent of descendants whose own parent dies, or leave them to another process again."""
    _set_option(_PR_SET_CHILD_SUBREAPER, int(adopt))


def ask_for_death_signal(number: signal.Signals) -> None:
    """Get a signal when the parent dies, which it may have done before this. A change of account forgets it."""
    _set_option(_PR_SET_PDEATHSIG, number)


def keep_own_proc_files() -> None:
    """Own `/proc/self` after a change of account, as any process does that never had another one."""
    _set_option(_PR_SET_DUMPABLE, 1)


def drop_privileges() -> None:
    """What the process starts gets no more rights than it has itself, and a crash leaves no core file."""
    _set_option(_PR_SET_NO_NEW_PRIVS, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def close_all_but(kept: Container[int]) -> None:
    """Close every descriptor above 2 that is not `kept`."""
    for fd in [int(name) for name in os.listdir("/proc/self/fd")]:
        if fd > 2 and fd not in kept:
            with contextlib.suppress(OSError):
                os.close(fd)


def _set_option(option: int, value: int | bytes) -> None:
    _libc.prctl(option, value, 0, 0, 0)
