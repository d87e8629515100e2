import time

import pytest

from workers.supervisor.link import admission, joining


class SkippingClock:
    """Stands for `time`, and lets a deadline pass when a test wants it to."""

    sleep = staticmethod(time.sleep)

    def __init__(self) -> None:
        self._skipped = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self._skipped

    def skip(self, seconds: float = 1000.0) -> None:
        self._skipped += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SkippingClock:
    """The clock of those who wait for a join."""
    skipping = SkippingClock()
    for module in (admission, joining):
        monkeypatch.setattr(module, "time", skipping)
    return skipping
