"""Plans of specs with weights, or with rows that do not divide."""

from typing import Any

import pytest

from jobs.splits.lint import lint_splits
from jobs.splits.plan import epoch_steps, predict_splits
from jobs.splits.step_windows import StepWindow
from jobs.splits.weight_use import fitting_weights, read_row_times
from tests.support.samples.specs import make_spec


def steps_of(strategy: str, devices: int, batch: int, rows: int, uneven: str | None = None, **how: Any) -> list[Any]:
    spec = make_spec(strategy, devices, batch, parallelism=how)
    if uneven is not None:
        data = spec.recipe.data.model_copy(update={"uneven": uneven})
        spec = spec.model_copy(update={"program": spec.recipe.model_copy(update={"data": data})})
    return epoch_steps(spec, rows)


def test_fifty_rows_at_three_to_two_are_thirty_and_twenty_under_every_strategy() -> None:
    assert steps_of("dp", 2, 50, 100, weights=[3, 2]) == [((30, 20), 2)]
    assert steps_of("ddp", 2, 25, 110, weights=[3, 2]) == [((30, 20), 2), ((6, 4), 1)]
    assert steps_of("fsdp", 2, 25, 50, weights=[3, 2]) == [((30, 20), 1)]


@pytest.mark.parametrize(
    ("uneven", "last"), [(None, (23,) * 4), ("pad", (23,) * 4), ("drop", (22,) * 4), ("weigh", (23, 23, 22, 22))]
)
def test_ninety_rows_on_four_ranks(uneven: str | None, last: tuple[int, ...]) -> None:
    assert steps_of("ddp", 4, 30, 90, uneven) == [(last, 1)]


@pytest.mark.parametrize(
    ("uneven", "words"),
    [
        ("pad", "2 of 92 rows are repeats"),
        ("drop", "2 of 90 rows are left out of every epoch"),
        ("weigh", "each of 90 rows is read once and weighs the same; the last step has 23, 23, 22, 22 rows"),
    ],
)
def test_the_plan_says_the_bias(uneven: str, words: str) -> None:
    spec = make_spec("ddp", 4, 30)
    data = spec.recipe.data.model_copy(update={"uneven": uneven})
    spec = spec.model_copy(update={"program": spec.recipe.model_copy(update={"data": data})})
    assert words in predict_splits(spec, 90).notes["program.data.uneven"]


def test_rows_by_weights_are_no_finding() -> None:
    spec = make_spec("dp", 2, 50, parallelism={"weights": [3, 2]})
    codes = {finding.code for finding in lint_splits(spec, predict_splits(spec, 103).epoch, 103)}
    assert codes == {"ddp-would-fit-better"}
    ranks = make_spec("ddp", 2, 25, parallelism={"weights": [3, 2]})
    assert lint_splits(ranks, predict_splits(ranks, 110).epoch, 110) == []


def test_weights_that_are_measured_are_no_plan_yet() -> None:
    prediction = predict_splits(make_spec("ddp", 2, 25, parallelism={"weights": "auto"}), 100)
    (pattern,) = prediction.epoch
    assert (pattern.rows, pattern.steps) == (None, 2)
    assert "measured before the first step" in prediction.notes["patterns.rows"]


def test_times_of_rows_give_the_weights_that_fit_and_the_share_of_speeds() -> None:
    windows = [StepWindow(at, 10, 40.0, [50.0, 50.0], [20.0, 30.0], [5.0, 7.5], [0.0, 0.0]) for at in range(10, 60, 10)]
    times = read_row_times(windows)
    assert times is not None
    assert times.per_row == pytest.approx((0.5, 0.75))
    assert (times.step_ms, times.even_ms, times.fitting_ms) == pytest.approx((37.5, 37.5, 30.0))
    assert times.speed_share == pytest.approx(0.8)
    assert times.fitting_rows == (60, 40)
    assert fitting_weights(times.per_row) == [1.5, 1.0]
