"""Lengths of attempts, drawn from those that have ended and those that still run."""

import random
from statistics import mean

import pytest

from jobs.scheduling.run_lengths import MAX_TIMES, LengthCurve


def drawn(curve: LengthCurve, seconds: float = 0.0, count: int = 2000) -> list[float]:
    chance = random.Random(1)
    return [curve.draw_after(seconds, chance) for _ in range(count)]


def test_lengths_are_those_that_were_seen_each_as_often() -> None:
    found = drawn(LengthCurve([10.0, 20.0, 30.0, 40.0]))
    for length in (10.0, 20.0, 30.0, 40.0):
        assert found.count(length) / len(found) == pytest.approx(0.25, abs=0.05)


def test_what_has_run_for_a_time_runs_longer_than_that() -> None:
    assert set(drawn(LengthCurve([10.0, 20.0, 30.0]), 10.0)) == {20.0, 30.0}


def test_what_still_runs_makes_lengths_longer_than_what_has_ended() -> None:
    """Ten have ended within a minute, ten run for an hour by now: half of all run for longer than an hour."""
    curve = LengthCurve([60.0] * 10, [3600.0] * 10)
    found = drawn(curve)
    assert sum(length > 3600 for length in found) / len(found) == pytest.approx(0.5, abs=0.05)


def test_what_has_just_begun_says_nothing_of_lengths() -> None:
    assert mean(drawn(LengthCurve([60.0] * 10, [1.0] * 10))) == 60.0


@pytest.mark.parametrize("ended", [[], [5.0, 7.0]])
def test_what_runs_longer_than_all_before_ends_as_well(ended: list[float]) -> None:
    found = drawn(LengthCurve(ended), 100.0)
    assert min(found) > 100.0
    assert max(found) <= 100.0 * MAX_TIMES
