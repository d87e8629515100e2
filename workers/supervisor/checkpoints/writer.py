"""Turns the files that ranks have written into checkpoints that survive a power cut, in threads of its own.

    ranks                  write <attempt>/drafts/<step>/, wait at the checkpoint barrier, and train on
    the writer's thread    takes the files over, adds the report's state, the metrics and the manifest, syncs all of it,
                           renames the directory to its final name, and removes what is older than the spec keeps
    the pointer's thread   points the job to the checkpoint in the control Redis

A disk that refuses costs this checkpoint, and a line in the log.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

import structlog

from jobs.files import checkpoints
from jobs.files.checkpoints import VerifiedCheckpoint
from jobs.model.spec import CheckpointPolicy, JobSpec, RecipeProgram
from jobs.protocol.records import Saved
from workers.carrier.drafts import await_draft
from workers.runtime.launch import AttemptConfig
from workers.supervisor.carriage import AttemptCarriage
from workers.supervisor.checkpoints.assembly import (
    BarrierState,
    DraftSource,
    assemble_checkpoint,
    part_directory,
    source_of,
)
from workers.supervisor.checkpoints.directories import CheckpointDirectories
from workers.supervisor.checkpoints.messages import CheckpointMessage, MessageQueue, MessageSink, report_messages
from workers.supervisor.checkpoints.pointer import PointerCommitter
from workers.supervisor.checkpoints.pruner import CheckpointPruner
from workers.supervisor.checkpoints.takeover import TakeoverRefused, remove_if_there
from workers.supervisor.ending.pending_end import PendingCheckpoint
from workers.supervisor.lease import LeaseHolder

log = structlog.get_logger(__name__)

#: Checkpoints that may wait while one is brought to the disk; the ranks wait when there are more.
MAX_WAITING = 1
#: How long the end of an attempt waits for the disk.
CLOSE_SECONDS = 60.0

#: Returns the state of the report, None where a fault prevents it, and the metrics' file with its length.
DumpState = Callable[[], tuple[bytes | None, tuple[Path, int]]]


@dataclass(frozen=True, slots=True)
class SkippedStep:
    """A step that has no checkpoint; what the ranks have written of it can be removed."""

    step: int


@dataclass(frozen=True, slots=True)
class AttemptCheckpoints:
    """The checkpoints of an attempt. `resume_directory` is where its ranks read the one that it resumes from."""

    settings: CheckpointPolicy
    directories: CheckpointDirectories
    writer: "CheckpointWriter"
    resumed: VerifiedCheckpoint | None
    resume_directory: Path | None

    @property
    def first_step(self) -> int:
        """Steps that were done before the attempt began."""
        return self.resumed.manifest.step if self.resumed is not None else 0

    def report_to(self, sink: MessageSink) -> None:
        """Write to the job's log what has become of checkpoints."""
        report_messages(self.writer.take_messages(), sink)


def checkpoint_settings(spec: JobSpec) -> CheckpointPolicy | None:
    """What a spec says of checkpoints, where its program has any."""
    program = spec.program
    return program.checkpoint if isinstance(program, RecipeProgram) and program.mode == "train" else None


