"""Coordinates the ranks of an attempt when they save a checkpoint, and when they stop.

A rank that has saved, or has paused because it is to stop, waits for a command. When every rank has saved the same
step, the supervisor knows everything that they sent before this step and nothing that they will send after it: a
checkpoint barrier. Ranks that stop may differ by a step, and the one that is ahead then waits for the others in a
collective. So the ranks that have paused are sent one step further until all are at the same one; that step is saved.

Nothing in here waits or writes: the supervisor's loop passes records and the time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from jobs.files.checkpoints import MAX_FILES_OF_A_RANK, MAX_STEP, is_rank_file, is_sha256
from jobs.protocol.packets import AnyRecord
from jobs.protocol.records import Outline, Paused, Saved, Step
from workers.runtime import commands
from workers.supervisor.checkpoints.messages import CheckpointMessage

#: From the step that is due, or the first rank's part, to the last rank's part. Then the checkpoint is given up, and
#: silence may be a stall again.
SAVE_SECONDS = 600.0
#: At least this much, even where the job says that a shorter pause is a stall: a large model may take long to write.
MIN_SAVE_SECONDS = 60.0
#: A rank that has not paused this long after the last one did is taken to wait for the others.
PAUSE_SKEW_SECONDS = 0.2
MAX_ERROR_CHARS = 300

SendCommand = Callable[[int, bytes], None]


class CheckpointSink(Protocol):
    """Writes checkpoints: see `workers.supervisor.checkpoints.writer:CheckpointWriter`."""

    @property
    def has_room(self) -> bool:
        """Whether another checkpoint can be taken now: the disk may be slow."""

    def write_checkpoint(self, saves: Sequence[Saved]) -> None:
        """All ranks wait at the barrier, and continue when this returns."""

    def skip_checkpoint(self, step: int, why: str) -> None:
        """There is no checkpoint of this step; what the ranks have written of it can be removed."""

    def take_messages(self) -> list[CheckpointMessage]:
        """Messages for the job's log, each of them once."""


@dataclass(slots=True)
class _SaveBarrier:
    """The parts of one checkpoint, as the ranks report them."""

    since: float  # monotonic
    parts: dict[int, Saved]


