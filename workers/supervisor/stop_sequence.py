"""Ends the ranks of an attempt: a checkpoint where there is time for one, SIGTERM, a grace, SIGKILL."""

import signal
from collections.abc import Callable, Sequence

from jobs.model.spec import ScriptProgram
from workers.rank.handle import RankHandle
from workers.runtime.launch import AttemptConfig
from workers.supervisor.checkpoints.coordinator import CheckpointCoordinator
from workers.supervisor.descendants import DescendantServer
from workers.supervisor.ending.attempt_end import AttemptEnd, EndPhase
from workers.supervisor.ending.outcome import AttemptOutcome
from workers.supervisor.limits.breach import LimitBreach, outcome_of_breach


class StopSequence:
    """Carries out the phases of `end` on the ranks. `checkpoints`: where the job asks for them. `descendants`: where
    processes of the job's own code report. `log_line` writes to the job's log."""

    def __init__(
        self,
        end: AttemptEnd,
        config: AttemptConfig,
        ranks: Sequence[RankHandle],
        checkpoints: CheckpointCoordinator | None,
        descendants: DescendantServer | None,
        log_line: Callable[[str], None],
    ) -> None:
        self._end = end
        self._config = config
        self._ranks = ranks
        self._checkpoints = checkpoints
        self._descendants = descendants
        self._log_line = log_line
        self._stop_outcome: AttemptOutcome | None = None  # of the stop for which the ranks save
        self._save_deadline = 0.0

    @property
    def is_saving(self) -> bool:
        """Whether the ranks got the command to save and stop, which cannot be revoked."""
        return self._stop_outcome is not None

    def let_ranks_leave(self, now: float) -> None:
        """All ranks have succeeded: they may exit."""
        if self._end.begin_leaving(now):
            for rank in self._ranks:
                rank.allow_exit()

    def save_and_stop(self, outcome: AttemptOutcome, now: float, *, has_stepped: bool) -> None:
        """Have the ranks save what they have done, and end them then, or when the time for it is over. To be called
        again until they have ended."""
        seconds = self._config.checkpoint_seconds
        if self._checkpoints is None or not has_stepped:
            is_script = isinstance(self._config.spec.program, ScriptProgram)  # it may save in its handler of SIGTERM
            self.terminate_ranks(outcome, now, seconds if is_script else 0.0)
        elif self._stop_outcome is None:
            self._stop_outcome, self._save_deadline = outcome, now + seconds
            self._checkpoints.request_stop()
            self._send_signal(signal.SIGTERM)
        elif self._checkpoints.has_released or now > self._save_deadline:
            if not self._checkpoints.has_released:
                self._log_line(f"the ranks could not save within {seconds:g} s; they are ended")
            self.terminate_ranks(outcome, now)

    def terminate_stopped(self, now: float) -> None:
        """End all ranks, since one of them has stopped on command."""
        assert self._stop_outcome is not None
        self.terminate_ranks(self._stop_outcome, now)

    def terminate_ranks(self, outcome: AttemptOutcome, now: float, min_grace_seconds: float = 0.0) -> None:
        """Send SIGTERM to all ranks; the first outcome counts. They have the configured grace, or the one given here
        where that is longer."""
        if not self._end.begin_ending(outcome, now, max(min_grace_seconds, self._config.grace_seconds)):
            return
        self._send_signal(signal.SIGTERM)
        if self._checkpoints is not None:
            self._checkpoints.release_all()
        if self._descendants is not None:
            self._descendants.send_stop()
        for rank in self._ranks:
            if rank.outcome is not None:
                rank.allow_exit()

    def end_over_limit(self, breach: LimitBreach, now: float) -> None:
        """End ranks that have exceeded a limit: at once, since what they do may go on to harm others, unless they have
        only printed too much. An earlier outcome counts, but for a success that was just reported."""
        outcome = outcome_of_breach(breach)
        if breach.is_urgent:
            self.kill_ranks(now, outcome if self._end.phase in (EndPhase.WORKING, EndPhase.LEAVING) else None)
        elif self._end.is_working:
            self.terminate_ranks(outcome, now)

    def kill_ranks(self, now: float, outcome: AttemptOutcome | None = None) -> None:
        """Send SIGKILL to all ranks; an outcome given here replaces an earlier one."""
        if self._end.begin_killing(now, outcome):
            self._send_signal(signal.SIGKILL)

    def _send_signal(self, number: int) -> None:
        for rank in self._ranks:
            rank.kill(number)
