"""Proof that every part of the service sees the same storage directory.

A file in it holds a nonce that the control Redis knows. Whoever starts first writes both; a node or
an API process that finds another nonce, or none, looks at another directory, and would keep logs and
reports where nobody finds them.
"""

import contextlib
import uuid
from pathlib import Path

from jobs import store
from jobs.errors import ShardyardError
from jobs.redis_store import RedisStore

NONCE_FILE = ".shardyard-storage"


class StorageMismatch(ShardyardError):
    code = "storage_mismatch"


def prove(control: RedisStore, storage: Path) -> None:
    """Check that `storage` is the service's directory; make it so if nobody has started before.

    Raises:
        StorageMismatch: it is another directory.
        Unavailable: the control Redis does not answer.
        OSError: the directory cannot be made or written.
    """
    storage.mkdir(parents=True, exist_ok=True)
    found = read_nonce(storage)
    proposed = found or uuid.uuid4().hex
    known = control.run(store.storage_nonce(proposed))
    if known != proposed:
        raise StorageMismatch(
            f"{storage} is not the directory that the rest of the service keeps its files in; "
            "mount that one here, and name it in SHARDYARD_STORAGE"
        )
    if not found:
        (storage / NONCE_FILE).write_text(proposed)


def read_nonce(storage: Path) -> str:
    """The nonce of a storage directory; "" when it has none."""
    with contextlib.suppress(FileNotFoundError):
        return (storage / NONCE_FILE).read_text().strip()
    return ""
