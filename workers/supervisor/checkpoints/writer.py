"""From the files that ranks have written to a checkpoint that survives a power cut, in threads of its own.

    ranks       write <attempt>/drafts/<step>/, wait at the cut, and train on
    the keeper  takes the files over; writes the state of the report, the metrics and the manifest; syncs all of it;
                renames the directory to its final name, syncs that; points the job to it in the control Redis; and
                removes what is older than the spec keeps

A Redis that is away, or does not answer, delays the pointer, which has a thread to itself, and nothing else:
checkpoints go on being kept, and the newest is pointed to when it is back. A disk that refuses costs this checkpoint,
and a line in the log.
"""

import hashlib
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Protocol

import structlog

from jobs import store
from jobs.files import checkpoints
from jobs.files.checkpoints import FORMAT, MANIFEST, METRICS, REPORT, Manifest, Verified
from jobs.model.spec import Checkpoint, JobSpec, RecipeProgram
from jobs.protocol.records import Note, Saved
from jobs.support import failpoints, fs
from shardyard.contract.errors import Unavailable
from workers.runtime.launch import AttemptConfig
from workers.supervisor.checkpoints.directories import CheckpointDirectories
from workers.supervisor.checkpoints.takeover import (
    TakeoverRefused,
    copy_prefix,
    remove_if_there,
    sync_path,
    take_over_files,
    write_file,
)
from workers.supervisor.lease import FINISH_SECONDS, LeaseHolder

log = structlog.get_logger(__name__)

#: Of the spec, for notes in the report.
NOTE_FIELD = "program.checkpoint"
#: How often the pointer is tried again while the control Redis is away.
RETRY_SECONDS = 0.5
#: Checkpoints that may wait while one is brought to the disk; the ranks wait when there are more.
MAX_WAITING = 1
#: Lines for people that may wait.
MAX_MESSAGES = 100
#: How long the end of an attempt waits for the disk.
CLOSE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class BarrierState:
    """What the supervisor knows at a cut. `report` is None where its state could not be had."""

    saves: tuple[Saved, ...]  # of all ranks, in their order
    report: bytes | None
    metrics: tuple[Path, int]  # the attempt's file, and how much of it is before the cut
    at: float  # monotonic

    @property
    def step(self) -> int:
        return self.saves[0].step


@dataclass(frozen=True, slots=True)
class CheckpointMessage:
    """What people should know of a checkpoint."""

    text: str
    failed: bool


@dataclass(frozen=True, slots=True)
class _SkippedStep:
    step: int


@dataclass(frozen=True, slots=True)
class DurableCheckpoint:
    """A checkpoint that is whole and on disk."""

    manifest: Manifest
    sha256: str
    directory: Path
    at: float  # of the cut


@dataclass(frozen=True, slots=True)
class AttemptCheckpoints:
    """The checkpoints of an attempt. `resume` is where its ranks read the one that it begins with."""

    wanted: Checkpoint
    place: CheckpointDirectories
    keeper: "CheckpointWriter"
    resumed: Verified | None
    resume: Path | None

    @property
    def step(self) -> int:
        """Steps that were done before the attempt began."""
        return self.resumed.manifest.step if self.resumed is not None else 0

    def tell(self, out: "MessageSink") -> None:
        """Say in the log what has become of checkpoints; what was missed is in the report too."""
        for line in self.keeper.lines():
            out.log_line(line.text)
            if line.failed:
                out.add_record(0, Note(NOTE_FIELD, line.text))


class MessageSink(Protocol):
    def log_line(self, text: str) -> None: ...

    def add_record(self, rank: int, record: Note) -> None: ...


def checkpoint_settings(spec: JobSpec) -> Checkpoint | None:
    """What a spec says of checkpoints, if it is of a program that has any."""
    program = spec.program
    return program.checkpoint if isinstance(program, RecipeProgram) and program.mode == "train" else None


