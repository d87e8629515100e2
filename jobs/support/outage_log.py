"""Logs an outage once, then less and less often, and once more when it is over.

Several threads of a process notice an outage of the same server, each of them every second or so: together they have
one `OutageLog`, and what they notice is one line.
"""

import math
import threading
import time
from collections.abc import Callable
from typing import Any

import structlog

#: The pause after the first line, which doubles from line to line, and the longest one.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 5.0, 300.0
#: What is away again so soon has not been back: some of its users may have been answered, others not.
SAME_SECONDS = 60.0


class OutageLog:
    """For one server. `away` and `back` are the events of its lines. Any thread may use it."""

    def __init__(self, away: str, back: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = structlog.get_logger("shardyard.outage")
        self._away, self._back = away, back
        self._clock = clock
        self._lock = threading.Lock()
        self._since: float | None = None
        self._times = 0
        self._due, self._pause = -math.inf, FIRST_PAUSE_SECONDS
        self._is_said = False
        self._ended = -math.inf

    def note_failure(self, error: object) -> None:
        """It did not answer."""
        with self._lock:
            now = self._clock()
            if self._since is None:
                self._since, self._times, self._is_said = now, 0, False
                if now - self._ended >= SAME_SECONDS:
                    self._due, self._pause = now, FIRST_PAUSE_SECONDS
            self._times += 1
            if now < self._due:
                return
            self._due, self._pause = now + self._pause, min(2 * self._pause, LONGEST_PAUSE_SECONDS)
            self._is_said = True
            lasting: dict[str, Any] = {} if self._times == 1 else self._lasting(now)
        self._log.warning(self._away, error=str(error), **lasting)

    def note_success(self) -> None:
        """It has answered."""
        with self._lock:
            if self._since is None:
                return
            self._ended = self._clock()
            lasted = self._lasting(self._ended)
            self._since = None
            if not self._is_said:
                return
        self._log.info(self._back, **lasted)

    def _lasting(self, now: float) -> dict[str, Any]:
        assert self._since is not None
        return {"away_seconds": round(now - self._since, 1), "failures": self._times}


#: Of this process's control Redis.
CONTROL_REDIS = OutageLog("control_redis_unavailable", "control_redis_is_back")
