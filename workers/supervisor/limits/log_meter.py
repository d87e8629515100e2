"""Counts what an attempt prints, and says how much of it is still kept."""

from workers.supervisor.limits.breach import LimitBreach


class LogMeter:
    """`allowed` is in bytes, over all ranks and devices; None: without a limit. Used by the supervisor's loop alone."""

    def __init__(self, allowed: int | None) -> None:
        self._allowed = allowed
        self._printed = 0

    def add(self, count: int) -> int:
        """Count bytes that were printed; returns how many of them, from the first on, are kept."""
        before, self._printed = self._printed, self._printed + count
        return count if self._allowed is None else max(0, min(count, self._allowed - before))

    def check(self, now: float, *, at_once: bool = False) -> LimitBreach | None:
        if self._allowed is None or self._printed <= self._allowed:
            return None
        return LimitBreach("log", self._printed, self._allowed)

    def close(self) -> None:
        pass
