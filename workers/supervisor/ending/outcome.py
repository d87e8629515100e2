"""The outcome of an attempt as its job's status shows it, and how the failure of a rank becomes one."""

import signal
from dataclasses import dataclass, replace
from typing import Any

from jobs.files.log_page import clean_for_display
from jobs.model.spec import ScriptProgram
from jobs.model.state import StateReason
from jobs.protocol.records import Outcome
from workers.rank.handle import RankHandle
from workers.runtime.launch import AttemptConfig, AttemptDirectory
from workers.sandbox.cgroup import read_record
from workers.supervisor.ending.child_errors import describe_child_error, find_child_error
from workers.supervisor.ending.error_hints import explain_death, explain_error
from workers.supervisor.ending.hint_rules import FailureContext
from workers.supervisor.ending.oom import count_oom_kills
from workers.supervisor.ending.training_hints import NCCL_TIMEOUT


@dataclass(frozen=True, slots=True)
class AttemptOutcome:
    """How an attempt ended. `error` and `result` are what the job's status shows."""

    reason: StateReason
    message: str = ""
    error: dict[str, Any] | None = None
    result: dict[str, Any] | None = None


#: The lease is lost: what happened here does not count, and the control Redis refuses everything about it.
LEASE_LOST = AttemptOutcome(StateReason.LEASE_EXPIRED, "the lease was lost")
#: The exit code of a program that refuses its arguments; the last line of its stderr says why.
EXIT_USAGE = 2
#: Between the traceback of a launcher's child and the launcher's own.
CHILD_OF = "The process above was started by the program, which then failed:"
#: Characters of a job's message and traceback, whatever a rank has cut; of the second the end is kept. The store cuts
#: them again, by bytes (`bound_end` of jobs/store/lua/attempts.lua).
MAX_MESSAGE = 4_000
MAX_TRACEBACK = 64 * 1024
_REASONS = {
    "code_error": StateReason.CODE_ERROR,
    "out_of_memory": StateReason.OUT_OF_MEMORY,
    "rejected_by_worker": StateReason.REJECTED_BY_WORKER,
}


class FailureClassifier:
    """Makes the outcome of an attempt from the failure of one of its ranks. `requirements`: whether the job's bundle
    names packages that it needs."""

    def __init__(self, config: AttemptConfig, *, requirements: bool) -> None:
        self._config = config
        self._requirements = requirements
        self._cgroups = read_record(AttemptDirectory.of(config.state_dir, config.attempt).cgroup)
        self._oom_kills = count_oom_kills(self._cgroups)

    def classify_failure(self, rank: RankHandle, outcome: Outcome | None) -> AttemptOutcome:
        """The outcome of the attempt, from the rank's own report, or (`outcome` None) from its death without one."""
        if outcome is not None:
            failure = _outcome_of_report(rank, outcome)
        else:
            failure = outcome_of_death(rank, out_of_memory=self._is_out_of_memory(rank))
        return self._with_advice(failure, rank, outcome)

    def _is_out_of_memory(self, rank: RankHandle) -> bool:
        """Whether the kernel has killed for want of memory on the rank's node since this attempt began, as far as that
        can be known."""
        if rank.out_of_memory is not None:
            return rank.out_of_memory
        now = count_oom_kills(self._cgroups)
        return now is not None and now != self._oom_kills

    def _with_advice(self, failure: AttemptOutcome, rank: RankHandle, outcome: Outcome | None) -> AttemptOutcome:
        """The same with a line of advice, where there is any for a failure of this kind."""
        assert failure.error is not None
        program = self._config.spec.program
        context = FailureContext(
            devices=len(self._config.devices),
            device_kind=self._config.devices[0].kind,
            strategy=self._config.strategy,
            rehearsing=self._config.spec.rehearsal,
            requirements=self._requirements,
            is_script=isinstance(program, ScriptProgram),
            brings_code=program.bundle is not None,
            network=self._config.network,
            pool=self._config.spec.pool,
        )
        if outcome is not None:
            line = explain_error(outcome.kind, failure.error["message"], outcome.traceback, context)
        else:
            line = explain_death(_clean_text(rank.stderr_tail.decode(errors="replace")), context)
        has_field = bool(line) or program.bundle is not None
        return replace(failure, error=failure.error | {"advice": line or None}) if has_field else failure


def _outcome_of_report(rank: RankHandle, outcome: Outcome) -> AttemptOutcome:
    message = outcome.message
    if outcome.exit_code == EXIT_USAGE and not outcome.traceback and (line := _last_stderr_line(rank)):
        message += f": {line}"
    trace = outcome.traceback
    child = find_child_error(message, trace, rank.stderr_tail.decode(errors="replace"))
    if child is not None:
        message, trace = describe_child_error(message, trace, child), f"{child.traceback}\n{CHILD_OF}\n\n{trace}"
    message, traceback = _clean_text(message)[:MAX_MESSAGE], _clean_text(trace)[-MAX_TRACEBACK:]
    error = _error_of(rank, message) | {"exit_code": outcome.exit_code, "traceback": traceback or None}
    return AttemptOutcome(_REASONS.get(outcome.kind, StateReason.RANK_FAILED), f"{rank.name}: {message}", error)


def outcome_of_death(rank: RankHandle, *, out_of_memory: bool) -> AttemptOutcome:
    """The outcome of an attempt whose rank died without a report. `out_of_memory`: the kernel has killed for want of
    memory since the attempt began."""
    assert rank.status is not None
    if rank.status >= 0:
        message = f"{rank.name} exited with code {rank.status} before it reported its outcome"
        return AttemptOutcome(StateReason.RANK_FAILED, message, _error_of(rank, message) | {"exit_code": rank.status})
    name = _signal_name(-rank.status)
    reason, message = StateReason.RANK_FAILED, f"{rank.name} was killed by {name}"
    if rank.status == -signal.SIGKILL and out_of_memory:
        reason = StateReason.OUT_OF_MEMORY
        message = f"{rank.name} was killed by the kernel, which had no memory left for this node or container"
    return AttemptOutcome(reason, message, _error_of(rank, message) | {"signal": name})


def may_have_timed_out(failure: AttemptOutcome) -> bool:
    """Whether NCCL may have ended the attempt because a collective timed out: it leaves its process no report, or
    raises an error that says so."""
    return failure.reason is StateReason.RANK_FAILED or bool(NCCL_TIMEOUT.pattern.search(failure.message))


def name_hang(failure: AttemptOutcome, hang: str) -> AttemptOutcome:
    """The same failure, with the rank that the others had waited for."""
    error = failure.error or {}
    words = f"{error.get('message', failure.message)}; {hang}"
    return replace(failure, message=f"{failure.message}; {hang}", error=error | {"message": words})


def _error_of(rank: RankHandle, message: str) -> dict[str, Any]:
    error = {"rank": rank.number, "exit_code": None, "signal": None, "message": message, "traceback": None}
    return error | ({"node": rank.node} if rank.node else {})


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _last_stderr_line(rank: RankHandle) -> str:
    lines = rank.stderr_tail.decode(errors="replace").strip().splitlines()
    return lines[-1].strip()[:500] if lines else ""


def _clean_text(text: str) -> str:
    """The text of an exception without control sequences: reasons are printed wherever jobs are listed."""
    return "\n".join(clean_for_display(line.encode(errors="replace")) for line in text.split("\n"))
