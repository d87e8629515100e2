"""What an account has left on the host outside of its attempt's own directories: for attempts without a box, whose
account no other attempt has. In a box there is nothing: it had all of that for itself, and is gone."""

import contextlib
import ctypes
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from jobs.support import fs
from jobs.support.directory_cursor import walk_directories

#: Where every account may leave files.
SHARED_DIRECTORIES = ("/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/run/lock")  # noqa: S108
_SYSV_IPC = Path("/proc/sysvipc")
_IPC_RMID = 0
_libc = ctypes.CDLL(None)
#: By the kernel's list of them, and the column of that which has their number.
_REMOVERS: dict[str, tuple[str, Callable[[int], int]]] = {
    "shm": ("shmid", lambda number: int(_libc.shmctl(number, _IPC_RMID, None))),
    "sem": ("semid", lambda number: int(_libc.semctl(number, 0, _IPC_RMID))),
    "msg": ("msqid", lambda number: int(_libc.msgctl(number, _IPC_RMID, None))),
}


def remove_leavings(uid: int) -> None:
    """Remove files of an account from the directories that everybody shares, and its System V memory, semaphores and
    queues. Its processes must be dead. What cannot be removed stays."""
    for directory in {os.path.realpath(path) for path in (*SHARED_DIRECTORIES, tempfile.gettempdir())}:
        with contextlib.suppress(OSError):
            _remove_files(Path(directory), uid)
    for kind, (column, remove) in _REMOVERS.items():
        for number in _find_objects(_SYSV_IPC / kind, column, uid):
            remove(number)


def _remove_files(top: Path, uid: int) -> None:
    """Whatever belongs to the account, in `top` and in directories below that everybody may write to."""
    disk = top.stat().st_dev

    def is_open_to_all(directory: int, name: str) -> bool:
        try:
            found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except OSError:
            return False
        return stat.S_ISDIR(found.st_mode) and bool(found.st_mode & stat.S_IWOTH) and found.st_dev == disk

    for directory, names in walk_directories(top, is_open_to_all):
        for name in names:
            with contextlib.suppress(OSError):
                if os.stat(name, dir_fd=directory, follow_symlinks=False).st_uid == uid:
                    fs.remove_tree(Path(f"/proc/self/fd/{directory}", name))  # others may move what is above


def _find_objects(listing: Path, column: str, uid: int) -> list[int]:
    """Numbers of the objects that an account has made, or was given."""
    try:
        header, *lines = listing.read_text().splitlines()
    except (OSError, ValueError):  # a kernel without them
        return []
    found = (dict(zip(header.split(), line.split(), strict=False)) for line in lines)
    return [int(fields[column]) for fields in found if str(uid) in (fields["uid"], fields["cuid"])]
