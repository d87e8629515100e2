"""The port through which a hint reaches a node. `api` and `workers` implement it with Celery."""

from typing import Protocol

from jobs.store import Hint


class Courier(Protocol):
    def send(self, hint: Hint) -> None:
        """Tell the hint's node that an attempt waits there. May be lost or repeated: the reconciler
        sends again, and `claim` succeeds once.

        Raises:
            Exception: whatever the carrier raises; the hint is due again after the resend interval.
        """


class MemoryCourier:
    """Keeps what was sent, for tests."""

    def __init__(self) -> None:
        self.sent: list[Hint] = []

    def send(self, hint: Hint) -> None:
        self.sent.append(hint)
