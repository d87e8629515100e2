"""What `SHARDYARD_STORAGE` says: where what outlives attempts is stored."""

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from jobs.storage.remote import RemoteStorage

#: Lower-case letters, digits, dots and hyphens, as S3 has them.
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")


class StorageKind(StrEnum):
    """Where files go: into a directory that all mount, to the API, or into a bucket."""

    DIRECTORY = "directory"
    SERVICE = "service"
    OBJECTS = "objects"


@dataclass(frozen=True, slots=True)
class StorageTarget:
    """`path` is the directory, `url` that of the bucket; each is None, or "", for the other kinds."""

    kind: StorageKind
    path: Path | None = None
    url: str = ""

    @property
    def is_carried(self) -> bool:
        """Whether nodes bring their files there, instead of writing into it."""
        return self.kind is not StorageKind.DIRECTORY


def parse_target(text: str) -> StorageTarget:
    """A directory, `service`, or `s3://bucket/prefix`.

    Raises:
        ValueError: it is none of them.
    """
    text = text.strip()
    if not text:
        raise ValueError("SHARDYARD_STORAGE is empty: name a directory, `service`, or s3://bucket/prefix")
    if text == StorageKind.SERVICE:
        return StorageTarget(StorageKind.SERVICE)
    scheme = _SCHEME.match(text)
    if scheme is None:
        return StorageTarget(StorageKind.DIRECTORY, Path(text).expanduser())
    if scheme[1] in ("http", "https"):
        raise ValueError(
            f"SHARDYARD_STORAGE is {text!r}: write `service`, and set SHARDYARD_URL to this address; for a bucket "
            "write s3://bucket/prefix, and set AWS_ENDPOINT_URL"
        )
    if scheme[1] != "s3" or not text.startswith("s3://"):
        raise ValueError(f"SHARDYARD_STORAGE is {text!r}: it may be a directory, `service`, or s3://bucket/prefix")
    bucket, _, prefix = text.removeprefix("s3://").rstrip("/").partition("/")
    if _BUCKET.fullmatch(bucket) is None:
        raise ValueError(f"SHARDYARD_STORAGE is {text!r}: {bucket!r} is no name of a bucket; write s3://bucket/prefix")
    if any(part in ("", ".", "..") for part in prefix.split("/")) and prefix:
        raise ValueError(f"SHARDYARD_STORAGE is {text!r}: the prefix may have no empty parts, and no . or ..")
    return StorageTarget(StorageKind.OBJECTS, url=f"s3://{bucket}/{prefix}".rstrip("/"))


def open_remote(target: StorageTarget, url: str, token: str, authority: Path | None = None) -> RemoteStorage | None:
    """The storage that a node brings its files to; None where it writes into a directory that all share. `url` and
    `token` are of the service, `authority` a PEM file of what signs its certificate. It connects when it is used.

    Raises:
        ValueError: something that this kind of storage needs is not set, or cannot be used.
    """
    match target.kind:
        case StorageKind.DIRECTORY:
            return None
        case StorageKind.SERVICE:
            missing = [name for name, value in (("SHARDYARD_URL", url), ("SHARDYARD_NODE_TOKEN", token)) if not value]
            if missing:
                raise ValueError(f"SHARDYARD_STORAGE is `service`, which needs {' and '.join(missing)}")
            from jobs.storage.service import ServiceStorage  # httpx, and below obstore, are for whoever has chosen them

            return ServiceStorage(url, token, authority)
        case StorageKind.OBJECTS:
            from jobs.storage.objects import ObjectStorage

            return ObjectStorage(target.url)
