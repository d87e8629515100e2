"""Finds ranks whose work is done and which hang on their way out.

Python waits for threads and exit handlers without a limit. Processes that a rank has started are its work, for which
there is no limit here either.
"""

from collections.abc import Iterator, Sequence

from workers.rank.handle import RankHandle

#: For the exit handlers of a rank, and for its threads once all other ranks are done.
TEARDOWN_SECONDS = 120.0
#: The same where its program has failed, for which the other ranks wait.
FAILED_TEARDOWN_SECONDS = 10.0


class TeardownTimer:
    """Times are monotonic. `last_outcome_at` is when the last rank so far has reported its outcome."""

    def __init__(self, ranks: Sequence[RankHandle]) -> None:
        self._ranks = ranks
        self.last_outcome_at = 0.0

    def find_hung_ranks(self, now: float) -> Iterator[RankHandle]:
        return (rank for rank in self._ranks if self._is_hung(rank, now))

    def _is_hung(self, rank: RankHandle, now: float) -> bool:
        if rank.returned is None or rank.outcome is not None:
            return False
        if rank.returned.outcome.exit_code:
            return now - rank.returned_at > FAILED_TEARDOWN_SECONDS
        if rank.returned.stage == "threads" and not self._is_last(rank):
            return False  # its threads may be its work
        if rank.has_working_children:
            rank.returned_at = now  # the time for its teardown begins when they have ended
        return now - max(rank.returned_at, self.last_outcome_at) > TEARDOWN_SECONDS

    def _is_last(self, rank: RankHandle) -> bool:
        """Whether there are other ranks, and all of them are done."""
        return len(self._ranks) > 1 and all(other.outcome is not None for other in self._ranks if other is not rank)
