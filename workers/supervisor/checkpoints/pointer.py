"""Points the job in the control Redis to its newest checkpoint, in a thread of its own.

While Redis is away, or does not answer, checkpoints are still saved, and only the pointer waits.
"""

import threading
from collections import deque
from functools import partial
from time import monotonic

import structlog

from jobs import store
from jobs.support import failpoints
from shardyard.contract.errors import Unavailable
from workers.supervisor.carriage import AttemptCarriage
from workers.supervisor.checkpoints.assembly import DurableCheckpoint
from workers.supervisor.checkpoints.messages import MAX_MESSAGES, MessageQueue
from workers.supervisor.checkpoints.pruner import CheckpointPruner
from workers.supervisor.lease import FINISH_SECONDS, LeaseHolder

log = structlog.get_logger(__name__)

#: How often the pointer is tried again while the control Redis is away, and while the storage is.
RETRY_SECONDS, STORAGE_SECONDS = 0.5, 3.0
#: How long the end of an attempt waits for its last checkpoint to be carried, also where the storage has refused it.
DELIVERY_SECONDS, REFUSED_SECONDS = 60.0, 6.0


class PointerCommitter:
    """`is_lost`: another attempt has this one's place, and nothing is committed any more."""

    def __init__(
        self,
        lease: LeaseHolder,
        pruner: CheckpointPruner,
        messages: MessageQueue,
        carriage: AttemptCarriage | None = None,
    ) -> None:
        """`carriage`: where the storage is not mounted. A checkpoint is put there before the job points to it."""
        self._carriage = carriage
        self._lease = lease
        self._pruner = pruner
        self._messages = messages
        self._pending: deque[DurableCheckpoint] = deque(maxlen=MAX_MESSAGES)  # on disk, and not pointed to yet
        self._changed = threading.Condition()
        self._closing = False
        self._announced_step: int | None = None  # the step of which the log says what is away
        self._delivered_step: int | None = None  # the last one that was carried
        self._is_refused = False  # the storage does not take checkpoints now
        self.is_lost = False
        self._thread = threading.Thread(target=self._run_commits, name="pointer", daemon=True)
        self._thread.start()

    @property
    def pending_count(self) -> int:
        return len(self._pending)

    @property
    def newest_pending(self) -> DurableCheckpoint | None:
        return self._pending[-1] if self._pending and not self.is_lost else None

    def add_checkpoint(self, checkpoint: DurableCheckpoint) -> None:
        """Have the job point to a checkpoint that is on disk, unless a newer one comes first."""
        with self._changed:
            self._pending.append(checkpoint)
            self._changed.notify_all()

    def finish_pending(self) -> None:
        """Nothing more will be added: the thread ends when the newest checkpoint is pointed to."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def join(self) -> bool:
        """Wait until the thread has ended. False: it has not. Where Redis is away, it could not take the end either;
        where the storage is, the node's agent goes on."""
        began = monotonic()
        seconds = FINISH_SECONDS if self._carriage is None else DELIVERY_SECONDS
        while self._thread.is_alive() and monotonic() - began < (REFUSED_SECONDS if self._is_refused else seconds):
            self._thread.join(RETRY_SECONDS)
        return not self._thread.is_alive()

    def _run_commits(self) -> None:
        while (checkpoint := self._await_newest()) is not None:
            try:
                self._commit_checkpoint(checkpoint)
            except Exception:
                log.exception("checkpoint_not_committed")
                self._drop_settled(checkpoint)

    def _await_newest(self) -> DurableCheckpoint | None:
        """The newest checkpoint that is not pointed to, once there is one; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._closing)
        return self._pruner.choose_newest(self._pending)

    def _commit_checkpoint(self, checkpoint: DurableCheckpoint) -> None:
        """Commit a checkpoint. It stays pending while Redis is away."""
        step, epoch = checkpoint.step, checkpoint.manifest.epoch
        if not self._deliver_checkpoint(checkpoint):
            return
        call = partial(store.commit_checkpoint, step=step, epoch=epoch, sha256=checkpoint.sha256)
        try:
            reply = self._lease.run_as_claimant(call)
        except Unavailable as error:
            log.warning("control_redis_unavailable", error=str(error), checkpoint=step)
            self._wait_for("the control Redis", step, RETRY_SECONDS)
            return
        if reply == "ok":
            failpoints.reach("checkpoint.committed")
            self._pruner.set_pointed_step(step)
            for one in self._drop_settled(checkpoint):
                self._messages.add_message(f"checkpoint of step {one.step} saved in {monotonic() - one.at:.2f} s")
            self._pruner.prune(step, committed=True)
            if self._carriage is not None:
                self._carriage.remove_obsolete(step, self._pruner.retained)
        else:
            log.warning("checkpoint_not_committed", step=step, why=reply)
            self.is_lost = self.is_lost or reply == "lost"
            self._drop_settled(checkpoint)

    def _deliver_checkpoint(self, checkpoint: DurableCheckpoint) -> bool:
        """Have a checkpoint where the next node can read it. Meanwhile newer ones may come: the newest has its turn
        then. False: the storage does not take it now, and it stays pending."""
        if self._carriage is None or self._delivered_step == checkpoint.step:
            return True
        try:
            self._carriage.put_checkpoint(checkpoint.directory, checkpoint.manifest)
        except OSError as error:
            if not self._is_refused:
                log.warning("checkpoint_not_carried", step=checkpoint.step, error=str(error))
            self._is_refused = True
            self._wait_for("the storage", checkpoint.step, STORAGE_SECONDS)
            return False
        self._delivered_step, self._is_refused = checkpoint.step, False
        return True

    def _wait_for(self, what: str, step: int, seconds: float) -> None:
        if self._announced_step != step:
            self._announced_step = step
            self._messages.add_message(f"checkpoint of step {step} is on disk; it counts when {what} answers again")
            self._pruner.prune(step, committed=False)
        threading.Event().wait(seconds)

    def _drop_settled(self, checkpoint: DurableCheckpoint) -> list[DurableCheckpoint]:
        """Remove this checkpoint and those before it from what is pending."""
        with self._changed:
            count = sum(one.step <= checkpoint.step for one in self._pending)
            return [self._pending.popleft() for _ in range(count)]
