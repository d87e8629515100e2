"""Carries the remaining files of attempts whose supervisor is gone, and reports the ends that wait for them.

A supervisor does not wait for a storage that is away. It leaves its journal (`workers.carrier.journal`) and the end of
the attempt (`workers.supervisor.ending.pending_end`) to the node's agent, which renews the lease in its place: the
attempt is not lost while its node is alive and has its results. When everything is at the remote, the end is reported,
and the local files go.
"""

import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from time import monotonic

import msgspec
import structlog

from jobs import store
from jobs.files import paths
from jobs.files.checkpoints import DamagedCheckpoint, directory_name
from jobs.model.state import StateReason, SupervisorCommand
from jobs.storage.remote import RemoteError, RemoteStorage
from jobs.store import AttemptId
from jobs.store.client import RedisStore
from jobs.support import failpoints, fs
from jobs.support.outage_log import CONTROL_REDIS
from shardyard.contract.errors import Unavailable
from workers.carrier import journal
from workers.carrier.access import access_of
from workers.carrier.attempt_carrier import AttemptCarrier
from workers.carrier.checkpoints import CarriedCheckpoints
from workers.carrier.fetching import trim_bundles
from workers.carrier.journal import CarryJournal, carried_attempts
from workers.node.carrying import refusals
from workers.node.config import NodeConfig
from workers.node.janitor import clear_orphan
from workers.runtime.launch import AttemptDirectory
from workers.supervisor.ending import pending_end

log = structlog.get_logger(__name__)

ROUND_SECONDS = 1.0
#: After a remote has refused, the rounds are this long.
AWAY_SECONDS = 5.0
#: How long an end waits for its files. Then it is reported without them, and the job must not be taken for complete.
END_SECONDS = 24 * 3600.0
#: How long files that no end waits for are offered to a remote that refuses them for good: the job may be deleted.
REFUSED_SECONDS = 3600.0
#: How often it is said that the remote takes nothing of this node.
SAY_SECONDS = 600.0
#: How long checkpoints stay here after the last attempt of their job, which may come back; and how often that is looked
#: for, and for bundles.
JOB_SECONDS, CLEAR_SECONDS = 600.0, 60.0
_ADVICE = (
    "ends of jobs wait until it takes this node's files: check SHARDYARD_NODE_TOKEN, or the AWS_... variables and what "
    "the bucket allows, and restart the worker"
)


