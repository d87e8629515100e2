"""Proof that what a node carries goes where the rest of the service looks for it.

The remote has the same mark as a directory that all mount (`jobs.files.identity`), and the local root has a copy of it:
so a node knows without asking anybody that its own disk is still there, and belongs to this service.
"""

import uuid
from contextlib import suppress
from pathlib import Path

from jobs import store
from jobs.files.identity import NONCE_FILE, StorageMismatch
from jobs.storage.remote import OffsetMismatch, RemoteElsewhere, RemoteStorage, UnknownFile
from jobs.store.client import RedisStore
from jobs.support.fs import replace_file

_NONCE_BYTES = 64


def prove_remote(control: RedisStore, remote: RemoteStorage, root: Path) -> None:
    """Check that the remote is the service's storage, and `root` what this node carries to it.

    Raises:
        StorageMismatch: one of them belongs to another service, or the remote is not where this one keeps its files.
        RemoteError: the remote does not answer.
        Unavailable: the control Redis does not answer.
        OSError: the local root cannot be made or written.
    """
    try:
        nonce = _read_nonce(remote)
    except RemoteElsewhere as error:
        raise StorageMismatch(str(error)) from error
    if control.run(store.identify_storage(nonce)) != nonce:
        raise StorageMismatch("SHARDYARD_STORAGE leads to the storage of another service; name that of this one")
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    mark = root / NONCE_FILE
    if mark.exists() and mark.read_text() != nonce:
        raise StorageMismatch(
            f"{root} has files that are to be carried to another service; give this worker another SHARDYARD_STATE_DIR"
        )
    replace_file(mark, nonce.encode())


def _read_nonce(remote: RemoteStorage) -> str:
    """The remote's nonce, made if need be: an append that begins a file succeeds once."""
    with suppress(UnknownFile):
        return _read(remote)
    with suppress(OffsetMismatch):  # another node, or the API, was faster
        remote.append(NONCE_FILE, 0, uuid.uuid4().hex.encode())
    return _read(remote)


def _read(remote: RemoteStorage) -> str:
    return remote.read(NONCE_FILE, 0, _NONCE_BYTES).decode(errors="replace")
