"""The system calls of a box, which Python 3.11 does not have."""

import ctypes
import os
from typing import Final

CLONE_NEWNS: Final = 0x20000
CLONE_NEWIPC: Final = 0x8000000
CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWPID: Final = 0x20000000
CLONE_NEWNET: Final = 0x40000000

MS_NOSUID: Final = 0x2
MS_NODEV: Final = 0x4
MS_NOEXEC: Final = 0x8
MS_REMOUNT: Final = 0x20
MS_BIND: Final = 0x1000
MS_REC: Final = 0x4000
MS_SLAVE: Final = 0x80000

MOUNT_ATTR_RDONLY: Final = 0x1
MOUNT_ATTR_NOSUID: Final = 0x2
MOUNT_ATTR_NODEV: Final = 0x4

_AT_FDCWD: Final = -100
_AT_RECURSIVE: Final = 0x8000
_SYS_MOUNT_SETATTR: Final = 442  # the same on x86-64 and arm64
_PR_CAPBSET_DROP: Final = 24
_PR_SET_SECCOMP: Final = 22
_SECCOMP_MODE_FILTER: Final = 2
_CAPABILITY_VERSION_3: Final = 0x20080522
_LAST_CAPABILITY: Final = 63

_libc = ctypes.CDLL(None, use_errno=True)


class _MountAttr(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")]


class _FilterProgram(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def unshare_namespaces(flags: int) -> None:
    """Raises OSError: the kernel, or a limit of namespaces, does not allow it."""
    _check(_libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str | None, flags: int = 0, options: str = "") -> None:
    """Raises OSError, which names the target."""
    encoded = kind.encode() if kind is not None else None
    done = _libc.mount(os.fsencode(source), os.fsencode(target), encoded, ctypes.c_ulong(flags), options.encode())
    _check(done, f"mount {target}")


def set_mount_attributes(target: str, *, add: int = 0, clear: int = 0, recursive: bool = False) -> None:
    """Change only these attributes of a mount, or of all mounts below it (Linux 5.12).

    Raises:
        OSError: ENOSYS where the kernel is older.
    """
    attributes = _MountAttr(add, clear, 0, 0)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    flags = _AT_RECURSIVE if recursive else 0
    path = os.fsencode(target)
    done = _libc.syscall(_SYS_MOUNT_SETATTR, _AT_FDCWD, path, flags, ctypes.byref(attributes), size)
    _check(done, f"mount_setattr {target}")


def forgo_capabilities() -> None:
    """Have no program gain a capability by `exec`. For a process that still has its own."""
    for capability in range(_LAST_CAPABILITY + 1):
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break  # the kernel has no more of them


def drop_capabilities() -> None:
    """Give up all capabilities for good."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    _check(_libc.capset(header, nothing), "capset")


def filter_syscalls(program: bytes) -> None:
    """Apply a compiled filter (8 bytes an instruction) to this process and all that it starts. It must have
    no-new-privileges.

    Raises:
        OSError: the kernel refuses it.
    """
    code = _FilterProgram(len(program) // 8, program)
    _check(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(code), 0, 0), "seccomp")


def _check(done: int, what: str) -> None:
    if done != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
