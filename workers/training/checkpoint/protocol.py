"""Decides when a rank saves its part of a checkpoint, and waits for the supervisor's commands."""

from jobs.protocol.records import Paused, Saved
from workers.runtime.commands import CONTINUE, SAVE
from workers.runtime.context import StopTraining
from workers.training.checkpoint import state
from workers.training.run_state import TrainingRun


def after_step(run: TrainingRun, total_steps: int | None) -> None:
    """Save the run if it is due; pause if the rank was told to stop, and save if the supervisor says so.

    Raises:
        StopTraining: the rank is to end.
    """
    if run.checkpoints is None:
        if run.context.stopping():
            raise _stop_error(run)
        return
    whole = run.progress.steps_done == total_steps
    wanted = run.program.checkpoint
    if wanted is not None and run.progress.steps_done % wanted.every_steps == 0:
        _save_checkpoint(run, whole=whole)
    if run.context.stopping() and _send_and_wait(run, Paused(run.context.rank, run.progress.steps_done)) == SAVE:
        _save_checkpoint(run, whole=whole)


def save_at_end(run: TrainingRun) -> None:
    """Save the run at its end, unless nothing has changed.

    Raises:
        StopTraining: the rank is to end.
    """
    if run.checkpoints is not None and run.progress.saved_step != run.progress.steps_done:
        _save_checkpoint(run, whole=True)


def _save_checkpoint(run: TrainingRun, *, whole: bool) -> None:
    run.send_pending_loss()
    run.strategy.recorder.finish()
    saved = state.save_checkpoint(run, whole=whole)
    run.progress.saved_step = (
        run.progress.steps_done
    )  # also where it failed: ranks must do the same, and only one may have failed
    _send_and_wait(run, saved)


def _send_and_wait(run: TrainingRun, record: Paused | Saved) -> bytes:
    """Send all records up to this one, and wait for the supervisor's command.

    Raises:
        StopTraining: it is to end, or the supervisor has ended.
    """
    assert run.checkpoints is not None
    run.strategy.recorder.emit(record)
    flush = getattr(run.context.sink, "flush", None)
    if flush is not None:
        flush()
    command = run.checkpoints.read_command()
    if command not in (CONTINUE, SAVE):
        raise _stop_error(run)
    return command


def _stop_error(run: TrainingRun) -> StopTraining:
    return StopTraining(f"told to stop after step {run.progress.steps_done - 1}")
