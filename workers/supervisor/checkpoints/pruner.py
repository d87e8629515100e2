"""Removes the checkpoints that are not to be kept, but none that the job's pointer may name."""

import threading
from collections.abc import Sequence
from pathlib import Path

from jobs.files import checkpoints
from workers.supervisor.checkpoints.assembly import DurableCheckpoint
from workers.supervisor.checkpoints.takeover import remove_if_there


class CheckpointPruner:
    """Used by the threads of the writer and of the pointer. The lock is held to remove checkpoints, and to choose the
    one that the pointer is to name next.

    While a commit is under way, the pointer names the last step that is known, or one of those that were tried since
    then: from the first of them to the last.
    """

    def __init__(self, kept: Path, attempt: int, retained: int, pointed_step: int | None) -> None:
        """`kept` has all checkpoints of the job, of which the newest `retained` are to stay."""
        self._kept = kept
        self._attempt = attempt
        self.retained = retained
        self._lock = threading.Lock()
        self._known_step = pointed_step
        self._first_tried: int | None = None
        self._last_tried: int | None = None

    def choose_newest(self, pending: Sequence[DurableCheckpoint]) -> DurableCheckpoint | None:
        """The newest of these checkpoints, which is protected from now on; None where there are none."""
        with self._lock:
            if not pending:
                return None
            newest = pending[-1]
            self._last_tried = newest.step
            self._first_tried = newest.step if self._first_tried is None else self._first_tried
            return newest

    def set_pointed_step(self, step: int) -> None:
        """The pointer names this step: those that were tried before are not protected any longer."""
        with self._lock:
            self._known_step, self._first_tried, self._last_tried = step, None, None

    def prune(self, step: int, *, committed: bool) -> None:
        """Remove what is not to be kept beside this step. Before the commit only checkpoints of this attempt are
        removed, since another attempt may have its place by now. What cannot be removed is tried again later."""
        with self._lock:
            tried = (self._known_step, self._first_tried, self._last_tried)
            pointed = [one for one in tried if one is not None]
            for old in checkpoints.select_obsolete(
                checkpoints.list_checkpoints(self._kept), self._attempt, step, self.retained, pointed
            ):
                if committed or old.attempt == self._attempt:
                    remove_if_there(old.directory)
