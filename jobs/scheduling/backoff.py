"""How long a job waits before it is tried again."""

import random


def backoff_seconds(base: float = 1.0) -> float:
    """Wait before a lost or failed attempt starts again, with jitter so that many do not return at once."""
    return base * random.uniform(0.5, 1.5)  # noqa: S311  (jitter, not a secret)
