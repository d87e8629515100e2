"""When a run counts as stalled."""

from workers.supervisor.stall_detector import FACTOR, LEAST_SECONDS, LEAST_SIGNS, StallDetector


def after_steps(dog: StallDetector, count: int, pause: float) -> float:
    """`count` signs, each `pause` seconds after the one before, beginning at 0; the time of the last."""
    dog.start(0.0)
    for number in range(1, count + 1):
        dog.sign(number * pause)
    return count * pause


def test_silence_within_the_limit_is_no_stall() -> None:
    dog = StallDetector(10)
    last = after_steps(dog, 3, 5)
    assert dog.stalled(last + 10) is None
    assert dog.stalled(last + 10.1) == "no step for 10 s, which is limits.stall_seconds"


def test_a_limit_that_was_asked_for_counts_from_the_first_rank_on() -> None:
    dog = StallDetector(10)
    assert dog.stalled(1e6) is None
    dog.start(1e6)
    assert dog.stalled(1e6 + 11) is not None


def test_without_a_limit_a_run_of_few_steps_never_stalls() -> None:
    dog = StallDetector(None)
    last = after_steps(dog, LEAST_SIGNS - 1, 1)
    assert dog.stalled(last + 1e7) is None


def test_without_a_limit_quick_steps_leave_half_an_hour() -> None:
    dog = StallDetector(None)
    last = after_steps(dog, LEAST_SIGNS, 1)
    assert dog.stalled(last + LEAST_SECONDS) is None
    assert dog.stalled(last + LEAST_SECONDS + 1) is not None


def test_without_a_limit_the_longest_pause_is_the_measure() -> None:
    dog = StallDetector(None)
    last = after_steps(dog, LEAST_SIGNS, 200)
    assert dog.stalled(last + FACTOR * 200 - 1) is None
    assert dog.stalled(last + FACTOR * 200 + 1) == "no step for 4000 s, when the longest pause before had been 200 s"
