"""The port through which a hint reaches a node. `api` and `workers` implement it with Celery."""

from typing import Any, Protocol

from jobs.protocol.names import CELERY_TASK, node_queue
from jobs.store import Hint


class HintSender(Protocol):
    def send(self, hint: Hint) -> None:
        """Tell the hint's node that an attempt waits there. May be lost or repeated: the reconciler
        sends again, and `claim` succeeds once.

        Raises:
            Exception: whatever the carrier raises; the hint is due again after the resend interval.
        """


def celery_message(hint: Hint) -> dict[str, Any]:
    """The arguments of Celery's `send_task` for a hint: ids and nothing else."""
    attempt = hint.attempt
    return {
        "name": CELERY_TASK,
        "kwargs": {"tenant": attempt.tenant, "job": attempt.job, "attempt": attempt.number},
        "queue": node_queue(hint.node),
        "ignore_result": True,
        "retry": False,
    }


class MemoryHintSender:
    """Keeps what was sent, for tests."""

    def __init__(self) -> None:
        self.sent: list[Hint] = []

    def send(self, hint: Hint) -> None:
        self.sent.append(hint)