class CheckpointWriter:
    """Writes the checkpoints of one attempt. `dump_state` is called while the ranks wait at a checkpoint barrier.

    Used by the supervisor's loop.
    """

    def __init__(
        self,
        config: AttemptConfig,
        directories: CheckpointDirectories,
        keep: int,
        lease: LeaseHolder,
        dump_state: DumpState,
        resumed: VerifiedCheckpoint | None,
        others: Sequence[DraftSource] = (),
        carriage: AttemptCarriage | None = None,
    ) -> None:
        """`others` are where the ranks of other parts save. `carriage`: where the storage is not mounted."""
        step = resumed.manifest.step if resumed is not None else None
        self._config = config
        self._directories = directories
        if carriage is not None:
            others = [replace(one, drafts=carriage.drafts_elsewhere(one.drafts), uid=None) for one in others]
        self._sources = (source_of(config, directories.drafts), *others)
        self._dump_state = dump_state
        self._carriage = carriage
        self._is_full = False  # more is to be carried than may wait
        self._newest: Path | None = resumed.directory if resumed is not None else None
        self._last_step = step or 0  # the last one that was to be saved
        self._waiting: deque[BarrierState | SkippedStep] = deque()
        self._closing = False
        self._changed = threading.Condition()
        self._messages = MessageQueue()
        self._pruner = CheckpointPruner(directories.kept, config.attempt.number, keep, step)
        self._pointer = PointerCommitter(lease, self._pruner, self._messages, carriage)
        self._thread = threading.Thread(target=self._run_writes, name="checkpoints", daemon=True)
        self._thread.start()

    # -- the supervisor's loop -----------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether another checkpoint can be taken now: the disk may be slow, or have too much that is to be carried."""
        return len(self._waiting) < MAX_WAITING and self._may_add_to_backlog()

    def _may_add_to_backlog(self) -> bool:
        if self._carriage is None or self._carriage.has_room:
            self._is_full = False
            return True
        if not self._is_full:
            self._is_full = True
            self._messages.add_message(
                "more than SHARDYARD_CARRY_BYTES is waiting to be carried from here: training waits with its next "
                "checkpoint"
            )
        return False

    def write_checkpoint(self, saves: Sequence[Saved]) -> None:
        """All ranks wait at the barrier, and continue when this returns."""
        self._last_step = saves[0].step
        try:
            report, metrics = self._dump_state()
        except OSError as error:
            self.skip_checkpoint(saves[0].step, f"{error.strerror}; training continues")
            return
        self._queue_item(BarrierState(tuple(saves), report, metrics, monotonic()))

    def skip_checkpoint(self, step: int, why: str) -> None:
        """There is no checkpoint of this step; what the ranks have written of it can be removed."""
        self._last_step = step
        self._messages.add_failure(step, why)
        self._queue_item(SkippedStep(step))

    def take_messages(self) -> list[CheckpointMessage]:
        """Messages for the job's log, each of them once."""
        return self._messages.take_all()

    @property
    def pending_checkpoint(self) -> PendingCheckpoint | None:
        """The newest checkpoint that is on this node's disk alone, though its storage is elsewhere."""
        newest = self._pointer.newest_pending if self._carriage is not None else None
        return None if newest is None else PendingCheckpoint(newest.step, newest.manifest.epoch, newest.sha256)

    @property
    def final_directory(self) -> Path | None:
        """The checkpoint of the last step that was to be saved, which may be the one that the attempt resumed from;
        None where it is not on disk."""
        newest = self._newest
        named = checkpoints.parse_name(newest.name) if newest is not None else None
        return newest if named is not None and named[0] == self._last_step else None

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Wait until everything is on disk, and the newest checkpoint is pointed to. Ranks may be dead by now.

        What takes longer is given up: a checkpoint that is not pointed to may be lost, but its job is not.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(seconds)
        if self._thread.is_alive() or not self._pointer.join():
            log.warning("checkpoint_not_kept", waiting=len(self._waiting), pending=self._pointer.pending_count)

    def _queue_item(self, item: BarrierState | SkippedStep) -> None:
        with self._changed:
            self._waiting.append(item)
            self._changed.notify_all()

    # -- the writer's thread -------------------------------------------------------------------------

    def _run_writes(self) -> None:
        while (item := self._await_item()) is not None:
            try:
                self._write_item(item)
            except Exception:
                log.exception("checkpoints_failed")
        self._pointer.finish_pending()

    def _await_item(self) -> BarrierState | SkippedStep | None:
        """What is to be done next, once there is something; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            return self._waiting.popleft() if self._waiting else None

    def _write_item(self, item: BarrierState | SkippedStep) -> None:
        try:
            if isinstance(item, BarrierState) and not self._pointer.is_lost:
                self._fetch_drafts(item)
                durable = assemble_checkpoint(self._config, self._directories, item, self._sources)
                self._newest = durable.directory
                self._pointer.add_checkpoint(durable)
                self._pruner.prune(item.step, committed=False)
        except (OSError, TakeoverRefused) as error:
            why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
            log.warning("checkpoint_not_saved", step=item.step, error=str(error))
            self._messages.add_failure(item.step, why if self._closing else f"{why}; training continues")
        finally:
            for source in self._sources:
                remove_if_there(source.drafts / str(item.step))
            self._remove_drafts(item.step)
            remove_if_there(part_directory(self._config, self._directories, item.step))

    def _fetch_drafts(self, state: BarrierState) -> None:
        """Have what the ranks of other nodes have saved, where not all mount the storage. Raises OSError."""
        for source in self._sources[1:]:
            files = [file for saved in state.saves if saved.rank in source.ranks for file in saved.files]
            if self._carriage is not None:
                self._carriage.fetch_draft(source.drafts / str(state.step), files)
            elif source.is_brought:
                await_draft(source.drafts / str(state.step), files)

    def _remove_drafts(self, step: int) -> None:
        if self._carriage is None:
            return
        for source in self._sources[1:]:
            self._carriage.remove_draft(source.drafts / str(step))
