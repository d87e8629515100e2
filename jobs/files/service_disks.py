"""The directories that the service must be able to write to, whatever jobs do: it keeps a reserve on their disks."""

import tempfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

from jobs.model.settings import Settings
from jobs.storage.target import StorageKind, target_of


def api_directories(settings: Settings) -> dict[str, Path]:
    """Those of an API process, by what lies there. The control Redis of `shardyard up` listens on a socket beside its
    append-only file; one that is elsewhere is for its own host to watch."""
    target = target_of(settings)
    directories = {"storage": target.root if target.kind is StorageKind.DIRECTORY else settings.state_dir.expanduser()}
    redis = urlsplit(settings.control_url())
    return directories | ({"control Redis": Path(unquote(redis.path)).parent} if redis.scheme == "unix" else {})


def node_directories(settings: Settings) -> dict[str, Path]:
    """Those of a worker."""
    return api_directories(settings) | {
        "storage": target_of(settings).root,
        "state": settings.state_dir.expanduser(),
        "temporary files": Path(tempfile.gettempdir()),
    }
