"""A bucket that a service keeps its files in: a directory with all of them for a back-up, or filled by a restore."""

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.files.identity import NONCE_FILE
from jobs.storage.remote import RemoteError, UnknownFile, digest_file, fetch_file
from jobs.storage.target import parse_target
from shardyard.contract.errors import InvalidRequest
from shardyard.service.backup.refusals import BackupError

if TYPE_CHECKING:
    from jobs.storage.objects import ObjectStorage

#: Files that are on their way at a time.
FILES_AT_ONCE = 8


class BackupBucket:
    """Raises BackupError where the bucket does not answer, or refuses."""

    def __init__(self, remote: "ObjectStorage") -> None:
        self._remote = remote

    def fetch_all(self, directory: Path) -> None:
        """Have its files in a directory. What is deleted meanwhile is left out."""
        with _bucket_errors(), ThreadPoolExecutor(FILES_AT_ONCE) as pool:
            for _ in pool.map(lambda path: self._fetch(path, directory / path), self._remote.all_names()):
                pass

    def _fetch(self, path: str, into: Path) -> None:
        into.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(UnknownFile):
            fetch_file(self._remote, path, into)

    def require_empty(self) -> None:
        """Raises:
        InvalidRequest: a service keeps its files there.
        """
        with _bucket_errors():
            if self._remote.size(NONCE_FILE) is not None:
                raise InvalidRequest("this bucket holds a service already; a restore needs another, or a new prefix")

    def fill(self, directory: Path) -> None:
        """Put all files of a directory there, the mark of the storage last: without it no process uses them."""
        files = sorted(path for path in directory.rglob("*") if path.is_file() and path.name != NONCE_FILE)
        with _bucket_errors(), ThreadPoolExecutor(FILES_AT_ONCE) as pool:
            for _ in pool.map(lambda file: self._put(file, directory), files):
                pass
            if (directory / NONCE_FILE).exists():
                self._put(directory / NONCE_FILE, directory)

    def _put(self, file: Path, directory: Path) -> None:
        self._remote.put(str(file.relative_to(directory)), file, digest_file(file))


@contextmanager
def removed_afterwards(directory: Path) -> Iterator[Path]:
    """A new directory for as long as it is entered."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(mode=0o700, parents=True)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def find_bucket(storage: Path | None) -> BackupBucket | None:
    """The bucket that a value of SHARDYARD_STORAGE names; None where it names none.

    Raises:
        InvalidRequest: it names one that there cannot be.
    """
    if storage is None or not str(storage).startswith("s3:"):
        return None
    try:
        target = parse_target(str(storage), Path())
        from jobs.storage.objects import ObjectStorage  # obstore is for whoever has chosen it

        return BackupBucket(ObjectStorage(target.url))
    except ValueError as error:
        raise InvalidRequest(str(error)) from error


@contextmanager
def _bucket_errors() -> Iterator[None]:
    try:
        yield
    except RemoteError as error:
        raise BackupError(f"the bucket does not answer, or refuses: {error}") from error
