"""Totals of times that are measured in some steps."""

import random

import pytest

from jobs.splits.estimates import WARM_UP_STEPS, TimeEstimate
from jobs.splits.timings import estimated_timing


def estimated(values: list[float | None]) -> TimeEstimate:
    estimate = TimeEstimate()
    estimate.add_all(values)
    return estimate


def test_a_time_that_every_step_has_is_its_sum_without_an_error() -> None:
    estimate = estimated([2.0, 4.0, 6.0])

    assert (estimate.total, estimate.error, estimate.measured, estimate.steps) == (12.0, 0.0, 3, 3)


def test_steps_that_were_not_measured_are_like_those_after_the_first_ten() -> None:
    first: list[float | None] = [100.0] * WARM_UP_STEPS
    estimate = estimated([*first, *([None] * 9 + [5.0]) * 10])

    assert estimate.total == pytest.approx(100.0 * WARM_UP_STEPS + 5.0 * 100)
    assert estimate.error == pytest.approx(0.0, abs=1e-6)


def test_without_a_later_one_they_are_like_the_first_and_nothing_is_known_of_the_error() -> None:
    estimate = estimated([3.0, None, None])

    assert (estimate.total, estimate.error) == (9.0, 9.0)


def test_it_does_not_matter_how_many_steps_come_at_once() -> None:
    values: list[float | None] = [None if number % 3 else float(number) for number in range(40)]
    one_by_one = TimeEstimate()
    for value in values:
        one_by_one.add_all([value])
    whole = estimated(values)

    assert (one_by_one.total, one_by_one.error) == (whole.total, whole.error)


def test_what_was_never_measured_has_no_timing() -> None:
    assert estimated_timing(estimated([None, None])) is None


def test_the_error_holds_in_95_of_100_runs() -> None:
    chance = random.Random(7)
    held = 0
    for _ in range(300):
        true = [10.0 + chance.gauss(0.0, 2.0) for _ in range(1000)]
        shown = [value if place < WARM_UP_STEPS or place % 10 == 0 else None for place, value in enumerate(true)]
        estimate = estimated(list(shown))
        held += abs(estimate.total - sum(true)) <= estimate.error
    assert 0.91 <= held / 300 <= 0.99
