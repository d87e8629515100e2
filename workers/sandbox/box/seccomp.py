"""The filter of system calls in a box: what container engines refuse by default, compiled by libseccomp.

A job may still do everything to itself and its own processes, but not make namespaces, mount, trace, load programs into
the kernel, use its keyrings, set clocks, or talk to the hypervisor. What is refused fails with EPERM; `clone3` and
`io_uring_*` with ENOSYS, as of an older kernel, since libraries then use what came before them.
"""

import ctypes
import errno
import os
import socket
from typing import Final

from workers.sandbox.box.syscalls import CLONE_NEWIPC, CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUSER

#: By what they are for; a name that the machine's libseccomp does not know is skipped.
REFUSED: Final = {
    "namespaces and mounts": "unshare setns mount umount umount2 pivot_root chroot mount_setattr move_mount open_tree "
    "fsopen fsmount fsconfig fspick open_tree_attr listmount statmount",
    "other processes": "ptrace kcmp process_madvise perf_event_open",
    "the kernel": "bpf init_module finit_module delete_module create_module query_module get_kernel_syms kexec_load "
    "kexec_file_load reboot swapon swapoff acct quotactl quotactl_fd sysfs _sysctl uselib ustat nfsservctl "
    "lookup_dcookie syslog vhangup fanotify_init userfaultfd",
    "keyrings": "add_key request_key keyctl",
    "clocks": "settimeofday stime clock_settime clock_settime64 clock_adjtime clock_adjtime64 adjtimex",
    "hardware and names": "ioperm iopl vm86 vm86old modify_ldt sethostname setdomainname",
    "files by handle": "open_by_handle_at name_to_handle_at",
}
#: These look as if the kernel were older than they are.
UNKNOWN: Final = "clone3 io_uring_setup io_uring_enter io_uring_register"
#: Flags of `clone` that make namespaces; the last one is a cgroup namespace.
_NAMESPACES: Final = CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | 0x4000000 | 0x2000000

#: Kinds of sockets that no network namespace holds: those of a virtual machine reach its host and whatever runs beside.
_UNBOUND_FAMILIES: Final = (socket.AF_VSOCK,)

_ALLOW: Final = 0x7FFF0000
_ERRNO: Final = 0x00050000
_EQUAL: Final = 4
_MASKED_EQUAL: Final = 7
_UNKNOWN_NAME: Final = -1


class _ArgumentComparison(ctypes.Structure):
    _fields_ = [("argument", ctypes.c_uint), ("operator", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64)]


def compile_filter() -> bytes:
    """The filter as the kernel takes it.

    Raises:
        OSError: this host has no libseccomp, or that cannot compile it.
    """
    library = ctypes.CDLL("libseccomp.so.2")
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(_ALLOW)))
    if not context:
        raise OSError(errno.ENOMEM, "libseccomp: no filter could be made")
    try:
        for names in REFUSED.values():
            for name in names.split():
                _add_rule(library, context, name, errno.EPERM)
        for name in UNKNOWN.split():
            _add_rule(library, context, name, errno.ENOSYS)
        for bit in (1 << n for n in range(32) if _NAMESPACES >> n & 1):
            _add_rule(library, context, "clone", errno.EPERM, _ArgumentComparison(0, _MASKED_EQUAL, bit, bit))
        for family in _UNBOUND_FAMILIES:
            _add_rule(library, context, "socket", errno.EPERM, _ArgumentComparison(0, _EQUAL, family, 0))
        return _export_program(library, context)
    finally:
        library.seccomp_release(context)


def _add_rule(
    library: ctypes.CDLL,
    context: ctypes.c_void_p,
    name: str,
    number: int,
    comparison: _ArgumentComparison | None = None,
) -> None:
    syscall = library.seccomp_syscall_resolve_name(name.encode())
    if syscall == _UNKNOWN_NAME:
        return
    comparisons = (_ArgumentComparison * 1)(comparison) if comparison is not None else None
    count = 0 if comparison is None else 1
    added = library.seccomp_rule_add_array(context, ctypes.c_uint32(_ERRNO | number), syscall, count, comparisons)
    if added != 0:
        raise OSError(-added, f"libseccomp: no rule for {name}: {os.strerror(-added)}")


def _export_program(library: ctypes.CDLL, context: ctypes.c_void_p) -> bytes:
    file = os.memfd_create("filter")
    try:
        exported = library.seccomp_export_bpf(context, file)
        if exported != 0:
            raise OSError(-exported, f"libseccomp: {os.strerror(-exported)}")
        return os.pread(file, os.fstat(file).st_size, 0)
    finally:
        os.close(file)
