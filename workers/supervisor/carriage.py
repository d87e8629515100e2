"""What the supervisor of an attempt does where the storage is not mounted: fetches what is not here, has a thread carry
what is written, and lets the end wait for it."""

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import structlog

from jobs.files.checkpoints import CheckpointManifest, DamagedCheckpoint, StoredCheckpoint
from jobs.protocol.records import SavedFile
from jobs.storage.remote import RemoteError, RemoteStorage, UnknownFile
from jobs.store import AttemptId
from jobs.support import fs
from workers.carrier import fetching
from workers.carrier.access import RemoteAccess
from workers.carrier.attempt_carrier import AttemptCarrier
from workers.carrier.checkpoints import CarriedCheckpoints, Progress
from workers.carrier.drafts import fetch_draft
from workers.carrier.journal import CarryJournal, hold_journal, read_backlog
from workers.carrier.thread import CarrierThread
from workers.runtime.launch import AttemptConfig, AttemptDirectory

log = structlog.get_logger(__name__)

#: How long a supervisor waits at the end until its files are at the remote, before the node's agent goes on; and how
#: long one that does not lead does, before it says that nothing of it is left.
FLUSH_SECONDS, PART_FLUSH_SECONDS = 60.0, 5.0
#: How often the files of all attempts of the node are counted.
BACKLOG_SECONDS = 2.0


class StorageAway(OSError):
    """The remote does not answer, or refuses: later, or on another node, it may not."""

    def __init__(self, error: RemoteError) -> None:
        super().__init__(errno.EIO, f"the storage does not return it: {error}")


class AttemptCarriage:
    def __init__(self, config: AttemptConfig, remote: RemoteStorage) -> None:
        """Raises OSError."""
        self._config = config
        self._remote = remote
        self._checkpoints = CarriedCheckpoints(remote, config.storage, config.attempt)
        hold_journal(config.state_dir, config.attempt)
        journal = CarryJournal.of(config.state_dir, config.attempt)
        self._thread = CarrierThread(AttemptCarrier(remote, config.storage, config.attempt, journal), journal)
        self._backlog = (0.0, 0)  # when it was counted, and how much it was
        self._thread.start()

    # -- what is fetched -------------------------------------------------------------------------------

    def fetch_bundle(self, bundle: str | None, find_nonce: Callable[[str], str]) -> None:
        """Have a bundle here, if the remote has it. `find_nonce`: that of its file, or "". Raises OSError."""
        if bundle is None:
            return
        tenant, nonce = self._config.attempt.tenant, find_nonce(bundle)
        with _remote_errors():
            fetching.fetch_bundle(self._remote, self._config.storage, tenant, bundle, nonce)

    def list_checkpoints(self) -> list[StoredCheckpoint]:
        """Those at the remote, newest first. Raises OSError."""
        with _remote_errors():
            return self._checkpoints.list_stored()

    def fetch_checkpoint(self, directory: Path, read: Progress = lambda _: None) -> None:
        """Have a checkpoint here. Raises DamagedCheckpoint, where it is not at the remote either, and OSError."""
        with _remote_errors():
            try:
                self._checkpoints.fetch(directory, read)
            except UnknownFile as error:
                raise DamagedCheckpoint(f"it is neither here nor in the storage ({error})") from error

    def fetch_script_checkpoints(self, before: AttemptId, read: Progress = lambda _: None) -> Path:
        """The root below which earlier attempts have their checkpoints. Raises OSError."""
        with _remote_errors():
            return fetching.fetch_script_checkpoints(self._remote, self._config.storage, self._fetched, before, read)

    def discard_fetched(self) -> None:
        """What was fetched for scripts has been copied."""
        if self._fetched.exists():
            fs.remove_tree(self._fetched)

    def drafts_elsewhere(self, drafts: Path) -> Path:
        """Where the leader has what ranks of another node save in `drafts`, once `fetch_draft` has brought it."""
        return self._fetched / drafts.relative_to(self._config.storage.absolute())

    def fetch_draft(self, draft: Path, files: Sequence[SavedFile]) -> None:
        """Bring what ranks of another node have saved of a step. Raises OSError."""
        with _remote_errors():
            fetch_draft(self._remote, str(draft.relative_to(self._fetched)), draft, files)

    def remove_draft(self, draft: Path) -> None:
        """It has become a checkpoint, or will not. Its node knows that it was carried, and does not put it again."""
        try:
            self._remote.remove(str(draft.relative_to(self._fetched)))
        except RemoteError as error:
            log.warning("draft_not_removed", draft=draft.name, error=str(error))

    @property
    def _fetched(self) -> Path:
        return AttemptDirectory.of(self._config.state_dir, self._config.attempt).fetched

    # -- checkpoints that are carried ------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether this node has less than its bound of files that are still to be carried."""
        counted_at, left = self._backlog
        if monotonic() - counted_at > BACKLOG_SECONDS:
            left = read_backlog(self._config.state_dir)
            self._backlog = monotonic(), left
        return left <= self._config.carry_bytes

    def put_checkpoint(self, directory: Path, manifest: CheckpointManifest) -> None:
        """Raises OSError."""
        with _remote_errors():
            self._checkpoints.put(directory, manifest)

    def remove_obsolete(self, step: int, keep: int) -> None:
        """Remove what the commit of a step has made obsolete at the remote. What cannot be is tried with the next."""
        try:
            self._checkpoints.remove_obsolete(self._config.attempt.number, step, keep)
        except RemoteError as error:
            log.warning("checkpoints_not_removed", error=str(error))

    # -- the end ---------------------------------------------------------------------------------------

    def finish(self, seconds: float = FLUSH_SECONDS) -> bool:
        """The attempt's files are complete: wait for them to be carried. False: the node's agent has to go on."""
        return self._thread.finish(seconds)


def open_carriage(config: AttemptConfig, access: RemoteAccess) -> AttemptCarriage | None:
    """None where the storage is mounted.

    Raises:
        ValueError, OSError: the remote cannot be used, or the disk refuses.
    """
    remote = access.open(config.target) if config.target is not None else None
    return None if remote is None else AttemptCarriage(config, remote)


@contextmanager
def _remote_errors() -> Iterator[None]:
    """Errors of the remote as those of a disk, which is what callers expect of storage."""
    try:
        yield
    except RemoteError as error:
        raise StorageAway(error) from error