class CheckpointWriter:
    """Keeps the checkpoints of one attempt. `cut` is asked for what the supervisor knows when the ranks stand at a cut.

    Used by the supervisor's loop. One thread does what the disk takes time for, and another what Redis does. Lines for
    people wait in `lines`.
    """

    def __init__(
        self,
        launch: AttemptConfig,
        place: CheckpointDirectories,
        keep: int,
        lifeline: LeaseHolder,
        cut: Callable[[], tuple[bytes | None, tuple[Path, int]]],
        resumed: Verified | None,
    ) -> None:
        self._launch = launch
        self._place = place
        self._keep = keep
        self._lifeline = lifeline
        self._cut = cut
        self._newest: Path | None = resumed.directory if resumed is not None else None
        self._last = resumed.manifest.step if resumed is not None else 0  # step that was to be kept
        self._waiting: deque[BarrierState | _SkippedStep] = deque()
        self._pending: deque[DurableCheckpoint] = deque(maxlen=MAX_MESSAGES)  # on disk, and not pointed to yet
        self._closing = self._all_filed = self._lost = False
        self._changed = threading.Condition()
        #: Steps to one of which the job points: the last that is known, the first of those asked for since then, and
        #: the last of them. Whoever removes checkpoints, or asks for another pointer, holds the lock.
        self._known = resumed.manifest.step if resumed is not None else None
        self._first_asked: int | None = None
        self._asked: int | None = None
        self._files = threading.Lock()
        self._told: int | None = None  # the step of which it was said that Redis is away
        self._lines: deque[CheckpointMessage] = deque(maxlen=MAX_MESSAGES)
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)
        self._pointing = threading.Thread(target=self._run_pointing, name="pointer", daemon=True)
        self._thread.start()
        self._pointing.start()

    # -- the supervisor's side -----------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        return len(self._waiting) < MAX_WAITING

    def take(self, saves: Sequence[Saved]) -> None:
        self._last = saves[0].step
        try:
            report, metrics = self._cut()
        except OSError as error:
            self.miss(saves[0].step, f"{error.strerror}; training goes on")
            return
        self._put(BarrierState(tuple(saves), report, metrics, monotonic()))

    def miss(self, step: int, why: str) -> None:
        self._last = step
        self._missed(step, why)
        self._put(_SkippedStep(step))

    def lines(self) -> list[CheckpointMessage]:
        """What people should read in the log, once."""
        return [self._lines.popleft() for _ in range(len(self._lines))]

    @property
    def final(self) -> Path | None:
        """The checkpoint of the last step that was to be kept, which may be the one that the attempt began with; None
        where it is not on disk."""
        newest = self._newest
        named = checkpoints.parse_name(newest.name) if newest is not None else None
        return newest if named is not None and named[0] == self._last else None

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Wait until all that was taken is on disk, and the newest is pointed to. Ranks may be dead by now.

        What takes longer is left: a checkpoint that is not pointed to may be lost, which its job is not.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(seconds)
        if not self._thread.is_alive():
            self._pointing.join(FINISH_SECONDS)  # where Redis is away, it could not be told of the end either
        if self._thread.is_alive() or self._pointing.is_alive():
            log.warning("checkpoint_not_kept", waiting=len(self._waiting), pending=len(self._pending))

    def _missed(self, step: int, why: str) -> None:
        self._lines.append(CheckpointMessage(f"checkpoint of step {step} could not be saved: {why}", failed=True))

    def _say(self, text: str) -> None:
        self._lines.append(CheckpointMessage(text, failed=False))

    def _put(self, item: BarrierState | _SkippedStep) -> None:
        with self._changed:
            self._waiting.append(item)
            self._changed.notify_all()

    # -- the disk's thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        while (item := self._next_item()) is not None:
            try:
                self._handle(item)
            except Exception:
                log.exception("checkpoints_failed")
        with self._changed:
            self._all_filed = True
            self._changed.notify_all()

    def _next_item(self) -> BarrierState | _SkippedStep | None:
        """What is to be done next, once there is something; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            return self._waiting.popleft() if self._waiting else None

    def _handle(self, item: BarrierState | _SkippedStep) -> None:
        draft = self._place.drafts / str(item.step)
        try:
            if isinstance(item, BarrierState) and not self._lost:
                kept = self._make_durable(item, draft)
                with self._changed:
                    self._newest = kept.directory
                    self._pending.append(kept)
                    self._changed.notify_all()
                self._prune(item.step, committed=False)
        except (OSError, TakeoverRefused) as error:
            why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
            log.warning("checkpoint_not_saved", step=item.step, error=str(error))
            self._missed(item.step, why if self._closing else f"{why}; training goes on")
        finally:
            remove_if_there(draft)
            remove_if_there(self._part(item.step))

    def _part(self, step: int) -> Path:
        return self._place.kept / f".{checkpoints.directory_name(step, self._launch.attempt.number)}.part"

    def _make_durable(self, cut: BarrierState, draft: Path) -> DurableCheckpoint:
        """Put a checkpoint together under its final name, on disk.

        Raises:
            OSError: the disk refuses.
            Refused: the ranks' files are not what they said.
        """
        first, launch = cut.saves[0], self._launch
        part = self._part(cut.step)
        final = self._place.kept / checkpoints.directory_name(cut.step, launch.attempt.number)
        remove_if_there(part)
        part.mkdir(mode=0o700)
        files = take_over_files(cut.saves, draft, part, launch.account)
        own = {METRICS: partial(copy_prefix, *cut.metrics)}
        if cut.report is not None:
            own[REPORT] = partial(write_file, cut.report)
        for name, put in own.items():
            files[name] = put(part / name)
        manifest = Manifest(
            format=FORMAT,
            step=first.step,
            epoch=first.epoch,
            attempt=launch.attempt.number,
            world_size=launch.world_size,
            strategy=launch.strategy,
            files=dict(sorted(files.items())),
        )
        body = manifest.encode()
        write_file(body, part / MANIFEST)
        failpoints.reach("checkpoint.written")
        for name in (*own, MANIFEST):
            sync_path(part / name)
        sync_path(part)
        failpoints.reach("checkpoint.synced")
        if final.exists():  # a directory of that name is none of this run's
            fs.remove(final)
        part.rename(final)
        failpoints.reach("checkpoint.renamed")
        sync_path(self._place.kept)
        return DurableCheckpoint(manifest, hashlib.sha256(body).hexdigest(), final, cut.at)

    def _prune(self, step: int, *, committed: bool) -> None:
        """Remove what is not to be kept; before the commit, of this attempt's own only, since another one may have its
        place by now. What cannot be removed is tried again after the next checkpoint."""
        mine = self._launch.attempt.number
        with self._files:
            pointed = [one for one in (self._known, self._first_asked, self._asked) if one is not None]
            for old in checkpoints.obsolete(checkpoints.kept(self._place.kept), mine, step, self._keep, pointed):
                if committed or old.attempt == mine:
                    remove_if_there(old.directory)

    # -- the pointer's thread ------------------------------------------------------------------------

    def _run_pointing(self) -> None:
        while (kept := self._next_to_point()) is not None:
            try:
                self._point(kept)
            except Exception:
                log.exception("checkpoint_not_committed")
                self._settled(kept)

    def _next_to_point(self) -> DurableCheckpoint | None:
        """The newest checkpoint that is not pointed to, once there is one; None at the end. It stays on disk."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._all_filed)
        with self._files:
            kept = self._pending[-1] if self._pending else None
            if kept is not None:
                self._asked = kept.manifest.step
                self._first_asked = self._asked if self._first_asked is None else self._first_asked
            return kept

    def _point(self, kept: DurableCheckpoint) -> None:
        """Commit a checkpoint that is on disk. It stays pending while Redis is away."""
        step, epoch = kept.manifest.step, kept.manifest.epoch
        try:
            said = self._lifeline.run_as_claimant(
                partial(store.commit_checkpoint, step=step, epoch=epoch, sha256=kept.sha256)
            )
        except Unavailable as error:
            log.warning("control_redis_unavailable", error=str(error), checkpoint=step)
            if self._told != step:
                self._told = step
                self._say(f"checkpoint of step {step} is on disk; it counts when the control Redis answers again")
                self._prune(step, committed=False)
            threading.Event().wait(RETRY_SECONDS)
            return
        if said == "ok":
            failpoints.reach("checkpoint.committed")
            with self._files:
                self._known, self._first_asked, self._asked = step, None, None
            for one in self._settled(kept):
                self._say(f"checkpoint of step {one.manifest.step} saved in {monotonic() - one.at:.2f} s")
            self._prune(step, committed=True)
        else:
            log.warning("checkpoint_not_committed", step=step, why=said)
            self._lost = self._lost or said == "lost"
            self._settled(kept)

    def _settled(self, kept: DurableCheckpoint) -> list[DurableCheckpoint]:
        """Those for which nothing more is to be asked: this one, and those before it."""
        with self._changed:
            count = sum(one.manifest.step <= kept.manifest.step for one in self._pending)
            return [self._pending.popleft() for _ in range(count)]
