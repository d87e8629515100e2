"""Throughput with its error."""

import random

import pytest

from api.groups.windows import WARM_UP_STEPS, are_alike, measure_throughput


def ends(steps: int, seconds: float, noise: float = 0.0) -> list[tuple[int, float]]:
    drawn = random.Random(1)
    at, found = 0.0, []
    for step in range(steps):
        at += seconds * (10 if step < WARM_UP_STEPS else 1) * (1 + drawn.uniform(-noise, noise))
        found.append((step, at))
    return found


def test_the_warm_up_is_left_out() -> None:
    found = measure_throughput(ends(51, 0.01), rows=40)
    assert found is not None
    assert found.rows_per_second == pytest.approx(4000)
    assert found.windows == 4


def test_ranks_of_a_group_tell_of_every_tenth_step_alone() -> None:
    every, tenth = ends(101, 0.01, 0.2), [(step, at) for step, at in ends(101, 0.01, 0.2) if step % 10 == 0]
    assert measure_throughput(every, 40) == measure_throughput(tenth, 40)


def test_the_error_grows_with_the_noise_and_is_never_less_than_one_percent() -> None:
    quiet, noisy = (measure_throughput(ends(101, 0.01, noise), 40) for noise in (0.0, 0.9))
    assert quiet is not None
    assert quiet.error is not None
    assert quiet.error == pytest.approx(0.01 * quiet.rows_per_second)
    assert noisy is not None
    assert noisy.error is not None
    assert noisy.error > 3 * quiet.error


@pytest.mark.parametrize("steps", [0, 5, 20])
def test_of_too_few_steps_nothing_is_said(steps: int) -> None:
    assert measure_throughput(ends(steps, 0.01), 40) is None


def test_of_one_window_the_error_is_not_known() -> None:
    found = measure_throughput(ends(21, 0.01), 40)
    assert found is not None
    assert (found.error, found.windows) == (None, 1)


def test_an_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    held = 0
    for seed in range(400):
        drawn = random.Random(seed)
        at, found = 0.0, []
        for step in range(101):
            at += max(0.001, drawn.gauss(0.01, 0.004))
            found.append((step, at))
        measured = measure_throughput(found, 40)
        assert measured is not None
        assert measured.error is not None
        held += abs(measured.rows_per_second - 4000) <= measured.error
    assert 0.90 <= held / 400 <= 0.99


def test_numbers_are_told_apart_by_more_than_their_errors() -> None:
    assert are_alike((100, 5), (106, 5))
    assert not are_alike((100, 5), (108, 5))
    assert are_alike((100, None), (200, 1))
