"""How good the times are at which `shardyard explain` expects jobs to start.

The pools, the traces and the clock are those of [fair_share](fair_share.py), in the product's order. Each trace is
played twice: the first time shows when every job starts. The second time the product is asked, at the submit and when
half of the wait is over, about a sample of those that wait for a minute or more, with its own `read_queue` and
`estimate_start`.

    error         |expected - real| / real, of the time that is left until the start: 1 is as far off as the wait is
    long too early     jobs that started later than expected; half of them would be even in the band   jobs that
    started between `earliest_at` and `latest_at`

Beside what a user would guess who knows nothing but the waits of others: that it takes as long in all as the median
of the last 20 jobs that started. No figure depends on the speed of the machine.
"""

import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.harness.comparing import Figure, Say, Scale
from benchmarks.pools.measures import quantile
from benchmarks.pools.pool import CAPACITY, JobRun, play_trace
from benchmarks.pools.stored_pool import StoredPool, stored_pool
from benchmarks.pools.traces import SHAPES, TraceJob, TraceShape, draw_trace, tenant_weights
from jobs.scheduling.start_estimate import estimate_start
from jobs.store.queue_facts import read_queue

TITLE = "estimates of when a job starts"
OURS, GUESS = "shardyard", "as the last 20 waited"
LOAD = 0.95
MIN_WAIT_SECONDS = 60.0
LATELY = 20
#: Of the days before it little is known yet.
BEGIN_SECONDS = 43_200.0


@dataclass(frozen=True, slots=True)
class AskedEstimate:
    """Seconds from the question on; `guess` is that of the other side."""

    real: float
    guess: float
    earliest: float
    expected: float
    latest: float


def run(scale: Scale, say: Say) -> list[Figure]:
    days, rounds, sample = scale.pick((4.0, 2, 60), (3.0, 1, 20))
    figures: list[Figure] = []
    for shape in scale.pick(SHAPES, SHAPES[:1]):
        asked = [_ask_about_trace(shape, days, seed, sample, say) for seed in range(scale.rounds or rounds)]
        for when, part in (("at the submit", 0.0), ("half-way", 0.5)):
            figures += _figures(f"{shape.name}, {when}", [each[part] for each in asked])
    return figures


def _figures(name: str, asked: Sequence[Sequence[AskedEstimate]]) -> list[Figure]:
    figures = []
    for words, at in (("median error", 0.5), ("p90 of the error", 0.9)):
        samples = {
            OURS: [quantile([abs(each.expected - each.real) / each.real for each in of], at) for of in asked],
            GUESS: [quantile([abs(each.guess - each.real) / each.real for each in of], at) for of in asked],
        }
        figures.append(Figure(f"{name}: {words}", "", samples))
    early = {
        OURS: [sum(each.real > each.expected for each in of) / len(of) for of in asked],
        GUESS: [sum(each.real > each.guess for each in of) / len(of) for of in asked],
    }
    band = [sum(each.earliest <= each.real <= each.latest for each in of) / len(of) for of in asked]
    figures.append(Figure(f"{name}: part that was too early", "", early))
    figures.append(Figure(f"{name}: part in the band", "", {OURS: band}, lower_is_better=False))
    return figures


def _ask_about_trace(
    shape: TraceShape, days: float, seed: int, sample: int, say: Say
) -> dict[float, list[AskedEstimate]]:
    """Estimates by the part of the wait that was over."""
    jobs, weights = draw_trace(shape, days, CAPACITY, LOAD, seed), tenant_weights(shape)
    with stored_pool(weights) as pool:
        runs = play_trace(jobs, pool)
    waiting = [run for run in runs if run.waited >= MIN_WAIT_SECONDS and run.job.submitted >= BEGIN_SECONDS]
    chosen = random.Random(seed).sample(waiting, min(sample, len(waiting)))
    with stored_pool(weights) as pool:
        interviewer = Interviewer(pool, chosen, {run.job.name: run for run in runs})
        play_trace(jobs, pool, interviewer)
    say(f"{shape.name} {seed + 1}: {len(chosen)} of {len(waiting)} jobs that waited, {interviewer.missing} unanswered")
    return interviewer.asked


class Interviewer:
    """Asks about jobs while a trace is played again, of which the starts are known."""

    def __init__(self, pool: StoredPool, chosen: Sequence[JobRun], runs: Mapping[str, JobRun]) -> None:
        self._pool = pool
        self._due = sorted(
            ((run.job.submitted + part * run.waited, run.job.name, part) for run in chosen for part in (0.0, 0.5)),
            reverse=True,
        )
        self._runs = runs
        self._starting = sorted(((run.spans[0][0], run.waited) for run in runs.values()), reverse=True)
        self._lately: deque[float] = deque([0.0], maxlen=LATELY)
        self.asked: dict[float, list[AskedEstimate]] = {0.0: [], 0.5: []}
        self.missing = 0

    def submitted(self, now: float, job: TraceJob) -> None:
        """Nothing is asked before the dispatch."""

    def passed(self, now: float) -> None:
        while self._starting and self._starting[-1][0] <= now:
            self._lately.append(self._starting.pop()[1])
        while self._due and self._due[-1][0] <= now:
            _, name, part = self._due.pop()
            self._ask(now, self._runs[name], part)

    def _ask(self, now: float, run: JobRun, part: float) -> None:
        facts = self._pool.control.run(read_queue(self._pool.tenant_of(run.job), run.job.name))
        if facts is None:
            return  # it started with the event before
        estimate = estimate_start(facts)
        if estimate is None:
            self.missing += 1
            return
        real = run.spans[0][0] - now
        guess = max(0.0, median(self._lately) - (now - run.job.submitted))
        found = AskedEstimate(real, guess, estimate.earliest, estimate.expected, estimate.latest)
        self.asked[part].append(found)
