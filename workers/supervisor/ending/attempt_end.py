"""The end of an attempt as a state machine: its phase, its outcome, and the rank that failed first.

    WORKING -- begin_leaving --> LEAVING -- begin_ending --> ENDING -- begin_killing --> KILLING
    WORKING -- begin_ending --> ENDING
    WORKING or LEAVING -- begin_killing --> KILLING

It touches no process and reads no clock: `workers.supervisor.stop_sequence` carries out what it decides.
"""

from dataclasses import replace
from enum import Enum, auto
from typing import NamedTuple

from jobs.model.state import StateReason
from jobs.protocol.records import Outcome, Result
from workers.supervisor.ending.outcome import AttemptOutcome

#: A rank must be up this soon after the start.
START_SECONDS = 120.0
#: A rank that is still alive this long after the exit command is killed; the attempt has succeeded all the same.
LEAVE_SECONDS = 2.0
#: What SIGKILL has not ended after this (a process stuck in the kernel) is left to the sweep.
KILL_SECONDS = 10.0


class EndPhase(Enum):
    WORKING = auto()
    LEAVING = auto()  # every rank has reported success and got the exit command
    ENDING = auto()  # SIGTERM was sent
    KILLING = auto()  # SIGKILL was sent


class RankFailure(NamedTuple):
    """A rank that failed: by its own report, or (`outcome` None) it died without one."""

    rank: int
    outcome: Outcome | None


class AttemptEnd:
    """Times are monotonic. `result` is what rank 0 has reported, if it has."""

    def __init__(self, now: float) -> None:
        self.phase = EndPhase.WORKING
        self.outcome: AttemptOutcome | None = None
        self.first_failure: RankFailure | None = None
        self.result: Result | None = None
        self.is_up = False  # whether any rank is
        self._deadline = now + START_SECONDS

    @property
    def is_working(self) -> bool:
        return self.phase is EndPhase.WORKING

    def keep_first_failure(self, failure: RankFailure) -> RankFailure:
        """The first failure that was found: this one, unless there was another."""
        self.first_failure = self.first_failure or failure
        return self.first_failure

    def start_wall_clock(self, now: float, wall_seconds: float) -> bool:
        """A rank is up. True for the first one: from now on the attempt may take `wall_seconds`."""
        if self.is_up:
            return False
        self.is_up = True
        if self.phase is EndPhase.WORKING:
            self._deadline = now + wall_seconds
        return True

    def begin_leaving(self, now: float) -> bool:
        """Every rank has reported success. False: the attempt has begun to end otherwise."""
        if self.phase is not EndPhase.WORKING:
            return False
        self.outcome = AttemptOutcome(StateReason.COMPLETED)
        self._enter_phase(EndPhase.LEAVING, now + LEAVE_SECONDS)
        return True

    def begin_ending(self, outcome: AttemptOutcome, now: float, grace_seconds: float) -> bool:
        """The ranks are to end within the grace. False: they were told so before, and the first outcome counts."""
        if self.phase not in (EndPhase.WORKING, EndPhase.LEAVING):
            return False
        self.outcome = outcome
        self._enter_phase(EndPhase.ENDING, now + grace_seconds)
        return True

    def begin_killing(self, now: float, outcome: AttemptOutcome | None = None) -> bool:
        """The ranks are to be killed. An `outcome`, where it is given, replaces an earlier one: the lease is lost.
        False: they were killed before."""
        if self.phase is EndPhase.KILLING:
            return False
        self.outcome = outcome or self.outcome
        self._enter_phase(EndPhase.KILLING, now + KILL_SECONDS)
        return True

    def is_overdue(self, now: float) -> bool:
        """Whether the phase has lasted longer than it may."""
        return now > self._deadline

    def has_given_up(self, now: float) -> bool:
        """Whether SIGKILL has not ended all ranks in time."""
        return self.phase is EndPhase.KILLING and self.is_overdue(now)

    def final_outcome(self) -> AttemptOutcome:
        """How the attempt ended, once all ranks are dead or given up."""
        assert self.outcome is not None
        if self.outcome.reason is not StateReason.COMPLETED or self.result is None:
            return self.outcome
        return replace(self.outcome, result={"loss": self.result.loss, "metrics": self.result.metrics})

    def _enter_phase(self, phase: EndPhase, deadline: float) -> None:
        self.phase = phase
        self._deadline = deadline
