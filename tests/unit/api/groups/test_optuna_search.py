"""What Optuna is asked, and what is made of its answers."""

import math
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages.journal import JournalFileBackend

from api.groups.optuna_search import MAX_DRAWS, PastTrial, SearchPlan, Values, choose_values, write_study
from api.schemas.group_requests import SweepRange
from shardyard.contract.errors import InvalidRequest

SPACE: dict[str, list[Any] | SweepRange] = {
    "lr": SweepRange(min=1e-4, max=1.0, log=True),
    "rows": SweepRange(min=1, max=64),
    "betas": [[0.9, 0.999], [0.8, 0.99]],
}


def any_is_good(number: int, values: Values) -> None:
    """All values make a valid spec."""


def plan(past: list[PastTrial] | None = None, *, trials: int = 20, seed: int = 3, most: bool = False) -> SearchPlan:
    return SearchPlan(SPACE, trials, most, seed, tuple(past or ()))


def test_values_are_of_the_space_and_the_same_for_the_same_seed() -> None:
    chosen = choose_values(plan(), 5, any_is_good)
    assert choose_values(plan(), 5, any_is_good) == chosen
    assert choose_values(plan(seed=4), 5, any_is_good) != chosen
    for values in chosen:
        assert 1e-4 <= values["lr"] <= 1.0
        assert isinstance(values["rows"], int)
        assert 1 <= values["rows"] <= 64
        assert values["betas"] in SPACE["betas"]
    assert len({values["lr"] for values in chosen}) == 5


def search(score: Any, *, most: bool, trials: int = 40) -> list[PastTrial]:
    """A whole search, two at a time."""
    past: list[PastTrial] = []
    while len(past) < trials:
        chosen = choose_values(plan(past, trials=trials, most=most), 2, any_is_good)
        past += [PastTrial(values, score(values)) for values in chosen]
    return past


@pytest.mark.parametrize("most", [False, True])
def test_what_was_good_is_tried_more_often(most: bool) -> None:
    sign = -1 if most else 1
    past = search(lambda values: sign * abs(math.log10(values["lr"]) + 2), most=most)
    near = [abs(math.log10(one.values["lr"]) + 2) < 0.5 for one in past]
    assert sum(near[20:]) > sum(near[:10]), "a quarter of what is drawn evenly is so near"
    assert sum(near[20:]) >= 12


def test_trials_that_failed_or_still_run_count_as_such() -> None:
    values = choose_values(plan(), 3, any_is_good)
    past = [PastTrial(values[0], 1.0), PastTrial(values[1]), PastTrial(values[2], is_running=True)]
    assert choose_values(plan(past), 2, any_is_good) not in (values[:2], values[1:])


def test_values_that_make_no_valid_spec_are_not_chosen() -> None:
    asked: list[int] = []

    def even(number: int, values: Values) -> None:
        asked.append(number)
        if values["rows"] % 2:
            raise InvalidRequest("odd")

    chosen = choose_values(plan([PastTrial(choose_values(plan(), 1, any_is_good)[0], 1.0)]), 6, even)
    assert len(chosen) == 6
    assert all(values["rows"] % 2 == 0 for values in chosen)
    assert len(asked) > 6
    assert set(asked) == set(range(1, 7)), "each is asked about under its number"


def test_a_search_without_any_valid_values_says_what_is_wrong() -> None:
    asked = []

    def refuse(number: int, values: Values) -> None:
        asked.append(number)
        raise InvalidRequest("rows do not divide")

    with pytest.raises(InvalidRequest, match="do not divide"):
        choose_values(plan(), 1, refuse)
    assert len(asked) == MAX_DRAWS


def test_a_study_can_be_opened_by_optuna(tmp_path: Path) -> None:
    values = choose_values(plan(), 3, any_is_good)
    past = [PastTrial(values[0], 0.5), PastTrial(values[1]), PastTrial(values[2], is_running=True)]
    (tmp_path / "study.log").write_bytes(write_study(plan(past), "sweep"))
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(tmp_path / "study.log")))
    study = optuna.load_study(study_name="sweep", storage=storage)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "FAIL", "RUNNING"]
    assert study.best_value == 0.5
    assert study.best_params["lr"] == values[0]["lr"]
