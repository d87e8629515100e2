"""Detects a run that has stalled, as opposed to one that is slow.

A sign of life is a record that a rank cannot send without making progress: a step of any phase, or progress that the
program reports itself. Signs of one rank count for all: ranks that train together wait for each other, so a rank that
hangs silences all of them, and ranks that do not train together are ended by their own exit.

Without `limits.stall_seconds` the run's own pauses are the measure: it has stalled when it has been silent for
twenty times its longest pause, and for half an hour. That may be far too late, but a healthy run must not end because
of a long evaluation that sends no sign.
"""

from collections.abc import Callable

from jobs.model.state import StateReason
from jobs.protocol.packets import SingleRecord, StepBatch
from jobs.protocol.probe_records import Loaded
from jobs.protocol.records import Began, ProgramProgress, Saved
from workers.supervisor.ending.outcome import AttemptOutcome
from workers.supervisor.hangs.diagnosis import Hang
from workers.supervisor.hangs.inquiry import HangInquiry

SIGNS_OF_LIFE = (StepBatch, Began, Loaded, ProgramProgress, Saved)
PAUSE_FACTOR = 20.0
MIN_STALL_SECONDS = 1800.0
#: Signs that must have come before their pauses are a measure.
MIN_SIGNS = 10


class StallDetector:
    """Measures silence by a monotonic clock, whose readings it is given. `limit` is in seconds."""

    def __init__(self, limit: float | None) -> None:
        self._limit = limit
        self._last_sign_at: float | None = None
        self._signs = 0
        self._longest_pause = 0.0

    def start_clock(self, now: float) -> None:
        """The first rank is up: from here on a limit that was asked for counts."""
        self._last_sign_at = now

    def add_record(self, record: StepBatch | SingleRecord, now: float) -> None:
        if isinstance(record, SIGNS_OF_LIFE):
            self.add_sign(now)

    def add_sign(self, now: float) -> None:
        """A rank has made progress."""
        if self._last_sign_at is not None:
            self._longest_pause = max(self._longest_pause, now - self._last_sign_at)
        self._last_sign_at = now
        self._signs += 1

    def excuse_silence(self, now: float) -> None:
        """The silence up to now has a known reason, and is no measure."""
        if self._last_sign_at is not None:
            self._last_sign_at = now

    def find_stall(self, now: float) -> str | None:
        """Why the run is to be ended; None while it has not stalled."""
        allowed = self._allowed_seconds()
        if self._last_sign_at is None or allowed is None or now - self._last_sign_at <= allowed:
            return None
        if self._limit is not None:
            return f"no step for {self._limit:g} s, which is limits.stall_seconds"
        return f"no step for {allowed:.0f} s, when the longest pause before had been {self._longest_pause:.0f} s"

    def _allowed_seconds(self) -> float | None:
        if self._limit is not None:
            return self._limit
        return max(MIN_STALL_SECONDS, PAUSE_FACTOR * self._longest_pause) if self._signs >= MIN_SIGNS else None


class StallReporter:
    """Asks the ranks of a run that hangs what they wait for, before it is ended. `log_line` writes to the job's log."""

    def __init__(self, detector: StallDetector, inquiry: HangInquiry, log_line: Callable[[str], None]) -> None:
        self.detector = detector
        self.inquiry = inquiry
        self._log_line = log_line
        self._then: Callable[[Hang | None], None] | None = None

    def check_stall(self, now: float) -> AttemptOutcome | None:
        """How the run is to be ended, once its ranks have had time to answer; None until then."""
        why = self.detector.find_stall(now)
        if why is None:
            if self.inquiry.is_open and self._then is None:
                self.inquiry.close()  # it goes on
        elif not self.inquiry.is_open:
            self._log_line(f"{why}; the stacks of all ranks follow, in the log of each")
            self.inquiry.begin(now)
        elif self.inquiry.is_answered(now):
            return self._outcome_of(why, self._close_inquiry())
        return None

    def ask_then(self, then: Callable[[Hang | None], None], now: float) -> None:
        """Ask the ranks, and call `then` when they have answered: a rank has given a collective up."""
        self._then = then
        if not self.inquiry.is_open:
            self.inquiry.begin(now)

    @property
    def is_asking(self) -> bool:
        return self._then is not None

    def finish_asking(self, now: float, *, at_once: bool = False) -> None:
        """Call what `ask_then` was given, if the ranks have answered, or `at_once`: there are none any more."""
        if self._then is not None and (at_once or self.inquiry.is_answered(now)):
            then, self._then = self._then, None
            then(self._close_inquiry())

    def _close_inquiry(self) -> Hang | None:
        hang = self.inquiry.close()
        if hang is not None:
            self._log_line(hang.message)
        return hang

    def _outcome_of(self, why: str, hang: Hang | None) -> AttemptOutcome:
        if hang is None:
            return AttemptOutcome(StateReason.STALLED, f"{why}; the stacks of all ranks are in the log")
        message = f"{why}: {hang.message}; the stacks of all ranks are in the log"
        error = {"rank": hang.rank, "exit_code": None, "signal": None, "message": message, "traceback": None}
        return AttemptOutcome(StateReason.STALLED, message, error | {"advice": hang.advice or None})
