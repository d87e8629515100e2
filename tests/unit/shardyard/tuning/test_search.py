"""The search for the fastest candidate: on cost tables, with the noise of runs and of windows."""

import math
import random
from collections.abc import Mapping

import pytest

from shardyard.tuning.candidates import Arm, Candidate, SearchSpace
from shardyard.tuning.measurements import OUT_OF_MEMORY, TuningTrial, estimate
from shardyard.tuning.search import MIN_STEPS, BudgetTooSmall, NothingMeasured, Search

SINGLE, DDP, DP, FSDP = (Arm(name, 1 if name == "single" else 4) for name in ("single", "ddp", "dp", "fsdp"))
SIZES = (32, 64, 128, 256, 512)

#: Milliseconds of a step: what each costs anyway, and what a row costs, by the arm. Like five models: small on a CPU,
#: large, one whose copies under dp are dear, one that is bound by its gradients, and one for which all are alike.
MODELS: dict[str, dict[Arm, tuple[float, float]]] = {
    "a small one": {SINGLE: (0.4, 0.01), DDP: (6.0, 0.004), DP: (9.0, 0.004), FSDP: (14.0, 0.005)},
    "a large one": {SINGLE: (8.0, 0.9), DDP: (22.0, 0.24), DP: (60.0, 0.26), FSDP: (35.0, 0.24)},
    "dear copies": {SINGLE: (3.0, 0.2), DDP: (9.0, 0.06), DP: (80.0, 0.06), FSDP: (12.0, 0.07)},
    "large gradients": {SINGLE: (5.0, 0.1), DDP: (90.0, 0.03), DP: (70.0, 0.04), FSDP: (110.0, 0.03)},
    "all alike": {SINGLE: (10.0, 0.1), DDP: (10.2, 0.1), DP: (10.1, 0.1), FSDP: (10.3, 0.1)},
}


def space(arms: Mapping[Arm, object], sizes: tuple[int, ...] = SIZES) -> SearchSpace:
    return SearchSpace(dict.fromkeys(arms, sizes))


