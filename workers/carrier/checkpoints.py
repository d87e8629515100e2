"""Checkpoints at the remote: put before the job points to them, and fetched where another node has saved them."""

from collections.abc import Callable
from pathlib import Path

import structlog

from jobs.files import checkpoints, paths
from jobs.files.checkpoints import MANIFEST, CheckpointManifest, StoredCheckpoint
from jobs.storage.remote import RemoteStorage, digest_file
from jobs.store import AttemptId
from jobs.support import failpoints, fs

log = structlog.get_logger(__name__)

#: Called with the number of bytes that were just read.
Progress = Callable[[int], None]


class CarriedCheckpoints:
    """Those of one job."""

    def __init__(self, remote: RemoteStorage, root: Path, attempt: AttemptId) -> None:
        self._remote = remote
        self._kept = paths.checkpoints_dir(root, attempt.tenant, attempt.job)
        self._prefix = str(self._kept.relative_to(root))

    def put(self, directory: Path, manifest: CheckpointManifest) -> None:
        """Put the files of a checkpoint, the manifest last: whoever finds that has all of them.

        Raises:
            RemoteError: the remote does not take it.
            OSError: it cannot be read.
        """
        for name, file in manifest.files.items():
            self._remote.put(self._path(directory.name, name), directory / name, file.sha256)
            failpoints.reach("carry.checkpoint")
        own = directory / MANIFEST
        self._remote.put(self._path(directory.name, MANIFEST), own, digest_file(own))

    def put_stored(self, directory: Path, sha256: str) -> None:
        """The same by its manifest on the disk. Raises DamagedCheckpoint, too."""
        self.put(directory, checkpoints.read_checkpoint(directory, sha256).manifest)

    def list_stored(self) -> list[StoredCheckpoint]:
        """Those that are at the remote, newest first, each with the directory that it has, or gets, here. Raises
        RemoteError."""
        names = {Path(path).parent.name for path in self._remote.names(self._prefix) if Path(path).name == MANIFEST}
        listed = [
            StoredCheckpoint(*parsed, self._kept / name) for name in names if (parsed := checkpoints.parse_name(name))
        ]
        return sorted(listed, key=lambda one: (one.step, one.attempt), reverse=True)

    def fetch(self, directory: Path, read: Progress = lambda _: None) -> None:
        """Bring a checkpoint here, unless it is. It must be verified then.

        Raises:
            RemoteError: it is not there, or the remote does not answer.
            DamagedCheckpoint: its manifest cannot be read.
            OSError: there is no room here.
        """
        if directory.exists():
            return
        draft = directory.with_name(f".{directory.name}.fetched")
        draft.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._fetch_file(directory.name, MANIFEST, draft, read)
        manifest = checkpoints.decode_manifest((draft / MANIFEST).read_bytes())
        for name in manifest.files:
            self._fetch_file(directory.name, name, draft, read)
        draft.rename(directory)
        fs.sync_directory(directory.parent)

    def _fetch_file(self, checkpoint: str, name: str, draft: Path, read: Progress) -> None:
        fetch_checked(self._remote, self._path(checkpoint, name), draft / name, read)

    def remove_obsolete(self, attempt: int, step: int, keep: int) -> None:
        """Remove what a commit of a step has made obsolete there, by the rules of the disk. Raises RemoteError."""
        found = self.list_stored()
        for old in checkpoints.select_obsolete(found, attempt, step, keep, [step]):
            self._remote.remove(self._path(old.directory.name, MANIFEST))  # first: half of one is none
            self._remote.remove(f"{self._prefix}/{old.directory.name}")

    def _path(self, checkpoint: str, name: str) -> str:
        return f"{self._prefix}/{checkpoint}/{name}"


def fetch_checked(remote: RemoteStorage, path: str, into: Path, read: Progress = lambda _: None) -> None:
    """Copy a file from the remote to `into`, going on where an earlier call was cut. Raises RemoteError, OSError."""
    draft = into.with_name(f".{into.name}.part")
    with draft.open("ab") as writer:
        for data in remote.read_parts(path, writer.tell()):
            writer.write(data)
            read(len(data))
    draft.replace(into)
