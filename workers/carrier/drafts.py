"""What the ranks of other nodes have saved for a checkpoint: their nodes put it at the remote, and the leader, which
puts the checkpoint together, fetches it from there."""

import errno
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic

from jobs.protocol.records import SavedFile
from jobs.storage.remote import RemoteError, RemoteStorage, RemoteUnavailable, UnknownFile, digest_file
from workers.carrier.checkpoints import fetch_checked

#: How long the parts of a checkpoint may take to arrive, and how often that is looked for.
ARRIVE_SECONDS, POLL_SECONDS = 120.0, 0.3


class DraftMissing(RemoteError):
    """A file that a rank has saved did not arrive."""


def fetch_draft(remote: RemoteStorage, prefix: str, into: Path, files: Sequence[SavedFile]) -> None:
    """Have the files that ranks of another node have saved in a directory, each as they have described it.

    Raises:
        DraftMissing: one has not arrived in time.
        RemoteError: the remote refuses.
        OSError: there is no room here.
    """
    into.mkdir(mode=0o700, parents=True, exist_ok=True)
    deadline = monotonic() + ARRIVE_SECONDS
    for file in files:
        while not _has_arrived(remote, f"{prefix}/{file.name}", into / file.name, file):
            if monotonic() > deadline:
                raise DraftMissing(f"{file.name} of another node has not arrived within {ARRIVE_SECONDS:g} s")
            threading.Event().wait(POLL_SECONDS)


def await_draft(directory: Path, files: Sequence[SavedFile]) -> None:
    """Wait for what ranks of a node have saved that brings its files to the storage which is mounted here: each file as
    they have described it.

    Raises:
        OSError: one has not arrived in time.
    """
    deadline = monotonic() + ARRIVE_SECONDS
    for file in files:
        while not _is_whole(directory / file.name, file):
            if monotonic() > deadline:
                raise TimeoutError(
                    errno.ETIMEDOUT, f"{file.name} of another node has not arrived within {ARRIVE_SECONDS:g} s"
                )
            threading.Event().wait(POLL_SECONDS)


def _is_whole(path: Path, wanted: SavedFile) -> bool:
    with suppress(FileNotFoundError):
        return path.stat().st_size == wanted.bytes and digest_file(path) == wanted.sha256
    return False


def _has_arrived(remote: RemoteStorage, path: str, into: Path, wanted: SavedFile) -> bool:
    try:
        if remote.size(path) != wanted.bytes:
            return False
        fetch_checked(remote, path, into)
    except (RemoteUnavailable, UnknownFile):
        return False
    if digest_file(into) == wanted.sha256:
        return True
    into.unlink()  # it was put while the rank still wrote it, and is put again
    return False
