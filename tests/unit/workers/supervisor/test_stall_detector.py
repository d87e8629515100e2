"""When a run counts as stalled."""

from workers.supervisor.stall_detector import MIN_SIGNS, MIN_STALL_SECONDS, PAUSE_FACTOR, StallDetector


def after_steps(detector: StallDetector, count: int, pause: float) -> float:
    """`count` signs, each `pause` seconds after the one before, beginning at 0; the time of the last."""
    detector.start_clock(0.0)
    for number in range(1, count + 1):
        detector.add_sign(number * pause)
    return count * pause


def test_silence_within_the_limit_is_no_stall() -> None:
    detector = StallDetector(10)
    last = after_steps(detector, 3, 5)
    assert detector.find_stall(last + 10) is None
    assert detector.find_stall(last + 10.1) == "no step for 10 s, which is limits.stall_seconds"


def test_a_limit_that_was_asked_for_counts_from_the_first_rank_on() -> None:
    detector = StallDetector(10)
    assert detector.find_stall(1e6) is None
    detector.start_clock(1e6)
    assert detector.find_stall(1e6 + 11) is not None


def test_without_a_limit_a_run_of_few_steps_never_stalls() -> None:
    detector = StallDetector(None)
    last = after_steps(detector, MIN_SIGNS - 1, 1)
    assert detector.find_stall(last + 1e7) is None


def test_without_a_limit_quick_steps_leave_half_an_hour() -> None:
    detector = StallDetector(None)
    last = after_steps(detector, MIN_SIGNS, 1)
    assert detector.find_stall(last + MIN_STALL_SECONDS) is None
    assert detector.find_stall(last + MIN_STALL_SECONDS + 1) is not None


def test_without_a_limit_the_longest_pause_is_the_measure() -> None:
    detector = StallDetector(None)
    last = after_steps(detector, MIN_SIGNS, 200)
    assert detector.find_stall(last + PAUSE_FACTOR * 200 - 1) is None
    assert (
        detector.find_stall(last + PAUSE_FACTOR * 200 + 1)
        == "no step for 4000 s, when the longest pause before had been 200 s"
    )