class CheckpointCoordinator:
    """`send_command` sends a command to a rank, and must not wait. A step is the number of steps that are done.
    `stall_seconds` is the job's limit."""

    def __init__(
        self,
        world_size: int,
        every_steps: int,
        sink: CheckpointSink,
        send_command: SendCommand,
        resumed: int = 0,
        stall_seconds: float | None = None,
    ) -> None:
        self._save_timeout = min(SAVE_SECONDS, max(MIN_SAVE_SECONDS, stall_seconds or SAVE_SECONDS))
        self._world_size = world_size
        self._every_steps = every_steps
        self._sink = sink
        self._send_command = send_command
        self._total_steps: int | None = None  # steps of the whole run
        self._barrier: _SaveBarrier | None = None
        self._last_step = resumed  # the last step that was saved, or could not be
        self._paused: dict[int, int] = {}  # rank -> step
        self._last_pause_at = 0.0  # when the last one paused, or was sent on
        self._done: set[int] = set()
        self._stopping = self._saving_to_stop = self._released = False

    # -- what ranks report ---------------------------------------------------------------------------

    def on_record(self, rank: int, record: AnyRecord, now: float) -> None:
        """Take a record of a rank. Records come in the order in which they were sent."""
        match record:
            case Outline():
                self._total_steps = record.total_steps
            case Step(phase="train"):
                self._open_barrier_if_due(record, now)
            case Saved():
                self._on_saved(rank, record, now)
            case Paused():
                self._on_paused(rank, record, now)

    def _open_barrier_if_due(self, step: Step, now: float) -> None:
        """Where a checkpoint is due after this step, the ranks may be silent for a while."""
        done = step.step + 1
        if self._is_due(done) and done > self._last_step and self._barrier is None:
            self._barrier = _SaveBarrier(now, {})

    def _on_saved(self, rank: int, saved: Saved, now: float) -> None:
        if self._released:
            self._send_command(rank, commands.LEAVE)
        elif not self._last_step < saved.step <= MAX_STEP:
            self._send_command(rank, commands.CONTINUE)  # too late: the other ranks have gone on
        else:
            self._barrier = self._barrier or _SaveBarrier(now, {})
            self._barrier.parts[rank] = saved
            self._check_barrier()

    def _on_paused(self, rank: int, paused: Paused, now: float) -> None:
        if self._released or not self._stopping:
            self._send_command(rank, commands.LEAVE)
        else:
            self._paused[rank] = paused.step
            self._last_pause_at = now
            self._align_paused_ranks(now)

    def rank_done(self, rank: int) -> None:
        """A rank's program has ended, or the rank is dead."""
        self._done.add(rank)
        self._paused.pop(rank, None)

    # -- what the supervisor does --------------------------------------------------------------------

    def request_stop(self) -> None:
        """The ranks got the stop command, and will pause."""
        self._stopping = True

    def release_all(self) -> None:
        """The attempt ends: no rank waits any longer, now or later."""
        self._released = True
        self._release_waiting(commands.LEAVE)

    @property
    def has_released(self) -> bool:
        """Whether all ranks got the exit command, after they have saved what they could."""
        return self._released

    def take_messages(self) -> list[CheckpointMessage]:
        """Messages for the job's log about what has become of checkpoints."""
        return self._sink.take_messages()

    @property
    def is_saving(self) -> bool:
        """Whether ranks may be silent because they save."""
        return self._barrier is not None

    def on_tick(self, now: float) -> None:
        if self._barrier is not None:
            self._check_barrier()
        if self._barrier is not None and now - self._barrier.since > self._save_timeout:
            self._abandon_barrier()
        if self._stopping and not self._released:
            self._align_paused_ranks(now)

    def _check_barrier(self) -> None:
        assert self._barrier is not None
        parts = self._barrier.parts
        if len(parts) < self._world_size or not self._sink.has_room:
            return
        saves = [parts[rank] for rank in sorted(parts)]
        why = _find_defect(saves)
        if why is None:
            self._sink.write_checkpoint(saves)
        else:
            self._skip_checkpoint(saves[0].step, why)
        self._close_barrier(max(saved.step for saved in saves))

    def _abandon_barrier(self) -> None:
        """Some rank has not saved in time; those that have must not wait for it."""
        assert self._barrier is not None
        parts = self._barrier.parts
        silent = [str(rank) for rank in range(self._world_size) if rank not in parts]
        if parts:
            why = f"rank {', '.join(silent)} did not save" if silent else "the storage was busy with an older one"
            step = max(saved.step for saved in parts.values())
            self._skip_checkpoint(step, f"{why} within {self._save_timeout:g} s")
            self._close_barrier(step)
        else:
            self._barrier = None

    def _skip_checkpoint(self, step: int, why: str) -> None:
        self._sink.skip_checkpoint(step, why if self._stopping else f"{why}; training continues")

    def _close_barrier(self, step: int) -> None:
        self._last_step = step
        if self._saving_to_stop:
            self.release_all()
        else:
            self._release_waiting(commands.CONTINUE)

    def _release_waiting(self, command: bytes) -> None:
        waiting = set(self._barrier.parts) if self._barrier is not None else set()
        if command == commands.LEAVE:
            waiting |= set(self._paused)
            self._paused.clear()
        self._barrier = None
        for rank in sorted(waiting):
            self._send_command(rank, command)

    def _align_paused_ranks(self, now: float) -> None:
        """Bring the ranks that have paused to the same step, and have them save it."""
        if not self._paused or self._saving_to_stop:
            return
        running = self._world_size - len(self._paused) - len(self._done)
        steps = set(self._paused.values())
        if self._barrier is not None and steps == {saved.step for saved in self._barrier.parts.values()}:
            self._save_before_stop(
                max(steps)
            )  # the other ranks had not heard of the stop yet, and save this step as usual
        elif running == 0 and len(steps) == 1 and not self._done:
            self._save_before_stop(steps.pop())
        elif running == 0 and len(steps) > 1:
            self._advance_ranks(max(steps), now)
        elif now - self._last_pause_at > PAUSE_SKEW_SECONDS:
            self._advance_ranks(min(steps) + 1, now)

    def _save_before_stop(self, step: int) -> None:
        if step <= self._last_step:
            self.release_all()
            return
        self._saving_to_stop = True
        for rank in sorted(self._paused):
            self._send_command(rank, commands.SAVE)
        self._paused.clear()

    def _advance_ranks(self, below: int, now: float) -> None:
        """Have the ranks that paused below a step take one more."""
        for rank in [rank for rank, step in self._paused.items() if step < below]:
            del self._paused[rank]
            self._send_command(rank, commands.CONTINUE)
        self._last_pause_at = now

    def _is_due(self, done: int) -> bool:
        return done % self._every_steps == 0 or done == self._total_steps


def _find_defect(saves: Sequence[Saved]) -> str | None:
    """Why the parts of all ranks make no valid checkpoint; None when they do. Ranks are not trusted."""
    for saved in saves:
        if saved.error:
            return _printable_text(saved.error)
    if len({(saved.step, saved.epoch) for saved in saves}) > 1:
        return "the ranks saved different steps"
    if saves[0].epoch < 0:
        return f"the ranks say that they are in epoch {saves[0].epoch}"
    names = [file.name for saved in saves for file in saved.files]
    for saved in saves:
        if len(saved.files) > MAX_FILES_OF_A_RANK:
            return f"rank {saved.rank} saved {len(saved.files)} files; at most {MAX_FILES_OF_A_RANK} are allowed"
    odd = next((name for name in names if not is_rank_file(name)), None)
    if odd is not None:
        return f"a rank called a file {_printable_text(odd)!r}, which is not allowed"
    if not all(is_sha256(file.sha256) for saved in saves for file in saved.files):
        return "a rank gave something other than the SHA-256 of a file"
    if len(set(names)) < len(names):
        return "two ranks gave the same name to a file"
    return None


def _printable_text(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text[:MAX_ERROR_CHARS]).strip()
