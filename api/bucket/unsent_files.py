"""Files that this process writes to its own disk and uploads to the bucket a moment later: the audit.

An entry is on this host's disk before what it is about is answered. It comes to the bucket within seconds, or, after an
outage of either, from the process that has this directory next.
"""

import os
import time
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import structlog

from api.bucket.bucket_files import bucket_errors
from jobs.storage.remote import CHUNK_BYTES, OffsetMismatch, digest_file

if TYPE_CHECKING:  # obstore is for whoever has chosen it
    from jobs.storage.objects import ObjectStorage

log = structlog.get_logger(__name__)

#: A file of another day than this, written to last so long ago, is put whole and removed here.
CLOSED_SECONDS = 3600.0


class UnsentFiles:
    """Paths below `directory` are those of the storage."""

    def __init__(self, remote: "ObjectStorage", directory: Path) -> None:
        self.directory = directory
        self._remote = remote
        self._sent: dict[str, int] = {}
        self._sending = Lock()

    def send(self) -> None:
        """Append what files have grown by, and finish those of days that are over.

        Raises:
            StorageUnavailable, OSError: the bucket, or this host's disk, refuses.
        """
        with self._sending:
            self._send()

    def _send(self) -> None:
        today = time.strftime("%Y-%m-%d", time.gmtime())
        for path in sorted(one for one in self.directory.rglob("*") if one.is_file()):
            key = str(path.relative_to(self.directory))
            with bucket_errors():
                self._append(path, key)
                if path.parent.name != today and time.time() - path.stat().st_mtime > CLOSED_SECONDS:
                    self._remote.put(key, path, digest_file(path))
                    path.unlink()
                    self._sent.pop(key, None)

    def _append(self, path: Path, key: str) -> None:
        if key not in self._sent:
            self._sent[key] = self._remote.size(key) or 0
        with path.open("rb") as file:
            file.seek(self._sent[key])
            while data := file.read(CHUNK_BYTES):
                try:
                    self._remote.append(key, self._sent[key], data)
                except OffsetMismatch as error:  # the bucket has lost what it had, or somebody has changed it
                    log.error("unsent_file_differs", path=key, here=self._sent[key], there=error.size)
                    self._remote.put(key, path, digest_file(path))
                    self._sent[key] = os.fstat(file.fileno()).st_size
                    return
                self._sent[key] += len(data)
