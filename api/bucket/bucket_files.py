"""The files of a service whose storage is a bucket, as its API sees them: copies below `root`, fetched when wanted.

What a node has put whole is final, so a copy of it is never looked at again. Logs and metrics grow: their newest
frames come from the telemetry Redis, and the bucket is asked only for what that does not have any more. Lists always
come from the bucket.
"""

import errno
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final, TypeVar

import structlog

from api.bucket.cache_room import DRAFT_SUFFIX, CacheRoom
from api.bucket.growing_copy import ForeignBytes, GrowingCopy
from api.bucket.stream_tail import StreamTails
from jobs.files import paths
from jobs.files.profiles import RECORD_NAME
from jobs.protocol import names
from jobs.storage.remote import RemoteError, RemoteFull, UnknownFile, digest_file
from jobs.support import fs
from shardyard.contract.errors import StorageUnavailable

if TYPE_CHECKING:  # obstore is for whoever has chosen it
    from jobs.storage.objects import ObjectStorage, StoredObject

log = structlog.get_logger(__name__)

T = TypeVar("T")

#: A request is given up after so long, and repeated for so long: somebody waits for it.
REQUEST_SECONDS, RETRY_SECONDS = 20.0, 5.0
#: What the bucket has of a growing file is asked for so often, unless something is known to be missing.
LOOK_SECONDS, MAX_LOOKS = 2.0, 4096
#: Files that are fetched at a time for one request.
FETCHED_AT_ONCE = 8
#: What a caller is told to wait before it asks again.
RETRY_AFTER: Final = 5


