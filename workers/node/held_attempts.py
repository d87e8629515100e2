"""The attempts that hold devices of a node, as its last heartbeat learned them.

The agent's thread and Celery's read and change it, so every change puts a new mapping in the old one's place.
"""

from collections.abc import Mapping
from time import monotonic

from jobs.model.state import AttemptState
from jobs.store import AttemptId


class HeldAttempts:
    def __init__(self) -> None:
        self._states: Mapping[AttemptId, AttemptState] = {}
        self._leased_since: dict[AttemptId, float] = {}  # by the monotonic clock, as is the next one
        self._ended_since: dict[AttemptId, float] = {}
        self._idle_since: float | None = None  # None: the node has an attempt, or nobody has said that it has none

    def __bool__(self) -> bool:
        return bool(self._states)

    def attempt_ids(self) -> list[AttemptId]:
        return list(self._states)

    def with_states(self) -> list[tuple[AttemptId, AttemptState]]:
        return list(self._states.items())

    def replace_all(self, states: Mapping[AttemptId, AttemptState]) -> None:
        self._states = states
        if states:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = monotonic()
        self._leased_since = _times_in_state(self._leased_since, states, AttemptState.LEASED)
        self._ended_since = _times_in_state(self._ended_since, states, AttemptState.ENDED)

    def add_started(self, attempt: AttemptId) -> None:
        self._states = {**self._states, attempt: AttemptState.LEASED}
        self._idle_since = None

    def remove(self, attempt: AttemptId) -> None:
        self._states = {held: state for held, state in self._states.items() if held != attempt}

    def leased_longer_than(self, seconds: float) -> list[AttemptId]:
        """Attempts that have waited for their supervisor for so long."""
        now = monotonic()
        return [attempt for attempt, since in self._leased_since.items() if now - since > seconds]

    def restart_lease_timer(self, attempt: AttemptId) -> None:
        self._leased_since.pop(attempt, None)

    @property
    def idle_seconds(self) -> float:
        """How long the node has been known to have no attempt."""
        since = self._idle_since
        return 0.0 if since is None else monotonic() - since

    def restart_idle_timer(self) -> None:
        self._idle_since = None

    def seconds_since_end(self, attempt: AttemptId) -> float:
        """How long this attempt has been known to have ended; 0 where it has not."""
        since = self._ended_since.get(attempt)
        return 0.0 if since is None else monotonic() - since


def _times_in_state(
    before: Mapping[AttemptId, float], states: Mapping[AttemptId, AttemptState], wanted: AttemptState
) -> dict[AttemptId, float]:
    """Since when each attempt has been seen in the state `wanted`."""
    return {attempt: before.get(attempt, monotonic()) for attempt, state in states.items() if state is wanted}
