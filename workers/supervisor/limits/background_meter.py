"""A meter whose measurements take too long for the supervisor's loop, and are made by a thread."""

import threading
from abc import ABC, abstractmethod
from contextlib import suppress

import structlog

from workers.supervisor.limits.breach import LimitBreach

log = structlog.get_logger(__name__)

#: How long the end of an attempt waits for a measurement that is under way: a storage that hangs must not hold it up.
CLOSE_SECONDS = 2.0
#: Before the first measurement, so that it does not hold up the start of the ranks; and after an error of the system.
FIRST_SECONDS = 0.25
RETRY_SECONDS = 5.0


class BackgroundMeter(ABC):
    """`measure` sets `breach`, which stays as it is from then on."""

    def __init__(self, name: str) -> None:
        """Start the thread, which is the last thing that a meter's own `__init__` does."""
        self.breach: LimitBreach | None = None
        self.is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"limits: {name}", daemon=True)
        self._thread.start()

    @abstractmethod
    def measure(self) -> float:
        """Measure once; returns how many seconds to wait before the next time."""

    def check(self, now: float, *, at_once: bool = False) -> LimitBreach | None:
        return self.breach

    def close(self) -> None:
        self.is_closed.set()
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        failed = False
        pause = FIRST_SECONDS
        while not self.is_closed.wait(pause) and self.breach is None:
            try:
                pause = self.measure()
            except OSError as error:
                pause = RETRY_SECONDS
                if not failed:
                    failed = True
                    with suppress(OSError):
                        log.warning("limit_not_measured", meter=self._thread.name, error=str(error))
