"""Show a worker that is root the storage directory as root's, though its files belong to the API's account.

The API is an ordinary account, and a worker is root to make boxes. One account has to own what both write, so in the
worker's mount of the storage that account stands for root: what is root's there is the API's on the disk. The
accounts of attempts stay what they are. Linux does that since 5.12 for ext4 and XFS, later for others; not for NFS.
The entry point of the worker's container runs this before the worker.
"""

import ctypes
import os
import sys
from pathlib import Path

STORAGE = Path("/var/lib/shardyard/storage")
#: Of an engine that does not allow it.
REFUSED = (
    "shardyard: this engine, kernel or file system cannot show the worker the storage as its own ({}). Have the API "
    "run as root without capabilities instead: echo SHARDYARD_API_USER=0 >> .env && docker compose up --detach --wait"
)
_LAST_ID = 2**32 - 2
_CLONE_NEWUSER = 0x10000000
_AT_FDCWD, _AT_EMPTY_PATH = -100, 0x1000
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442  # the same on x86-64 and arm64
_OPEN_TREE_CLONE, _MOVE_MOUNT_F_EMPTY_PATH, _MOUNT_ATTR_IDMAP = 1, 4, 0x100000

_libc = ctypes.CDLL(None, use_errno=True)


class _MountAttr(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")]


def main() -> None:
    owner = STORAGE.stat().st_uid
    if owner != os.geteuid():  # else it is done, as for each check of the container's health, or the API is root, too
        try:
            map_owner(STORAGE, owner)
        except OSError as error:
            sys.exit(REFUSED.format(error))


def map_owner(directory: Path, owner: int) -> None:
    """Mount `directory` over itself, with what `owner` owns as root's. Raises OSError."""
    tree = _call("open_tree", _OPEN_TREE, _AT_FDCWD, os.fsencode(directory), _OPEN_TREE_CLONE | os.O_CLOEXEC)
    accounts = _namespace(f"{owner} 0 1\n1 1 {owner - 1}\n{owner + 1} {owner + 1} {_LAST_ID - owner}\n")
    attributes = _MountAttr(_MOUNT_ATTR_IDMAP, 0, 0, accounts)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    _call("mount_setattr", _MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, ctypes.byref(attributes), size)
    _call("move_mount", _MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(directory), _MOVE_MOUNT_F_EMPTY_PATH)
    os.close(tree)
    os.close(accounts)


def _namespace(accounts: str) -> int:
    """A descriptor of a user namespace with these accounts and groups, which no process is in. Raises OSError."""
    ready, made = os.pipe()
    done, end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        os.write(made, bytes([ctypes.get_errno() if _libc.unshare(_CLONE_NEWUSER) else 0]))
        os.read(done, 1)  # until the parent has it
        os._exit(0)
    os.close(done)
    try:
        refused = os.read(ready, 1)[0]
        if refused:
            raise OSError(refused, f"unshare: {os.strerror(refused)}")
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/{child}/{name}", "wb", buffering=0) as file:
                file.write(accounts.encode())
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        for descriptor in (ready, made, end):
            os.close(descriptor)
        os.waitpid(child, 0)


def _call(name: str, number: int, *arguments: object) -> int:
    found: int = _libc.syscall(number, *arguments)
    if found < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")
    return found


if __name__ == "__main__":
    main()
