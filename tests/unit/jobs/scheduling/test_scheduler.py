"""Which counters count as standing still."""

from hypothesis import given
from hypothesis import strategies as st

from jobs.scheduling.backoff import backoff_seconds
from jobs.scheduling.scheduler import LivenessTracker

PATIENCE = 120.0
GAP = 6.0


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Watch:
    """One counter under a fake clock."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.counters: LivenessTracker[str] = LivenessTracker(PATIENCE, GAP, self.clock)

    def find_silent(self, after: float, heartbeat: int) -> bool:
        """Whether the counter counts as standing still, seen `after` seconds after the last look."""
        self.clock.now += after
        return list(self.counters.find_silent({"a": heartbeat})) == [("a", heartbeat)]

    def seconds_until_it_expires(self, step: float, heartbeat: int = 7) -> float:
        start = self.clock.now
        for _ in range(1000):
            if self.find_silent(step, heartbeat):
                return self.clock.now - start
        raise AssertionError("never expired")


def test_a_counter_that_stands_still_expires_after_its_patience() -> None:
    watch = Watch()
    assert not watch.find_silent(0, heartbeat=7)
    assert PATIENCE <= watch.seconds_until_it_expires(step=2) <= PATIENCE + 2


def test_it_stays_expired_until_it_beats_or_goes() -> None:
    watch = Watch()
    watch.seconds_until_it_expires(step=2)
    assert watch.find_silent(2, heartbeat=7)
    assert not watch.find_silent(2, heartbeat=8)
    assert list(watch.counters.find_silent({})) == []
    assert not watch.find_silent(1, heartbeat=8)


def test_a_counter_that_beats_never_expires() -> None:
    watch = Watch()
    for second in range(0, 3600, 5):
        assert not watch.find_silent(5, heartbeat=second)


def test_a_counter_that_was_never_seen_before_starts_at_zero() -> None:
    watch = Watch()
    watch.counters.find_silent({"other": 1})
    assert not watch.find_silent(PATIENCE * 10, heartbeat=7)
    assert watch.seconds_until_it_expires(step=2) >= PATIENCE - GAP


def test_a_counter_that_went_away_and_came_back_starts_over() -> None:
    watch = Watch()
    for _ in range(int(PATIENCE / 2) - 1):
        watch.find_silent(2, heartbeat=7)
    watch.counters.find_silent({})
    assert not watch.find_silent(2, heartbeat=7)
    assert watch.seconds_until_it_expires(step=2) >= PATIENCE - 2


def test_an_outage_is_no_watched_time() -> None:
    watch = Watch()
    for _ in range(100):
        for _ in range(int(PATIENCE / 2) - 1):
            assert not watch.find_silent(2, heartbeat=7)
        watch.counters.reset()
        assert not watch.find_silent(1_000_000, heartbeat=7)


def test_a_suspended_watcher_counts_one_gap_at_most() -> None:
    watch = Watch()
    watch.find_silent(0, heartbeat=7)
    looks = 0
    while not watch.find_silent(86_400, heartbeat=7):
        looks += 1
    assert looks + 1 == PATIENCE / GAP


def test_each_counter_has_a_patience_of_its_own() -> None:
    clock = FakeClock()
    counters: LivenessTracker[str] = LivenessTracker(PATIENCE, GAP, clock)
    still: list[tuple[str, int]] = []
    for heartbeat in range(int(PATIENCE / GAP) + 1):
        still = list(counters.find_silent({"dead": 1, "alive": heartbeat} | ({"young": 1} if heartbeat > 1 else {})))
        clock.now += GAP
    assert still == [("dead", 1)]


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.booleans(), st.booleans()), max_size=200))
def test_no_clock_no_outage_and_no_pause_expires_a_counter_early(
    looks: list[tuple[float, bool, bool]],
) -> None:
    """What is watched in truth: time between looks without an outage, at most one gap each, since the last beat."""
    watch, heartbeat, watched, first = Watch(), 0, 0.0, True
    for passed, outage, beats in looks:
        if outage:
            watch.counters.reset()
            watched, first = 0.0, True
        if beats:
            heartbeat += 1
        expired = watch.find_silent(passed, heartbeat)
        watched = 0.0 if first or beats else watched + min(max(passed, 0.0), GAP)
        first = False
        if expired:
            assert watched >= PATIENCE


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=50))
def test_expiry_takes_no_more_looks_than_the_gaps_allow(pauses: list[float]) -> None:
    watch = Watch()
    watch.find_silent(0, heartbeat=7)
    seen = 0.0
    while seen < PATIENCE + GAP:
        for pause in pauses:
            expired = watch.find_silent(pause, heartbeat=7)
            seen += min(pause, GAP)
            if expired:
                return
    raise AssertionError(f"not expired after {seen} watched seconds")


def test_backoff_is_spread_around_its_base() -> None:
    waits = {backoff_seconds(10) for _ in range(100)}
    assert len(waits) > 1
    assert all(5 <= wait <= 15 for wait in waits)
