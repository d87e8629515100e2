"""The kernel's keyrings, which processes of one account or session share. A kernel without them has nothing to leave,
and nothing to empty."""

import ctypes
import os
from typing import Final

_SYS_KEYCTL: Final = {"x86_64": 250, "aarch64": 219}
_JOIN_SESSION_KEYRING: Final = 1
_CLEAR: Final = 7
_GET_PERSISTENT: Final = 22
_PROCESS_KEYRING, _USER_KEYRING, _USER_SESSION_KEYRING = -2, -4, -5

_libc = ctypes.CDLL(None)


def join_new_keyring() -> None:
    """Leave the session keyring that the process has inherited."""
    _call_keyctl(_JOIN_SESSION_KEYRING)


def clear_user_keyrings() -> None:
    """Empty the keyrings that all processes of this account share, also with those that have ended."""
    persistent = _call_keyctl(_GET_PERSISTENT, -1, _PROCESS_KEYRING)
    for keyring in (_USER_KEYRING, _USER_SESSION_KEYRING, *([persistent] if persistent > 0 else [])):
        _call_keyctl(_CLEAR, keyring)


def _call_keyctl(operation: int, first: int = 0, second: int = 0) -> int:
    """-1 where the kernel refuses it."""
    number = _SYS_KEYCTL.get(os.uname().machine)
    return -1 if number is None else int(_libc.syscall(number, operation, first, second))
