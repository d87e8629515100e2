"""Asks the ranks of a run that hangs what they wait for: their stacks, by a signal, and the collectives they called."""

import dataclasses
from collections.abc import Sequence

from msgspec.structs import replace

from jobs.protocol.records import CallsMade, GroupCalls
from workers.rank.handle import RankHandle
from workers.runtime.launch import AttemptConfig, AttemptDirectory
from workers.runtime.stacks import STACKS_SIGNAL
from workers.supervisor.hangs.diagnosis import Hang, RankState, find_hang
from workers.supervisor.hangs.stacks import RankPosition, find_position

#: How long the stacks may take to arrive, and the answers of ranks that can give one.
STACKS_SECONDS = 1.0
ANSWER_SECONDS = 3.0
#: Requests are numbered in one byte.
MAX_NUMBER = 255


class HangInquiry:
    """One inquiry at a time; `begin` starts another one."""

    def __init__(self, config: AttemptConfig, ranks: Sequence[RankHandle]) -> None:
        self._ranks = ranks
        work = AttemptDirectory.of(config.state_dir, config.attempt).work
        #: What the paths of the program's files have in common on all nodes of the attempt.
        self._below = f"/{work.parent.name}/{work.name}/"
        self._number = 0
        self._began_at: float | None = None
        self._answers: dict[int, Sequence[GroupCalls]] = {}
        self._last_calls: dict[int, Sequence[GroupCalls]] = {}  # of ranks that have failed, in the newest of these

    @property
    def is_open(self) -> bool:
        return self._began_at is not None

    def begin(self, now: float) -> None:
        self._number, self._began_at, self._answers = self._number % MAX_NUMBER + 1, now, {}
        for rank in self._ranks:
            rank.request_calls(self._number)
            if not _has_failed(rank):  # its log ends with its traceback
                rank.kill(STACKS_SIGNAL)

    def add_calls(self, rank: int, record: CallsMade) -> None:
        if record.request == 0:
            self._last_calls[rank] = record.groups
        elif record.request == self._number:
            self._answers[rank] = record.groups

    def is_answered(self, now: float) -> bool:
        """Whether all that can have answered, or have had time to."""
        if self._began_at is None:
            return False
        elapsed = now - self._began_at
        silent = [rank for rank in self._ranks if rank.number not in self._answers and _can_answer(rank)]
        return elapsed > ANSWER_SECONDS or (elapsed > STACKS_SECONDS and not silent)

    def close(self) -> Hang | None:
        """Why the ranks hang, as far as their answers tell."""
        self._began_at = None
        return find_hang([self._state_of(rank) for rank in self._ranks])

    def _state_of(self, rank: RankHandle) -> RankState:
        calls = self._answers.get(rank.number)
        if rank.number in self._last_calls:  # what it answers later has nothing pending any more
            calls = [replace(one, pending=one.pending or one.newest) for one in self._last_calls[rank.number]]
        return RankState(rank.number, calls, self._position_of(rank), _why_absent(rank))

    def _position_of(self, rank: RankHandle) -> RankPosition | None:
        """Where it is, with the file as its program names it."""
        position = find_position(rank.stderr_tail.decode(errors="replace"))
        if position is None or position.frame is None:
            return position
        before, _, within = position.frame.file.partition(self._below)
        return dataclasses.replace(position, frame=dataclasses.replace(position.frame, file=within or before))


def _has_failed(rank: RankHandle) -> bool:
    told = rank.outcome or (rank.returned.outcome if rank.returned is not None else None)
    return told is not None and bool(told.exit_code)


def _can_answer(rank: RankHandle) -> bool:
    return rank.is_alive and rank.outcome is None and not rank.is_stopped


def _why_absent(rank: RankHandle) -> str:
    if _has_failed(rank):
        return "has failed"
    if rank.returned is not None or not rank.is_alive:
        return "has finished its program"
    return "is stopped (SIGSTOP)" if rank.is_stopped else ""
