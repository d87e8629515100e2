"""Chooses the values of a sweep's next trials from those that have ended, with Optuna's TPE sampler.

Nothing of a study is kept but the jobs themselves: a study is made anew from what they have measured whenever trials
are due, so no second truth can disagree with them after an outage
([0080](../../docs/decisions/0080-a-study-is-made-from-its-jobs.md)). Optuna is the extra `optuna`, and is imported when
it is needed.
"""

import importlib.util
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from api.schemas.group_requests import SweepRange
from shardyard.contract.errors import InvalidRequest

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution, CategoricalChoiceType

Space = Mapping[str, list[Any] | SweepRange]
Values = dict[str, Any]
#: The first trials of a study are drawn at random: a quarter of it, and at least and at most so many.
MIN_FIRST, MAX_FIRST = 3, 10
#: How often values that make no valid spec are chosen anew, for one trial.
MAX_DRAWS = 20
STUDY_FILE = "study.log"


@dataclass(frozen=True, slots=True)
class PastTrial:
    """A trial that there is: with its value where it has succeeded, None where it has not, and nothing of that while it
    `is_running`."""

    values: Values
    value: float | None = None
    is_running: bool = False


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """What is searched: `space` by the paths of fields, so many `trials`, for the smallest or the largest value."""

    space: Space
    trials: int
    is_maximized: bool
    seed: int
    past: Sequence[PastTrial] = field(default_factory=tuple)


def is_installed() -> bool:
    return importlib.util.find_spec("optuna") is not None


def choose_values(plan: SearchPlan, count: int, check: Callable[[int, Values], object]) -> list[Values]:
    """The values of the next `count` trials. `check` raises InvalidRequest where they make no valid spec, with the
    number of the trial; others are chosen then.

    Raises:
        InvalidRequest: what `check` has last said: nothing that was chosen is valid.
    """
    study, spaces = _make_study(replace(plan, past=_count_running(plan))), _describe_space(plan.space)
    chosen: list[Values] = []
    for _ in range(count):
        for draw in range(MAX_DRAWS):
            trial = study.ask({path: one.distribution for path, one in spaces.items()})
            values = {path: one.read(trial.params[path]) for path, one in spaces.items()}
            try:
                check(len(plan.past) + len(chosen), values)
            except InvalidRequest:
                study.tell(trial, state=_states().FAIL)
                if draw == MAX_DRAWS - 1:
                    raise
            else:
                chosen.append(values)
                break
    return chosen


def write_study(plan: SearchPlan, name: str) -> bytes:
    """The trials that there are as a journal of Optuna's, which its own tools read."""
    import optuna
    from optuna.storages.journal import JournalFileBackend

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, STUDY_FILE)
        _make_study(plan, optuna.storages.JournalStorage(JournalFileBackend(str(path))), name)
        return path.read_bytes()


def _count_running(plan: SearchPlan) -> list[PastTrial]:
    """The trials, of which those that run count as the worst so far: values close to theirs are not tried meanwhile. (A
    constant liar; that of Optuna is experimental.)"""
    known = [one.value for one in plan.past if one.value is not None]
    worst = (min if plan.is_maximized else max)(known) if known else None
    return [replace(one, value=worst, is_running=False) if one.is_running else one for one in plan.past]


def _make_study(plan: SearchPlan, storage: Any = None, name: str | None = None) -> "optuna.Study":
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    first = min(max(plan.trials // 4, MIN_FIRST), MAX_FIRST)
    # Another seed for each trial, or each would be drawn as the first one was.
    sampler = optuna.samplers.TPESampler(seed=(plan.seed + len(plan.past)) % 2**32, n_startup_trials=first)
    direction = "maximize" if plan.is_maximized else "minimize"
    study = optuna.create_study(storage=storage, sampler=sampler, direction=direction, study_name=name)
    spaces = _describe_space(plan.space)
    study.add_trials([_make_trial(one, spaces) for one in plan.past])
    return study


def _make_trial(past: PastTrial, spaces: Mapping[str, "_Choices"]) -> "optuna.trial.FrozenTrial":
    import optuna

    state = _states().RUNNING if past.is_running else _states().FAIL if past.value is None else _states().COMPLETE
    known = {path: one for path, one in spaces.items() if path in past.values}
    return optuna.trial.create_trial(
        state=state,
        value=past.value,
        params={path: one.write(past.values[path]) for path, one in known.items()},
        distributions={path: one.distribution for path, one in known.items()},
    )


def _states() -> Any:
    import optuna

    return optuna.trial.TrialState


@dataclass(frozen=True, slots=True)
class _Choices:
    """What Optuna draws of a field, and the value that each stands for: lists and objects go by their JSON."""

    distribution: "BaseDistribution"
    values: Mapping[str, Any] | None = None

    def read(self, drawn: Any) -> Any:
        return drawn if self.values is None else self.values[drawn]

    def write(self, value: Any) -> Any:
        return value if self.values is None else _word(value)


def _describe_space(space: Space) -> dict[str, _Choices]:
    return {path: _describe_choices(choices) for path, choices in space.items()}


def _describe_choices(choices: list[Any] | SweepRange) -> _Choices:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(choices, list):
        words: dict[str, Any] = {_word(value): value for value in choices}
        drawn: list[CategoricalChoiceType] = list(words)
        return _Choices(CategoricalDistribution(drawn), words)
    if choices.is_whole:
        return _Choices(IntDistribution(int(choices.min), int(choices.max), log=choices.log))
    return _Choices(FloatDistribution(float(choices.min), float(choices.max), log=choices.log))


def _word(value: Any) -> str:
    return msgspec.json.encode(value).decode()