class Simulation:
    """Runs candidates by a cost table. `limit` is the largest number of rows on a device that has room."""

    def __init__(
        self, model: Mapping[Arm, tuple[float, float]], seed: int, *, noise: float = 0.05, limit: float = math.inf
    ) -> None:
        self._model = model
        self._noise = noise
        self._limit = limit
        self._rng = random.Random(seed)

    def rate(self, candidate: Candidate) -> float:
        anyway, per_row = self._model[candidate.arm]
        return 1000 * candidate.rows / (anyway + per_row * candidate.rows)

    def run(self, candidate: Candidate, steps: int) -> TuningTrial:
        """A run is off by half of what a window is, all of it together."""
        if candidate.rows / candidate.arm.devices > self._limit:
            return TuningTrial(candidate, 0, problem=OUT_OF_MEMORY)
        of_run = self.rate(candidate) * math.exp(self._rng.gauss(0, self._noise / 2))
        windows = max(1, (steps - 10) // 10)
        rates = [of_run * math.exp(self._rng.gauss(0, self._noise)) for _ in range(windows)]
        return TuningTrial(candidate, steps, tuple(rates))

    def best(self, searched: SearchSpace) -> float:
        every = [Candidate(arm, rows) for arm, sizes in searched.sizes.items() for rows in sizes]
        return max(self.rate(one) for one in every if one.rows / one.arm.devices <= self._limit)


@pytest.mark.parametrize("budget", [300, 600])
@pytest.mark.parametrize("name", MODELS)
def test_the_choice_is_within_a_twentieth_of_the_best_in_nearly_all_searches(name: str, budget: int) -> None:
    model, searched, within = MODELS[name], space(MODELS[name]), 0
    for seed in range(200):
        simulation = Simulation(model, seed, noise=0.03)
        search = Search(searched, budget, simulation.run)
        choice = search.find()
        within += simulation.rate(choice.chosen) >= 0.95 * simulation.best(searched)
        assert sum(trial.steps for trial in search.trials) <= budget
    assert within >= 190, within


def test_without_noise_the_choice_is_within_two_hundredths_of_the_best() -> None:
    for model in MODELS.values():
        searched, simulation = space(model), Simulation(model, 0, noise=0.0)
        choice = Search(searched, 400, simulation.run).find()
        assert simulation.rate(choice.chosen) >= 0.98 * simulation.best(searched)
        assert choice.chosen.price <= choice.fastest.price


def test_of_candidates_that_are_alike_the_cheapest_is_chosen() -> None:
    flat = {SINGLE: (0.01, 0.1), DDP: (0.01, 0.1)}
    choice = Search(space(flat), 500, Simulation(flat, 1, noise=0.005).run).find()
    assert choice.chosen == Candidate(SINGLE, 32)
    assert "for less" in choice.reason


def test_what_is_out_of_memory_is_replaced_by_the_next_smaller_step_and_nothing_larger_is_tried() -> None:
    model = {SINGLE: (4.0, 0.1), DDP: (9.0, 0.03)}
    simulation = Simulation(model, 2, limit=64)
    search = Search(space(model), 400, simulation.run)

    choice = search.find()

    assert choice.chosen == Candidate(DDP, 256)
    tried = [trial.candidate.rows for trial in search.trials if trial.candidate.arm == SINGLE]
    assert tried[:4] == [512, 256, 128, 64]
    assert {trial.candidate.rows for trial in search.trials if trial.is_too_large} == {128, 256, 512}
    assert len([trial for trial in search.trials if trial.is_too_large]) == 4


def test_a_clear_result_leaves_the_rest_of_the_budget() -> None:
    model = {SINGLE: (0.1, 0.01), DDP: (500.0, 0.01)}
    search = Search(space(model, (64,)), 5_000, Simulation(model, 3, noise=0.01).run)
    assert search.find().chosen == Candidate(SINGLE, 64)
    assert search.left > 4_000


def test_a_budget_that_is_too_small_says_what_is_needed() -> None:
    model = MODELS["a large one"]
    with pytest.raises(BudgetTooSmall, match=r"single on 1, ddp on 4, .*: 100 are needed"):
        Search(space(model), 99, Simulation(model, 0).run).find()
    assert Search(space(model), 100, Simulation(model, 0).run).find().chosen.rows == 512


def test_where_nothing_runs_every_problem_is_told() -> None:
    def fails(candidate: Candidate, steps: int) -> TuningTrial:
        return TuningTrial(candidate, 3, problem=f"rank 0: ValueError on {candidate.arm.devices}")

    with pytest.raises(NothingMeasured, match=r"single on 1, 512 rows a step: rank 0: ValueError on 1; ddp on 4"):
        Search(space({SINGLE: 0, DDP: 0}), 100, fails).find()


def test_a_failure_of_one_arm_does_not_end_the_search() -> None:
    model = {SINGLE: (4.0, 0.1), DDP: (9.0, 0.03)}
    simulation = Simulation(model, 2)

    def run(candidate: Candidate, steps: int) -> TuningTrial:
        failed = candidate.arm == DDP
        return TuningTrial(candidate, 1, problem="rank 1: boom") if failed else simulation.run(candidate, steps)

    assert Search(space(model), 300, run).find().chosen.arm == SINGLE


def test_few_windows_leave_an_estimate_unsure() -> None:
    candidate = Candidate(SINGLE, 32)
    few = estimate([TuningTrial(candidate, MIN_STEPS, (100.0,))])
    many = estimate([TuningTrial(candidate, 120, (100.0, 101.0, 99.0, 100.5) * 3)])
    assert few is not None
    assert many is not None
    assert (few.low, few.estimate, few.high) == (90.0, 100.0, 110.0)
    assert 99 < many.low < many.high < 101
    assert estimate([TuningTrial(candidate, 0, problem=OUT_OF_MEMORY)]) is None


def test_a_throughput_is_never_below_zero_however_much_windows_vary() -> None:
    rates = (45_000.0, 44_000.0, 43_000.0, 40_000.0, 9_000.0, 2_000.0, 1_500.0, 1_000.0, 900.0, 800.0)
    found = estimate([TuningTrial(Candidate(DDP, 32), 120, rates)])
    assert found is not None
    assert found.low == 0.0
