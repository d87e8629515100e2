"""The same as `api.data.artifacts` where the files of attempts are in a bucket: they are listed and read there, and no
copy is made.

Links and pipes have not come there, and names of objects lead nowhere, so nothing has to be opened step by step.
"""

import io
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import structlog

from api.bucket.bucket_files import BucketFiles, bucket_errors
from api.data import artifacts
from api.data.artifacts import CHECKPOINTS, MAX_LISTED, MAX_SCANNED, OFFERED, PROFILES, ArtifactListing, OpenArtifact
from jobs.files import checkpoints, paths, profiles, user_files
from jobs.storage.remote import RemoteError, UnknownFile
from shardyard.contract.responses import ArtifactView, at

if TYPE_CHECKING:  # obstore is for whoever has chosen it
    from jobs.storage.objects import ObjectStorage, StoredObject

log = structlog.get_logger(__name__)

#: How long a URL of the bucket can be used that a reader is sent to: a download that has begun goes on.
URL_LIFETIME = timedelta(minutes=10)
#: What is read of an object at a time: first little, since a range may be wanted, then more.
FIRST_BYTES, MOST_BYTES = 256 * 1024, 4 * 1024 * 1024


def list_artifacts(bucket: BucketFiles, attempt: Path) -> ArtifactListing:
    """Raises StorageUnavailable."""
    listed = list(islice(_list_all(bucket, attempt), MAX_SCANNED + 1))
    found = sorted(listed[:MAX_SCANNED], key=lambda one: one.path)
    bucket.bring(paths.user_files_record(attempt))
    record = user_files.read_record(attempt)
    left_out = record.left_out if record is not None else []
    return ArtifactListing(found[:MAX_LISTED], len(listed) > MAX_LISTED, left_out)


def _list_all(bucket: BucketFiles, attempt: Path) -> Iterator[ArtifactView]:
    own = PurePosixPath(bucket.key_of(attempt))
    with bucket_errors():
        for part in (attempt, attempt.parent / CHECKPOINTS):
            names = _shown_checkpoints(bucket, part) if part is not attempt else {}
            for one in bucket.remote.list_files(bucket.key_of(part)):
                path = _shown_path(PurePosixPath(one.path), own, names)
                if path is not None:
                    yield ArtifactView(str(path), one.bytes, at(int(one.modified * 1e6)), artifacts.kind_of(str(path)))


def _shown_path(path: PurePosixPath, attempt: PurePosixPath, names: dict[str, str]) -> PurePosixPath | None:
    """What a file is listed as; None where it is not."""
    if path.is_relative_to(attempt):
        below = path.relative_to(attempt)
        if below.parts[0] not in OFFERED or _is_hidden_profile(below):
            return None
        return below
    *_, directory, name = path.parts
    return PurePosixPath(CHECKPOINTS, names[directory], name) if directory in names else None


def _is_hidden_profile(below: PurePosixPath) -> bool:
    return below.parts[0] == PROFILES and (below.name.startswith(".") or below.name == profiles.RECORD_NAME)


def _shown_checkpoints(bucket: BucketFiles, directory: Path) -> dict[str, str]:
    """The directories of a job's checkpoints, and what they are listed as; of two of one step the later."""
    parsed = sorted(one for name in bucket.list_names(directory) if (one := checkpoints.parse_name(name)))
    newest = dict(parsed)
    return {checkpoints.directory_name(step, attempt): f"step-{step}" for step, attempt in newest.items()}


def open_file(bucket: BucketFiles, attempt: Path, path: str, redirect_bytes: int) -> OpenArtifact:
    """Open a file that is listed; one of more than `redirect_bytes` (0: none) has a URL, and no bytes.

    Raises:
        NotFound: there is no such file.
        StorageUnavailable: the bucket does not answer.
    """
    for key in _keys(bucket, attempt, path):
        with suppress(ValueError), bucket_errors():  # a name that no file there has
            found = bucket.remote.find(key, whole=True)
            if found is not None:
                return _opened(bucket.remote, found, redirect_bytes)
    raise artifacts.no_such_artifact(path)


def _opened(remote: "ObjectStorage", found: "StoredObject", redirect_bytes: int) -> OpenArtifact:
    name = PurePosixPath(found.path).name
    tag = f'"{found.tag.strip(chr(34))}"'
    if redirect_bytes and found.bytes > redirect_bytes:
        return OpenArtifact(io.BytesIO(), name, found.bytes, tag, remote.sign(found.path, URL_LIFETIME))
    return OpenArtifact(ObjectReader(remote, found), name, found.bytes, tag)


def _keys(bucket: BucketFiles, attempt: Path, path: str) -> Iterator[str]:
    parts = path.split("/")
    if not artifacts.is_plain(path, parts):
        parts_of_own = ((name, *parts) for name in artifacts.OWN_FILES)
        own = ("/".join(one) for one in parts_of_own)
        yield from (bucket.key_of(attempt / one) for one in own if artifacts.is_plain(one, one.split("/")))
        return
    if parts[0] != CHECKPOINTS:
        yield bucket.key_of(attempt / path)
        return
    directory = attempt.parent / CHECKPOINTS
    for name, shown in _shown_checkpoints(bucket, directory).items():
        if parts[1:2] == [shown]:
            yield bucket.key_of(directory.joinpath(name, *parts[2:]))


class ObjectReader(io.RawIOBase):
    """An object as a file for reading. One that is replaced, or that the bucket does not give, ends early."""

    def __init__(self, remote: "ObjectStorage", found: "StoredObject") -> None:
        self._remote = remote
        self._found = found
        self._position = 0
        self._held = b""
        self._next_bytes = FIRST_BYTES

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence != io.SEEK_SET:
            raise io.UnsupportedOperation("only from the start")
        self._position, self._held, self._next_bytes = offset, b"", FIRST_BYTES
        return offset

    def read(self, size: int = -1) -> bytes:
        if not self._held:
            self._held = self._fetch()
        part = self._held if size < 0 else self._held[:size]
        self._held = self._held[len(part) :]
        self._position += len(part)
        return part

    def _fetch(self) -> bytes:
        end = min(self._found.bytes, self._position + self._next_bytes)
        self._next_bytes = min(MOST_BYTES, 4 * self._next_bytes)
        try:
            return self._remote.read_range(self._found.path, self._position, end, self._found.tag)
        except UnknownFile:
            return b""
        except RemoteError as error:
            log.warning("download_cut", path=self._found.path, at=self._position, error=str(error))
            return b""
