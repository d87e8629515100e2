"""What is counted where it is read, and which breach counts."""

import pytest

from workers.runtime.limits import AttemptLimits
from workers.supervisor.limits import record_meter
from workers.supervisor.limits.breach import LimitBreach
from workers.supervisor.limits.limit_watch import LimitWatch
from workers.supervisor.limits.record_meter import CHECK_BYTES, MAX_GROWTH_BYTES

LIMITS = AttemptLimits(2**30, 100, 1000, 2**30, 1000, 2**20, 2**20, record_bytes=5000)


class ToldMeter:
    """Finds what a test tells it."""

    def __init__(self) -> None:
        self.breach: LimitBreach | None = None
        self.asked_at_once = 0
        self.is_closed = False

    def check(self, now: float, *, at_once: bool = False) -> LimitBreach | None:
        self.asked_at_once += at_once
        return self.breach

    def close(self) -> None:
        self.is_closed = True


def test_what_is_printed_beyond_the_limit_is_counted_and_not_kept() -> None:
    limits = LimitWatch(LIMITS)
    assert [limits.log.add(count) for count in (600, 400)] == [600, 400]
    assert limits.find_breach(0.0) is None
    assert [limits.log.add(count) for count in (1, 500)] == [0, 0]
    assert limits.find_breach(0.0) == LimitBreach("log", 1501, 1000)


def test_of_a_piece_that_passes_the_limit_the_first_bytes_are_kept() -> None:
    limits = LimitWatch(LIMITS)
    assert limits.log.add(5000) == 1000


def test_without_limits_all_is_kept() -> None:
    limits = LimitWatch()
    assert limits.log.add(2**40) == 2**40
    assert limits.find_breach(0.0) is None


@pytest.fixture
def own_memory(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What this process takes, as its last element."""
    taken = [1000]
    monkeypatch.setattr(record_meter, "read_own_memory", lambda: taken[-1])
    return taken


def test_records_that_make_the_supervisor_grow_are_read_no_further(own_memory: list[int]) -> None:
    limits = LimitWatch()
    own_memory.append(1000 + MAX_GROWTH_BYTES)
    assert limits.records.add(CHECK_BYTES)
    own_memory.append(1000 + MAX_GROWTH_BYTES + 1)
    assert limits.records.add(CHECK_BYTES - 1)  # it is looked at now and then
    assert not limits.records.add(1)
    own_memory.append(1000)
    assert not limits.records.add(CHECK_BYTES)
    breach = limits.find_breach(0.0)
    assert breach is not None
    assert (breach.limit, breach.used, breach.allowed) == ("records", MAX_GROWTH_BYTES + 1, MAX_GROWTH_BYTES)


@pytest.mark.usefixtures("own_memory")
def test_metrics_that_take_more_of_the_disk_than_they_may_end_the_attempt() -> None:
    kept = [5000]
    limits = LimitWatch(LIMITS, kept_bytes=lambda: kept[-1])
    limits.records.add(1)
    assert limits.find_breach(0.0) is None
    kept.append(5001)
    limits.records.add(1)
    assert limits.find_breach(0.0) == LimitBreach("records", 5001, 5000)


def test_a_breach_stays_but_for_one_that_must_end_the_attempt_at_once() -> None:
    meter = ToldMeter()
    limits = LimitWatch(LIMITS, [meter])
    limits.log.add(1001)
    assert limits.find_breach(0.0) == LimitBreach("log", 1001, 1000)
    meter.breach = memory = LimitBreach("memory", 2, 1)
    assert limits.find_breach(0.0) == memory
    meter.breach = None
    assert limits.find_breach(0.0) == memory


def test_a_meter_is_told_when_it_should_measure_now_and_when_the_attempt_is_over() -> None:
    meter = ToldMeter()
    limits = LimitWatch(LIMITS, [meter])
    limits.find_breach(0.0)
    limits.find_breach(0.0, at_once=True)
    assert meter.asked_at_once == 1
    limits.close()
    assert meter.is_closed
