"""The search for the fastest candidate within a budget of optimizer steps: successive halving.

In the first round each arm runs its largest step, and smaller ones as the budget allows: the more rows a step has, the
less what a step costs anyway matters, so that is where an arm is at its best. What is out of memory is replaced by the
next smaller step of its arm. Then half of the candidates go on, with twice the steps, beside those next to the best one
that were not tried. The choice is the cheapest of those that are as fast as the best, as far as noise lets one tell:
rows that bring nothing only change the training.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from shardyard.contract.measuring.intervals import Interval
from shardyard.tuning.candidates import Arm, Candidate, SearchSpace
from shardyard.tuning.measurements import TuningTrial, estimate

#: Of the shortest run: ten warm-up steps, a window of ten, and a few that are not timed.
MIN_STEPS = 25
#: The part of the budget that the first round may have.
FIRST_PART = 0.5
#: How much slower than the best a candidate may be that is preferred because it is cheaper.
AS_FAST = 0.98

#: Runs a candidate for so many steps.
Runner = Callable[[Candidate, int], TuningTrial]


class BudgetTooSmall(ValueError):
    """The budget is less than one short run of each arm; the message says how much is needed."""


class NothingMeasured(ValueError):
    """No trial came to an end; the message has what went wrong in each."""


@dataclass(frozen=True, slots=True)
class Choice:
    """`fastest` is the best of all, which may be another one than the `chosen`, and `rates` has what is known of each
    that was measured."""

    chosen: Candidate
    fastest: Candidate
    rates: dict[Candidate, Interval]
    reason: str


@dataclass(slots=True)
class Search:
    space: SearchSpace
    budget: int
    run: Runner
    trials: list[TuningTrial] = field(default_factory=list)

    @property
    def left(self) -> int:
        return self.budget - sum(trial.steps for trial in self.trials)

    def find(self) -> Choice:
        """Spend the budget, or less where there is nothing left to find out.

        Raises:
            BudgetTooSmall, NothingMeasured.
        """
        least = MIN_STEPS * len(self.space.sizes)
        if self.budget < least:
            arms = ", ".join(map(str, self.space.sizes))
            raise BudgetTooSmall(f"{self.budget} steps are too few for one run of each of {arms}: {least} are needed")
        affordable = int(self.budget * FIRST_PART) // MIN_STEPS
        self._run_all(self.space.spread(max(1, affordable // len(self.space.sizes))), MIN_STEPS)
        steps = MIN_STEPS
        while True:
            going = self._next_round()
            steps = min(2 * steps, self.left // max(1, len(going)))
            while going and steps < MIN_STEPS:
                going.pop()
                steps = self.left // max(1, len(going))
            if not going:
                return self.choose()
            self._run_all(going, steps)

    def choose(self) -> Choice:
        """The best by what is known so far. Raises NothingMeasured."""
        rates = self.known_rates()
        if not rates:
            told = "; ".join(f"{trial.candidate}: {trial.problem}" for trial in self.trials)
            raise NothingMeasured(f"no run was measured: {told}")
        fastest = max(rates, key=lambda one: rates[one].estimate)
        enough = AS_FAST * rates[fastest].estimate
        chosen = min((one for one in rates if rates[one].estimate >= enough), key=lambda one: one.price)
        return Choice(chosen, fastest, rates, _explain(chosen, fastest, rates))

    def known_rates(self) -> dict[Candidate, Interval]:
        found = {trial.candidate: estimate(self._trials_of(trial.candidate)) for trial in self.trials}
        return {candidate: rate for candidate, rate in found.items() if rate is not None}

    def _trials_of(self, candidate: Candidate) -> list[TuningTrial]:
        return [trial for trial in self.trials if trial.candidate == candidate]

    def _next_round(self) -> list[Candidate]:
        """The better half, the most promising first, with the untried neighbours of the best; nothing where all is
        clear."""
        rates = self.known_rates()
        if not rates:
            return []
        choice = self.choose()
        fresh = [one for best in (choice.chosen, choice.fastest) for one in self.space.neighbours(best)]
        fresh = [one for one in dict.fromkeys(fresh) if self._is_open(one)]
        ranked = sorted(rates, key=lambda one: rates[one].estimate, reverse=True)
        half = ranked[: max(2, len(self._of_last_round(ranked)) // 2)]
        rivals = [one for one in half if rates[one].high >= AS_FAST * rates[choice.fastest].low]
        if len(rivals) < 2 and not fresh:
            return []
        return [*fresh, *rivals]

    def _of_last_round(self, ranked: list[Candidate]) -> list[Candidate]:
        """Those that were measured longest: others were given up."""
        most = max(len(self._trials_of(one)) for one in ranked)
        return [one for one in ranked if len(self._trials_of(one)) == most]

    def _is_open(self, candidate: Candidate) -> bool:
        """Whether it was not tried, and no smaller step of its arm was too large."""
        tried = any(trial.candidate == candidate for trial in self.trials)
        return not tried and candidate.rows < self._too_large(candidate.arm)

    def _too_large(self, arm: Arm) -> float:
        sizes = [trial.candidate.rows for trial in self.trials if trial.is_too_large and trial.candidate.arm == arm]
        return min(sizes, default=float("inf"))

    def _run_all(self, candidates: list[Candidate], steps: int) -> None:
        """Run them, the largest steps first; in place of one that is too large the next smaller one."""
        waiting = list(candidates)
        while waiting and self.left >= steps:
            candidate = waiting.pop(0)
            if candidate.rows >= self._too_large(candidate.arm):
                continue
            trial = self.run(candidate, steps)
            self.trials.append(trial)
            if trial.is_too_large:
                waiting[:0] = [one for one in self._next_smaller(candidate) if one not in waiting]

    def _next_smaller(self, candidate: Candidate) -> Iterator[Candidate]:
        smaller = (one for one in self.space.neighbours(candidate) if one.rows < candidate.rows)
        return (one for one in smaller if self._is_open(one))


def _explain(chosen: Candidate, fastest: Candidate, rates: dict[Candidate, Interval]) -> str:
    told = _compare(chosen, fastest, rates)
    unclear = [one for one in rates if one not in (chosen, fastest) and rates[one].high > rates[fastest].estimate]
    return f"{told}. Within noise are also {'; '.join(map(str, unclear))}: more steps would tell" if unclear else told


def _compare(chosen: Candidate, fastest: Candidate, rates: dict[Candidate, Interval]) -> str:
    rate = rates[chosen].estimate
    if chosen != fastest:
        share = rate / rates[fastest].estimate
        return (
            f"{chosen} does {rate:,.0f} rows a second, {share:.0%} of what {fastest} does "
            f"({rates[fastest].estimate:,.0f}), for less"
        )
    others = [one for one in rates if one.arm != chosen.arm]
    if not others:
        return f"{chosen} is the fastest, with {rate:,.0f} rows a second"
    second = max(others, key=lambda one: rates[one].estimate)
    times = rate / rates[second].estimate
    return (
        f"{chosen} is the fastest, with {rate:,.0f} rows a second: {times:.2f} times as many as {second} "
        f"({rates[second].estimate:,.0f})"
    )
