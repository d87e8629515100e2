"""Failures caused by a full disk: who is responsible for them.

When a disk runs full, every program that writes there may fail, not only the one that has filled it. The attempt that
has filled it ends as `resource_limit`, which is its user's failure. The others go back to the queue at no cost, and
start again when there is room.
"""

import re
import time
from time import monotonic

from jobs.model.state import StateReason
from workers.runtime.launch import AttemptConfig
from workers.supervisor.ending.error_hints import DISK_ERROR
from workers.supervisor.ending.outcome import AttemptOutcome
from workers.supervisor.limits.breach import outcome_of_breach
from workers.supervisor.limits.disk_room import DiskRoom, breach_of_verdict, is_disk_low

#: How long the node may take to say who has filled a disk.
VERDICT_SECONDS = 3.0
_PAUSE_SECONDS = 0.1
#: Failures that are the disk's, where it is full, and those that are where the program says so.
_OF_THE_DISK = (StateReason.START_FAILED, StateReason.STORAGE_FAILED)
_OF_THE_PROGRAM = (StateReason.CODE_ERROR, StateReason.RANK_FAILED)


def review_failure(config: AttemptConfig, outcome: AttemptOutcome, room: DiskRoom) -> AttemptOutcome:
    """The outcome, or the one that it has where a full disk was the cause."""
    if not may_be_of_disk(outcome) or not room.was_low:
        return outcome
    return await_breach(room) or requeue_outcome(config.node, outcome)


def await_breach(room: DiskRoom) -> AttemptOutcome | None:
    """The outcome of an attempt that has filled a disk, as soon as its node says so; None where it has not."""
    deadline = monotonic() + VERDICT_SECONDS
    while (verdict := room.verdict) is None and monotonic() < deadline:
        time.sleep(_PAUSE_SECONDS)
    return None if verdict is None else outcome_of_breach(breach_of_verdict(verdict))


def review_failed_start(config: AttemptConfig, outcome: AttemptOutcome) -> AttemptOutcome:
    """The same for an attempt that could not start."""
    return requeue_outcome(config.node, outcome) if may_be_of_disk(outcome) and is_disk_low(config) else outcome


def requeue_outcome(node: str, outcome: AttemptOutcome) -> AttemptOutcome:
    message = f"a disk of node {node} had too little free space: {outcome.message}"
    return AttemptOutcome(StateReason.STORAGE_LOW, message, outcome.error)


def may_be_of_disk(outcome: AttemptOutcome) -> bool:
    """Whether this may be the failure of a program that has found a disk full."""
    if outcome.reason in _OF_THE_DISK:
        return True
    error = outcome.error or {}
    said = f"{outcome.message}\n{error.get('traceback') or ''}"
    return outcome.reason in _OF_THE_PROGRAM and re.search(DISK_ERROR, said) is not None
