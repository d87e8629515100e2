"""What `SHARDYARD_STORAGE` names, and where the processes of a node read and write for it.

A directory that all mount is used as it is. Anything else is carried: a node works in a directory of its own, with the
same layout, and copies what is written there to the remote.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.storage.directory import DirectoryStorage
from jobs.storage.remote import RemoteStorage

if TYPE_CHECKING:
    from jobs.model.settings import Settings

#: How long a call to the service is repeated: who carries tries again by itself, and has other things to do meanwhile.
CALL_SECONDS = 10.0
#: Lower-case letters, digits, dots and hyphens, as S3 has them.
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
#: A setting that is a path has one slash where an URL has two.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/+")


class StorageKind(StrEnum):
    """Where files go: into a directory that all mount, to the API, into a bucket, or into a directory to which they are
    copied."""

    DIRECTORY = "directory"
    SERVICE = "service"
    OBJECTS = "objects"
    MOUNT = "mount"


@dataclass(frozen=True, slots=True)
class StorageTarget:
    """`root` is where processes of this node read and write. `url` is where that is carried to; "" where it is not."""

    kind: StorageKind
    root: Path
    url: str = ""

    @property
    def is_carried(self) -> bool:
        """Whether nodes bring their files there, instead of writing into it."""
        return self.kind is not StorageKind.DIRECTORY


def parse_target(text: str, local: Path) -> StorageTarget:
    """The target that a value of `SHARDYARD_STORAGE` names: a directory, `service`, `s3://bucket/prefix`, or
    `file:///directory`. `local` is the root of what is carried.

    Raises:
        ValueError: it is none of them.
    """
    text = text.strip()
    if not text:
        raise ValueError("SHARDYARD_STORAGE is empty: name a directory, `service`, or s3://bucket/prefix")
    if text == StorageKind.SERVICE:
        return StorageTarget(StorageKind.SERVICE, local, text)
    scheme = _SCHEME.match(text)
    if scheme is None:
        return StorageTarget(StorageKind.DIRECTORY, Path(text).expanduser())
    rest = text[scheme.end() :].rstrip("/")
    match scheme[1]:
        case "s3":
            return StorageTarget(StorageKind.OBJECTS, local, f"s3://{_check_bucket(text, rest)}")
        case "file":
            return StorageTarget(StorageKind.MOUNT, local, f"file:///{rest}")
        case "http" | "https":
            raise ValueError(
                f"SHARDYARD_STORAGE is {text!r}: write `service`, and set SHARDYARD_URL to this address; for a bucket "
                "write s3://bucket/prefix, and set AWS_ENDPOINT_URL"
            )
    raise ValueError(f"SHARDYARD_STORAGE is {text!r}: it may be a directory, `service`, or s3://bucket/prefix")


def _check_bucket(text: str, place: str) -> str:
    bucket, slash, prefix = place.partition("/")
    if _BUCKET.fullmatch(bucket) is None:
        raise ValueError(f"SHARDYARD_STORAGE is {text!r}: {bucket!r} is not a bucket name; write s3://bucket/prefix")
    if slash and any(part in ("", ".", "..") for part in prefix.split("/")):
        raise ValueError(f"SHARDYARD_STORAGE is {text!r}: the prefix may have no empty parts, and no . or ..")
    return place


def target_of(settings: "Settings") -> StorageTarget:
    """That of the node which these settings are of. Raises ValueError."""
    return parse_target(str(settings.storage), settings.state_dir.expanduser() / settings.node / "storage")


def open_remote(target: StorageTarget, url: str, token: str, authority: Path | None = None) -> RemoteStorage | None:
    """The storage that a node brings its files to; None where it writes into a directory that all share. `url` and
    `token` are of the service, `authority` a PEM file of what signs its certificate. It connects when it is used.

    Raises:
        ValueError: something that this kind of storage needs is not set, or cannot be used.
    """
    match target.kind:
        case StorageKind.DIRECTORY:
            return None
        case StorageKind.MOUNT:
            return DirectoryStorage(Path(target.url.removeprefix("file://")))
        case StorageKind.SERVICE:
            missing = [name for name, value in (("SHARDYARD_URL", url), ("SHARDYARD_NODE_TOKEN", token)) if not value]
            if missing:
                raise ValueError(f"SHARDYARD_STORAGE is `service`, which needs {' and '.join(missing)}")
            from jobs.storage.service import ServiceStorage  # httpx, and below obstore, are for whoever has chosen them

            return ServiceStorage(url, token, authority, call_seconds=CALL_SECONDS)
        case StorageKind.OBJECTS:
            from jobs.storage.objects import ObjectStorage

            return ObjectStorage(target.url)
