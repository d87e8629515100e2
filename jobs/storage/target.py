"""What `SHARDYARD_STORAGE` names, and where the processes of a node read and write for it.

A directory that all mount is used as it is. Anything else is carried: a node works in a directory of its own, with the
same layout, and copies what is written there to the remote.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from jobs.storage.directory import DirectoryStorage
from jobs.storage.remote import RemoteStorage

if TYPE_CHECKING:
    from jobs.model.settings import Settings

_SERVICE = "service"
#: A setting that is a path has one slash where an URL has two.
_BUCKET, _MOUNT = re.compile(r"s3:/{1,2}(?=[^/])"), re.compile(r"file:/{1,3}(?=[^/])")


@dataclass(frozen=True, slots=True)
class StorageTarget:
    """`root` is where processes of this node read and write. `url` is where that is carried to; "" where it is not."""

    kind: Literal["directory", "service", "objects", "mount"]
    root: Path
    url: str = ""

    @property
    def is_carried(self) -> bool:
        return self.kind != "directory"


def parse_target(text: str, local: Path) -> StorageTarget:
    """The target that a value of `SHARDYARD_STORAGE` names. `local` is the root of what is carried."""
    if text == _SERVICE:
        return StorageTarget("service", local, _SERVICE)
    if _BUCKET.match(text):
        return StorageTarget("objects", local, _BUCKET.sub("s3://", text))
    if _MOUNT.match(text):
        return StorageTarget("mount", local, _MOUNT.sub("file:///", text))
    return StorageTarget("directory", Path(text).expanduser())


def target_of(settings: "Settings") -> StorageTarget:
    """That of the node which these settings are of."""
    return parse_target(str(settings.storage), settings.state_dir.expanduser() / settings.node / "storage")


def open_remote(target: StorageTarget, url: str, token: str, ca: str) -> RemoteStorage | None:
    """The remote of a target; None where it is not carried. `url`, `token` and `ca` are of the API as the remote.

    Raises:
        ValueError: what it needs is not set, or is wrong.
    """
    match target.kind:
        case "directory":
            return None
        case "mount":
            return DirectoryStorage(Path(target.url.removeprefix("file://")))
        case "objects":
            from jobs.storage.objects import ObjectStorage

            return ObjectStorage(target.url)
        case "service":
            raise ValueError(f"SHARDYARD_STORAGE: files cannot be carried to {url or 'the service'} by this version")
