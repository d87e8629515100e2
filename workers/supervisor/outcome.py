"""How an attempt ended, as its job's status says it; and what a failed rank makes of its attempt."""

import signal
from dataclasses import dataclass, replace
from typing import Any

from jobs.files.log_file import clean_for_display
from jobs.model.state import Reason
from jobs.protocol.records import Outcome
from workers.rank.handle import RankHandle
from workers.supervisor import error_hints


@dataclass(frozen=True, slots=True)
class AttemptOutcome:
    """How an attempt ended. `error` and `result` are what the job's status shows."""

    reason: Reason
    message: str = ""
    error: dict[str, Any] | None = None
    result: dict[str, Any] | None = None


#: The lease is lost: whatever happened here does not count, and the control Redis takes nothing more of it.
LEASE_LOST = AttemptOutcome(Reason.LEASE_EXPIRED, "the lease was lost")
#: What a program exits with that refuses its arguments; its last line says why.
EXIT_USAGE = 2
_REASONS = {
    "code_error": Reason.CODE_ERROR,
    "out_of_memory": Reason.OUT_OF_MEMORY,
    "rejected_by_worker": Reason.REJECTED_BY_WORKER,
}


def outcome_of_failed_rank(rank: RankHandle, outcome: Outcome | None, *, starved: bool) -> AttemptOutcome:
    """The ending that a failed rank gives the attempt: by its own report, or (`outcome` None) by its death without a
    word. `starved`: the kernel has killed for want of memory meanwhile."""
    error: dict[str, Any] = {"rank": rank.number, "exit_code": None, "signal": None, "message": "", "traceback": None}
    if outcome is not None:
        message = outcome.message
        if outcome.exit_code == EXIT_USAGE and not outcome.traceback and (line := _last_stderr_line(rank)):
            message += f": {line}"
        message, trace = _clean_text(message), _clean_text(outcome.traceback)
        error |= {"exit_code": outcome.exit_code, "message": message, "traceback": trace or None}
        return AttemptOutcome(_REASONS.get(outcome.kind, Reason.RANK_FAILED), f"rank {rank.number}: {message}", error)
    assert rank.status is not None
    reason = Reason.RANK_FAILED
    if rank.status == -signal.SIGKILL and starved:
        reason, error["signal"] = Reason.OUT_OF_MEMORY, "SIGKILL"
        message = f"rank {rank.number} was killed by the kernel, which had no memory left for this node or container"
    elif rank.status < 0:
        error["signal"] = _signal_name(-rank.status)
        message = f"rank {rank.number} was killed by {error['signal']}"
    else:
        error["exit_code"] = rank.status
        message = f"rank {rank.number} left with exit code {rank.status} before it reported its outcome"
    return AttemptOutcome(reason, message, error | {"message": message})


def with_advice(ending: AttemptOutcome, outcome: Outcome | None, facts: error_hints.FailureContext) -> AttemptOutcome:
    """The same with a line of advice, where there is any for a failure of this kind."""
    assert ending.error is not None
    kind, trace = (outcome.kind, outcome.traceback) if outcome is not None else ("", "")
    line = error_hints.explain_error(kind, ending.error["message"], trace, facts)
    return replace(ending, error=ending.error | {"advice": line or None})


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _last_stderr_line(rank: RankHandle) -> str:
    lines = rank.last_words.decode(errors="replace").strip().splitlines()
    return lines[-1].strip()[:500] if lines else ""


def _clean_text(text: str) -> str:
    """What a program raised, without what a terminal would obey: reasons are printed wherever jobs are listed."""
    return "\n".join(clean_for_display(line.encode(errors="replace")) for line in text.split("\n"))
