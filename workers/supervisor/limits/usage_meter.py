"""What measures one thing that an attempt uses."""

from typing import Protocol

from workers.supervisor.limits.breach import LimitBreach


class UsageMeter(Protocol):
    """Measures something that has a limit. `check` is called by the supervisor's loop, which must not wait: what takes
    long is measured by a thread of the meter's own, and `check` tells its latest finding."""

    def check(self, now: float, *, at_once: bool = False) -> LimitBreach | None:
        """The limit that is exceeded, as far as is known at `now` (monotonic). Called about ten times a second; a meter
        chooses itself how often it measures, unless `at_once`: a rank has failed, perhaps because of a limit."""

    def close(self) -> None:
        """The attempt is over."""
