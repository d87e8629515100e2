"""What benchmarks make of their samples: ratios, goals, growth, tables. What they measure is not for tests."""

import math

import pytest

from benchmarks.harness import results
from benchmarks.harness.comparing import (
    Figure,
    Goal,
    Scale,
    amount,
    at_least,
    at_most,
    at_most_times,
    growths,
    in_turns,
    share_of,
    spread,
    times_better,
)

WAIT = Figure(
    "POST to first step", "s", {"ours": [0.1, 0.2, 0.1], "theirs": [3.0, 4.0, 5.0]}, [times_better("theirs", 25)]
)
RATE = Figure("jobs a minute", "", {"ours": [600.0, 660.0], "theirs": [50.0, 60.0]}, lower_is_better=False)


def test_rounds_take_turns_and_the_warm_up_is_thrown_away() -> None:
    order: list[str] = []

    def side(name: str) -> float:
        order.append(name)
        return float(len(order))

    samples = in_turns({"a": lambda: side("a"), "b": lambda: side("b")}, 2, say=lambda _: None, rest_seconds=0)
    assert order == ["a", "b"] * 3
    assert samples == {"a": [3.0, 5.0], "b": [4.0, 6.0]}


def test_a_ratio_is_of_one_round_and_above_one_is_better_whichever_way_the_unit_points() -> None:
    assert WAIT.ratio("theirs").median == pytest.approx(30)
    assert WAIT.ratio("theirs").lowest == pytest.approx(20)
    assert WAIT.ratio("theirs").highest == pytest.approx(50)
    assert RATE.ratio("theirs").median == pytest.approx(11.5)


@pytest.mark.parametrize(
    ("goal", "met"),
    [
        (times_better("theirs", 30), True),
        (times_better("theirs", 31), False),
        (at_most_times("theirs", 1 / 29), True),
        (at_most_times("theirs", 1 / 31), False),
        (at_most(0.1), True),
        (at_most(0.09), False),
        (at_least(0.1), True),
        (at_least(0.11), False),
    ],
)
def test_a_goal_is_met_at_its_value_and_not_beyond(goal: Goal, met: bool) -> None:
    assert WAIT.met(goal) is met


def test_a_share_is_ours_over_theirs_of_what_should_be_high() -> None:
    assert RATE.reached(share_of("theirs", 0.99)) == pytest.approx(11.5)


def test_rounds_that_one_side_lacks_are_no_ratio() -> None:
    with pytest.raises(ValueError, match="shorter"):
        Figure("x", "s", {"ours": [1.0, 2.0], "theirs": [1.0]}).ratio("theirs")


def test_no_samples_have_no_spread() -> None:
    with pytest.raises(ValueError, match="no samples"):
        spread([])


@pytest.mark.parametrize(("power", "exponent"), [(0, 0), (1, 1), (2, 2)])
def test_growth_is_the_exponent_of_the_size(power: int, exponent: float) -> None:
    figures = [
        Figure("list", "s", {"ours": [3 * size**power]}, size=size, size_of="jobs") for size in (1000.0, 10.0, 100.0)
    ]
    (growth,) = growths([*figures, WAIT])
    assert list(growth.sizes) == [10, 100, 1000]
    assert growth.exponent == pytest.approx(exponent)


def test_growth_from_nothing_has_no_exponent() -> None:
    figures = [Figure("list", "s", {"ours": [size - 1]}, size=size, size_of="jobs") for size in (1.0, 10.0)]
    assert math.isnan(growths(figures)[0].exponent)


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (0.01234, "s", "12.3 ms"),
        (2.5, "s", "2.5 s"),
        (4.2e-6, "s", "4.2 us"),
        (1499, "bytes", "1.5 kB"),
        (715.2, "requests/s", "715 requests/s"),
        (250_000, "lines/s", "250,000 lines/s"),
        (math.inf, "s", "inf s"),
    ],
)
def test_amounts_have_three_digits_and_a_unit_for_people(value: float, unit: str, words: str) -> None:
    assert amount(value, unit) == words


def test_a_table_says_what_was_measured_and_which_goals_were_met() -> None:
    lines = results.table([WAIT, RATE])
    assert "| POST to first step | ours | 100 ms (100 ms to 200 ms) |  |  |  |" in lines
    assert "|  | theirs | 4 s (3 s to 5 s) | 30 times lower | 25 times better than theirs | met |" in lines
    assert "|  | theirs | 55 (50 to 60) | 11.5 times higher |  |  |" in lines


def test_a_table_goes_between_its_marks_and_nowhere_else() -> None:
    begin, end = results.MARKS
    text = f"before\n{begin}\nold\n{end}\nafter\n"
    once = results.insert(text, "new")
    assert once == f"before\n{begin}\n\nnew\n{end}\nafter\n"
    assert results.insert(once, "new") == once
    with pytest.raises(ValueError, match="no place"):
        results.insert("no marks", "new")


def test_a_quick_run_picks_the_small_sizes_unless_rounds_are_asked_for() -> None:
    assert (Scale().pick(5, 1), Scale(quick=True).pick(5, 1)) == (5, 1)
    assert (Scale(quick=True).rounds_of(5, 1), Scale(quick=True, rounds=7).rounds_of(5, 1)) == (1, 7)