class LeftoverCarrier:
    """A thread carries; the agent's own thread renews the leases meanwhile, whatever the remote does."""

    def __init__(
        self,
        config: NodeConfig,
        control: RedisStore,
        holding: Callable[[], Collection[AttemptId]],
        remote: RemoteStorage | None = None,
    ) -> None:
        """`holding` returns the attempts that have devices here, which the agent handles. `remote` is opened when it is
        first needed, unless it is given."""
        self._config = config
        self._store = control
        self._holding = holding
        self._cleared_at = 0.0
        self._remote, self._is_given = remote, remote is not None
        self._refused_since: dict[AttemptId, float] = {}
        self._refusals = refusals.RefusalCount()
        self._said_at = -SAY_SECONDS
        self._renewed_at = 0.0
        self._unwanted: set[AttemptId] = set()  # ends that wait for nothing any more: cancelled, or lost
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leftovers", daemon=True)

    def start(self) -> None:
        if self._config.target.is_carried:
            self._thread.start()

    def stop(self) -> None:
        """Begin nothing further. What is under way may stop anywhere."""
        self._stop.set()

    # -- the agent's thread ------------------------------------------------------------------------------

    def renew_leases(self) -> None:
        """Renew the leases of attempts whose end waits for their files. Raises Unavailable."""
        if not self._config.target.is_carried or monotonic() - self._renewed_at < self._config.settings.beat_seconds:
            return
        self._renewed_at = monotonic()
        for attempt in self._left_attempts():
            file = self._directory(attempt).pending_end
            end = pending_end.read_pending_end(file)
            if end is None or _age(file) > END_SECONDS:
                continue
            command = self._store.run(store.renew_lease(attempt, end.claimant))
            if command in (SupervisorCommand.CANCEL, SupervisorCommand.LOST):
                self._unwanted.add(attempt)

    def _left_attempts(self) -> list[AttemptId]:
        """Those whose supervisor is gone, and after which everything was swept."""
        state_dir = self._config.state_dir
        return [
            one
            for one in carried_attempts(state_dir)
            if not journal.is_held(state_dir, one) and self._was_swept(self._directory(one))
        ]

    def _was_swept(self, directory: AttemptDirectory) -> bool:
        return directory.pending_end.exists() or not directory.directory.exists()

    def _directory(self, attempt: AttemptId) -> AttemptDirectory:
        return AttemptDirectory.of(self._config.state_dir, attempt)

    # -- its own thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        wait = ROUND_SECONDS
        while not self._stop.wait(wait):
            try:
                wait = ROUND_SECONDS if self.carry_round() else AWAY_SECONDS
            except Unavailable as error:
                CONTROL_REDIS.note_failure(error)
            except Exception:
                log.exception("leftovers_not_carried")
                wait = AWAY_SECONDS

    def carry_round(self) -> bool:
        """Carry what all attempts have left whose supervisor is dead. False: the remote refuses something.

        Raises:
            Unavailable: an end could not be reported.
        """
        is_well = True
        for attempt in self._left_attempts():
            if self._stop.is_set():
                break
            is_well &= self._carry_attempt(attempt)
        if monotonic() - self._cleared_at > CLEAR_SECONDS:
            self._cleared_at = monotonic()
            trim_bundles(self._config.storage)
            self.clear_jobs(time.time())
        return is_well

    def clear_jobs(self, now: float) -> None:
        """Remove what is left of jobs that had no attempt here for a while: their checkpoints. `now`: the time."""
        busy = {(one.tenant, one.job) for one in (*carried_attempts(self._config.state_dir), *self._holding())}
        for directory in paths.jobs_dir(self._config.storage).glob("*/*"):
            is_old = now - directory.stat().st_mtime > JOB_SECONDS
            if is_old and (directory.parent.name, directory.name) not in busy:
                fs.remove_tree(directory)

    def _carry_attempt(self, attempt: AttemptId) -> bool:
        own = CarryJournal.of(self._config.state_dir, attempt)
        carrier: AttemptCarrier | None = None
        try:
            remote = self._open_remote()
            carrier = AttemptCarrier(remote, self._config.storage, attempt, own)
            is_complete = not carrier.carry_once(finished=True)
            self._deliver_checkpoint(attempt, remote)
        except (RemoteError, OSError, ValueError) as error:
            log.warning("leftovers_wait", attempt=str(attempt), why=str(error))
            if carrier is not None and refusals.is_refusal(error):
                self._leave_out_refused(attempt, carrier, error)
            self._give_up_if_late(attempt, own, error)
            return False
        self._refused_since.pop(attempt, None)
        self._refusals.forget(attempt)
        if is_complete:
            failpoints.reach("carry.complete")
            self._report_end(attempt)
            self._remove_files(attempt, own)
        return True

    def _open_remote(self) -> RemoteStorage:
        if self._remote is None:
            self._remote = access_of(self._config.settings).open(self._config.target)
        assert self._remote is not None
        return self._remote

    def _deliver_checkpoint(self, attempt: AttemptId, remote: RemoteStorage) -> None:
        """Put the checkpoint that the attempt has saved last, and point the job to it."""
        end = pending_end.read_pending_end(self._directory(attempt).pending_end)
        if end is None or end.checkpoint is None:
            return
        saved = end.checkpoint
        kept = paths.checkpoints_dir(self._config.storage, attempt.tenant, attempt.job)
        directory = kept / directory_name(saved.step, attempt.number)
        try:
            CarriedCheckpoints(remote, self._config.storage, attempt).put_stored(directory, saved.sha256)
        except DamagedCheckpoint as error:
            log.error("checkpoint_damaged", attempt=str(attempt), step=saved.step, why=str(error))
            return
        commit = store.commit_checkpoint(attempt, end.claimant, step=saved.step, epoch=saved.epoch, sha256=saved.sha256)
        log.info("checkpoint_carried", attempt=str(attempt), step=saved.step, reply=self._store.run(commit))

    def _leave_out_refused(self, attempt: AttemptId, carrier: AttemptCarrier, error: Exception) -> None:
        """Have an end wait no more for what the remote has refused again and again, unless it takes nothing at all.

        Raises:
            OSError: the disk refuses.
        """
        file = self._directory(attempt).pending_end
        end = pending_end.read_pending_end(file)
        if end is None:
            return
        own = paths.dir_of_attempt(self._config.storage, attempt)
        prefix = f"{own.relative_to(self._config.storage)}/"
        refused = dict(carrier.refused)
        if not refused and end.checkpoint is not None:  # all files are there, so it was the checkpoint
            refused = {f"the checkpoint of step {end.checkpoint.step}": str(error)}
            end = msgspec.structs.replace(end, checkpoint=None)
        if not self._refusals.count(attempt, refused) or not self._takes_files(str(error)):
            return
        names = [path.removeprefix(prefix) for path in sorted(refused)]
        said = refusals.shorten_said(*min(refused.items()))
        note = refusals.describe_refused(names, said)
        log.error("files_left_out", attempt=str(attempt), why=note)
        pending_end.save_pending_end(file, refusals.note_end(end, note))
        refusals.record_refused(own, names, said)
        carrier.leave_out(carrier.refused)

    def _takes_files(self, why: str) -> bool:
        """Whether the remote takes anything of this node. If not, that is said, and the credentials are read again."""
        assert self._remote is not None
        try:
            if refusals.takes_files(self._remote, self._config.node_id, self._config.state_dir / ".storage-check"):
                return True
        except (RemoteError, OSError) as error:
            log.warning("storage_unavailable", error=str(error))
            return False
        if monotonic() - self._said_at > SAY_SECONDS:
            self._said_at = monotonic()
            log.error("storage_refuses_node", node=self._config.node_id, why=why, advice=_ADVICE)
        if not self._is_given:
            self._remote = None
        return False

    def _report_end(self, attempt: AttemptId) -> None:
        directory = self._directory(attempt)
        if directory.pending_end.exists():
            pending_end.report_pending_end(self._store, attempt, directory.pending_end)
            clear_orphan(self._config.state_dir, self._config.storage, attempt)

    def _give_up_if_late(self, attempt: AttemptId, own: CarryJournal, error: Exception) -> None:
        """Report an end whose files do not arrive in time, or are not wanted; give files up that are always refused."""
        file = self._directory(attempt).pending_end
        if attempt in self._unwanted:
            self._report_end(attempt)
        elif _age(file) > END_SECONDS:
            end = pending_end.read_pending_end(file)
            if end is not None and end.reason is StateReason.COMPLETED:
                why = f"every rank succeeded, but the files of the attempt could not be carried: {error}"
                late = msgspec.structs.replace(end, reason=StateReason.STORAGE_FAILED, message=why)
                pending_end.save_pending_end(file, late)
            self._report_end(attempt)
        if not refusals.is_refusal(error) or file.exists():
            self._refused_since.pop(attempt, None)
        elif monotonic() - self._refused_since.setdefault(attempt, monotonic()) > REFUSED_SECONDS:
            log.error("leftovers_refused", attempt=str(attempt), why=str(error))
            self._remove_files(attempt, own)

    def _remove_files(self, attempt: AttemptId, own: CarryJournal) -> None:
        """Everything was carried, and told: the local files go."""
        directory = paths.dir_of_attempt(self._config.storage, attempt)
        if directory.exists():
            fs.remove_tree(directory)
        own.remove()
        self._unwanted.discard(attempt)
        self._refusals.forget(attempt)
        log.info("leftovers_carried", attempt=str(attempt))


def _age(file: Path) -> float:
    """Seconds since a file was written; 0 where there is none."""
    try:
        return time.time() - file.stat().st_mtime
    except FileNotFoundError:
        return 0.0
