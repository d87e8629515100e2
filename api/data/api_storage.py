"""Where an API process keeps the service's files: in the directory that all share, or in a bucket."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from api.bucket.bucket_files import REQUEST_SECONDS, RETRY_SECONDS, BucketFiles
from api.bucket.cache_room import CacheRoom
from api.bucket.stream_tail import StreamTails
from api.bucket.unsent_files import UnsentFiles
from api.data.file_threads import AttemptStorage
from api.data.service_files import MOUNTED, ServiceFiles
from jobs import store
from jobs.files import identity
from jobs.files.audit_files import audit_dir
from jobs.files.identity import StorageMismatch
from jobs.files.remote_proof import prove_remote
from jobs.model.settings import Settings
from jobs.storage.remote import RemoteError, RemoteUnavailable
from jobs.storage.target import StorageKind, target_of
from jobs.store.client import RedisStore, connect_for_loss
from shardyard.contract.errors import StorageUnavailable

log = structlog.get_logger(__name__)

#: How long a reader waits for the telemetry Redis before it turns to the bucket.
TAIL_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class ApiStorage:
    """`root` is where files are read, and `audit` where this process writes its entries. `bucket` and `unsent` are
    there where the files are in a bucket: `root` has copies then, and what is written here follows to it."""

    root: Path
    audit: Path
    redirect_bytes: int = 0
    bucket: BucketFiles | None = None
    unsent: UnsentFiles | None = None

    @property
    def files(self) -> ServiceFiles:
        return MOUNTED if self.bucket is None else self.bucket

    def for_readers(self) -> AttemptStorage:
        """With threads of its own."""
        return AttemptStorage(self.root, self.bucket, self.redirect_bytes)

    def prove(self, control: RedisStore) -> None:
        """Check that it is the service's.

        Raises:
            StorageMismatch: it is another one's, or refuses this process.
            FormatMismatch: the control Redis is that of another version of the service.
            Unavailable: the control Redis, or the bucket, does not answer.
            OSError: the directory cannot be made or written.
        """
        if self.bucket is None:
            identity.prove_storage(control, self.root)
            return
        try:
            prove_remote(control, self.bucket.remote, self.root)
        except RemoteUnavailable as error:
            if not self._was_proven(control):
                raise StorageUnavailable(str(error)) from error
            log.warning("bucket_unavailable", error=str(error))
        except RemoteError as error:
            raise StorageMismatch(f"the bucket cannot be used: {error}") from error

    def _was_proven(self, control: RedisStore) -> bool:
        """Whether the service's mark is here, as it was when this bucket was proven: much can be served without it."""
        mark = self.root / identity.NONCE_FILE
        return mark.exists() and control.run(store.identify_storage(mark.read_text())) == mark.read_text()

    def make_room(self, is_low: Callable[[], bool]) -> None:
        """Remove copies while a disk is low."""
        if self.bucket is not None and is_low():
            self.bucket.room.empty()

    def send_unsent(self) -> None:
        """Bring what was written here to the bucket. Raises StorageUnavailable, OSError."""
        if self.unsent is not None:
            self.unsent.send()

    def close(self) -> None:
        if self.bucket is not None:
            self.bucket.close()


def open_storage(settings: Settings) -> ApiStorage:
    """That of the settings. It connects when it is used.

    Raises:
        ValueError: an API cannot keep its files there, or the bucket's settings are wrong.
        OSError: the directory for copies cannot be made.
    """
    target = target_of(settings)
    if target.kind is StorageKind.DIRECTORY:
        return ApiStorage(target.root, audit_dir(target.root))
    if target.kind is not StorageKind.OBJECTS:
        raise ValueError(
            f"SHARDYARD_STORAGE is {target.url!r}, which is for nodes: an API keeps its files in a directory, or in a "
            "bucket (s3://bucket/prefix)"
        )
    from jobs.storage.objects import ObjectStorage  # obstore is for whoever has chosen it

    remote = ObjectStorage(target.url, request_seconds=REQUEST_SECONDS, retry_seconds=RETRY_SECONDS)
    room = CacheRoom.claim(settings.state_dir.expanduser().absolute(), target.url, settings.cache_bytes)
    bucket = BucketFiles(remote, room, StreamTails(connect_for_loss(settings.telemetry(), TAIL_SECONDS)))
    return ApiStorage(
        room.files, audit_dir(room.unsent), settings.redirect_bytes, bucket, UnsentFiles(remote, room.unsent)
    )