class BucketFiles:
    """May be used by several threads. All raise StorageUnavailable where the bucket does not answer, or refuses, and
    OSError where this host's disk does."""

    def __init__(self, remote: "ObjectStorage", room: CacheRoom, tails: StreamTails) -> None:
        self.remote = remote
        self.root = room.files
        self.room = room
        self._tails = tails
        self._locks = tuple(Lock() for _ in range(256))
        self._looked_at: dict[tuple[Path, bool], float] = {}  # by file, and whether its attempt was over

    def close(self) -> None:
        self._tails.close()
        self.room.close()

    # -- whole files -----------------------------------------------------------------------------------

    def bring(self, path: Path) -> None:
        """Have a copy of a file, if there is such a file."""
        if self.room.touch(path):
            return
        with self._held(path):
            if not self.room.touch(path):
                self._fetch(path)

    def bring_all(self, wanted: Sequence[Path]) -> None:
        missing = [path for path in wanted if not self.room.touch(path)]
        self._at_once(self.bring, missing)

    def _fetch(self, path: Path) -> None:
        draft = path.with_name(f".{path.name}{DRAFT_SUFFIX}")
        draft.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with bucket_errors(), draft.open("wb") as file:
                for part in self.remote.read_parts(self.key_of(path), whole=True):
                    self.room.add(len(part))
                    file.write(part)
            draft.replace(path)
        except UnknownFile:
            draft.unlink(missing_ok=True)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise

    def bring_profiles(self, attempt: Path) -> None:
        """The records of an attempt's profiles."""
        wanted = [self.root / one.path for one in self.list_files(paths.profiles_dir(attempt))]
        self.bring_all([path for path in wanted if path.name == RECORD_NAME])

    def exists(self, path: Path) -> bool:
        return path.exists() or self.find(path) is not None

    def find(self, path: Path) -> "StoredObject | None":
        with bucket_errors():
            return self.remote.find(self.key_of(path), whole=True)

    def modified_at(self, path: Path) -> float | None:
        found = self.find(path)
        return None if found is None else found.modified

    def publish(self, path: Path) -> None:
        """Put a file that was written here into the bucket. Raises OSError (ENOSPC) where that is full."""
        self.room.add(path.stat().st_size)
        with bucket_errors():
            self.remote.put(self.key_of(path), path, digest_file(path))

    def remove(self, path: Path) -> None:
        """Remove a file, or all below a directory. It may be gone already."""
        with bucket_errors():
            self.remote.remove(self.key_of(path))
        fs.remove_path(path)

    # -- lists -----------------------------------------------------------------------------------------

    def list_names(self, directory: Path) -> list[str]:
        with bucket_errors():
            return self.remote.list_names(self.key_of(directory))

    def list_files(self, directory: Path) -> "list[StoredObject]":
        with bucket_errors():
            return list(self.remote.list_files(self.key_of(directory)))

    def list_older(self, directory: Path, before: float) -> list[Path]:
        return [self.root / one.path for one in self.list_files(directory) if one.modified < before]

    def count_bytes(self, directory: Path) -> int:
        with bucket_errors():
            return sum(one.bytes for one in self.remote.list_files(self.key_of(directory)))

    # -- files that grow -------------------------------------------------------------------------------

    def bring_logs(self, attempt: Path, devices: Sequence[int], *, is_over: bool) -> None:
        """Have what there is of the logs of an attempt's devices. `is_over`: the attempt has ended."""
        tenant, job, number = attempt.parts[-3:]
        keys = {paths.log_file(attempt, one): names.log_stream(tenant, job, int(number), one) for one in devices}
        self._bring_growing(keys, is_over)

    def bring_metrics(self, attempt: Path, *, is_over: bool) -> None:
        tenant, job, number = attempt.parts[-3:]
        self._bring_growing({paths.metrics_file(attempt): names.metric_stream(tenant, job, int(number))}, is_over)

    def bring_rows(self, directory: Path) -> None:
        """Have all files of a directory that are appended to by others, as far as they are."""

        def bring(one: "StoredObject") -> None:
            path = self.root / one.path
            with self._held(path), bucket_errors():
                size = path.stat().st_size if path.exists() else 0
                if size < one.bytes:
                    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                    with path.open("ab") as file:
                        for part in self.remote.read_parts(one.path, size):
                            file.write(part)

        self._at_once(bring, self.list_files(directory))

    def _bring_growing(self, streams: dict[Path, str], is_over: bool) -> None:
        left = [(path, key) for path, key in streams.items() if not self._extend_by_stream(path, key, is_over)]
        self._at_once(lambda one: self._extend_by_bucket(*one, is_over), left)

    def _extend_by_stream(self, path: Path, key: str, is_over: bool) -> bool:
        """Add what the telemetry Redis has. True: that is all there is, as far as is known."""
        with self._held(path):
            copy = GrowingCopy(path)
            self.room.touch(path)
            if copy.is_sealed:
                return True
            goes_on = self._add_tail(copy, key)
            return copy.is_sealed or (goes_on and not is_over)

    def _add_tail(self, copy: GrowingCopy, key: str) -> bool:
        """Whether the stream goes on from where the copy ended."""
        while True:
            part = self._tails.read(key, copy.last)
            if part is None:
                return False
            self.room.add(copy.add_frames(part.frames))
            if not part.has_more:
                return True

    def _extend_by_bucket(self, path: Path, key: str, is_over: bool) -> None:
        with self._held(path):
            if time.monotonic() - self._looked_at.get((path, is_over), -math.inf) < LOOK_SECONDS:
                return
            copy = GrowingCopy(path)
            try:
                self._add_from_bucket(copy)
            except ForeignBytes:  # the node has begun it anew
                log.warning("copy_differs", path=self.key_of(path), at=copy.end)
                path.unlink(missing_ok=True)
                copy = GrowingCopy(path)
                self._add_from_bucket(copy)
            if len(self._looked_at) >= MAX_LOOKS:
                self._looked_at.clear()
            self._looked_at[path, is_over] = time.monotonic()
            if not copy.is_sealed:
                self._add_tail(copy, key)

    def _add_from_bucket(self, copy: GrowingCopy) -> None:
        try:
            with bucket_errors():
                self.room.add(copy.add_bytes(self.remote.read_parts(self.key_of(copy.path), copy.end)))
        except UnknownFile:
            return

    # -- helpers ---------------------------------------------------------------------------------------

    def key_of(self, path: Path) -> str:
        return str(path.relative_to(self.root))

    def _at_once(self, work: Callable[[T], None], each: Sequence[T]) -> None:
        if len(each) < 2:
            for one in each:
                work(one)
            return
        with ThreadPoolExecutor(min(FETCHED_AT_ONCE, len(each))) as pool:
            list(pool.map(work, each))

    @contextmanager
    def _held(self, path: Path) -> Iterator[None]:
        """One thread at a time fetches a file."""
        with self._locks[hash(path) % len(self._locks)]:
            yield


@contextmanager
def bucket_errors() -> Iterator[None]:
    """Errors of the bucket as those of the service; an unknown file stays one."""
    try:
        yield
    except UnknownFile:
        raise
    except RemoteFull as error:
        raise OSError(errno.ENOSPC, f"the bucket accepts nothing more: {error}") from error
    except RemoteError as error:
        log.warning("bucket_unavailable", error=str(error))
        raise StorageUnavailable(
            "the service's bucket does not answer, or refuses; its contents cannot be read now, but nothing is lost",
            retry_after=RETRY_AFTER,
        ) from error
