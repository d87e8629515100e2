"""Proof that every part of the service sees the same storage directory.

A file in it holds a nonce, and the control Redis knows it. A node or an API process whose directory
has another nonce looks at another directory, and would keep logs and reports where nobody finds them.
"""

import contextlib
import errno
import os
import tempfile
import uuid
from pathlib import Path

from jobs import store
from jobs.store.client import RedisStore
from shardyard.contract.errors import ShardyardError

NONCE_FILE = ".shardyard-storage"
#: Of every process that keeps files: what the service has of its users is for the service alone.
UMASK = 0o077


class StorageMismatch(ShardyardError):
    code = "storage_mismatch"


def prove_storage(control: RedisStore, storage: Path) -> None:
    """Check that `storage` is the service's directory; make it so if nobody has started before.

    Raises:
        StorageMismatch: it is another directory, or another user's.
        FormatMismatch: the control Redis is that of another version of the service.
        Unavailable: the control Redis does not answer.
        OSError: the directory cannot be made or written.
    """
    storage.mkdir(parents=True, exist_ok=True)
    created = _write_nonce(storage)
    _prove_user(storage)
    nonce = (storage / NONCE_FILE).read_text()
    if control.run(store.identify_storage(nonce)) == nonce:
        return
    if created:
        (storage / NONCE_FILE).unlink()
    raise StorageMismatch(
        f"{storage} is not the storage directory of this service; "
        "mount that directory here, and name it in SHARDYARD_STORAGE"
    )


def check_storage(storage: Path) -> None:
    """Check again that a proven directory is still mounted.

    Raises:
        StorageMismatch: it has lost its mark.
        OSError: it does not answer.
    """
    try:
        (storage / NONCE_FILE).stat()
    except FileNotFoundError:
        raise StorageMismatch(
            f"{storage} is no longer the storage directory of this service; check that it is mounted"
        ) from None


def _prove_user(storage: Path) -> None:
    """Check that this process is the user that created the marker, since no other user can read the service's files."""
    try:
        with tempfile.TemporaryFile(dir=storage) as draft:  # a network file system may map root to another user
            ours = os.fstat(draft.fileno()).st_uid
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):  # it was proven before the disk was full
            return
        raise
    theirs = (storage / NONCE_FILE).stat().st_uid
    if ours != theirs:
        raise StorageMismatch(
            f"the files in {storage} belong to user {theirs}, and this process runs as user {ours}; "
            "run the API and all nodes as the same user"
        )


def _write_nonce(storage: Path) -> bool:
    """Put a nonce into a directory that has none; False when it has. Whole or not at all, and only once,
    however many start together."""
    nonce = uuid.uuid4().hex
    draft = storage / f"{NONCE_FILE}.{nonce}"
    if (storage / NONCE_FILE).exists():
        return False
    draft.write_text(nonce)
    try:
        with contextlib.suppress(FileExistsError):
            os.link(draft, storage / NONCE_FILE)
            return True
        return False
    finally:
        draft.unlink()
