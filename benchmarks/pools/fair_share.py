"""Who waits how long for a pool that several tenants share: Shardyard's order, first come, and Slurm's multifactor.

A pool of 8 nodes with 8 devices plays seven days of jobs in the shapes of three published traces, Philly, Helios
and PAI ([traces](pools/traces.py) names the papers, and says what is theirs): 16 tenants, a few of which have most of
the jobs, every third with the weight 2; submits in batches, mostly by day; lengths and sizes with long tails. The
jobs want 95 % of all device-hours, so that the queue is long on most days and gone on some. All sides play the same
jobs; a round is another drawing.

    Shardyard     the product's Lua functions in a real Redis, with the clock of the trace (pools/stored_pool.py)
    first come    the same functions, with all jobs in one tenant
    Slurm         a model of the multifactor priority, age and fair-share (pools/multifactor.py). Only its order
                  differs: with first come in place of that, it starts every job when the Lua functions do

Waits are from the submit to the first start: of the tenant that wants the most, and of the others, each tenant's own
first, then their median (for p99: that of all their jobs). Fairness is Jain's index of device-hours for the weight,
of each day, over the tenants that wanted more than their share of it: 1 is equal. Pre-emption: of the jobs of the
first shape one in twenty is urgent (priority 50), with and without a policy that lets it take devices; who leaves
needs 20 s to save and 40 s to come back. No figure depends on the speed of the machine.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from statistics import mean, median

from benchmarks.harness.comparing import Figure, Say, Scale
from benchmarks.pools.measures import busiest_tenant, fairness, quantile, utilisation
from benchmarks.pools.multifactor import MultifactorPool
from benchmarks.pools.pool import CAPACITY, JobRun, Pool, play_trace
from benchmarks.pools.stored_pool import stored_pool
from benchmarks.pools.traces import SHAPES, TraceShape, draw_trace, make_urgent, tenant_weights

TITLE = "waits, fairness and use of a pool that tenants share"
OURS, FIRST_COME, SLURM = "shardyard", "first come", "Slurm's multifactor"
TAKES, WAITS = "with pre-emption", "without"
LOAD = 0.95
URGENT_PART, URGENT = 0.05, 50

Runs = Sequence[JobRun]
Measure = Callable[[Runs], float]


def run(scale: Scale, say: Say) -> list[Figure]:
    days, rounds = scale.pick(7.0, 3.0), scale.rounds_of(3, 1)
    figures: list[Figure] = []
    for shape in scale.pick(SHAPES, SHAPES[:1]):
        played = [_play_orders(shape, days, seed, say) for seed in range(rounds)]
        measures = _measures(shape, days)
        for name, (unit, lower, measure) in measures.items():
            samples = {side: [measure(each[side]) for each in played] for side in (OURS, FIRST_COME, SLURM)}
            figures.append(Figure(f"{shape.name}: {name}", unit, samples, lower_is_better=lower))
    pre_empted = [_play_urgent(SHAPES[0], days, seed, say) for seed in range(rounds)]
    for name, (unit, lower, measure) in _urgent_measures(days).items():
        samples = {side: [measure(each[side]) for each in pre_empted] for side in (TAKES, WAITS)}
        figures.append(Figure(f"one in twenty is urgent: {name}", unit, samples, lower_is_better=lower))
    stops = [
        sum(run.preemptions for run in each[TAKES]) / len(_of_urgent(each[TAKES], urgent=True)) for each in pre_empted
    ]
    figures.append(Figure("one in twenty is urgent: pre-emptions for each that is", "", {TAKES: stops}))
    return figures


def _play_orders(shape: TraceShape, days: float, seed: int, say: Say) -> dict[str, Runs]:
    jobs, weights = draw_trace(shape, days, CAPACITY, LOAD, seed), tenant_weights(shape)
    pools: dict[str, AbstractContextManager[Pool]] = {
        OURS: stored_pool(weights),
        FIRST_COME: stored_pool(weights, one_tenant=True),
        SLURM: nullcontext(MultifactorPool(weights)),
    }
    played: dict[str, Runs] = {}
    for side, opened in pools.items():
        with opened as pool:
            played[side] = play_trace(jobs, pool)
    say(f"{shape.name} {seed + 1}: {len(jobs)} jobs")
    return played


def _play_urgent(shape: TraceShape, days: float, seed: int, say: Say) -> dict[str, Runs]:
    jobs = make_urgent(draw_trace(shape, days, CAPACITY, LOAD, seed), URGENT_PART, URGENT, seed)
    played: dict[str, Runs] = {}
    for side in (TAKES, WAITS):
        with stored_pool(tenant_weights(shape), preempt=side == TAKES) as pool:
            played[side] = play_trace(jobs, pool)
    say(f"{shape.name} {seed + 1}: {sum(run.job.priority > 0 for run in played[TAKES])} urgent jobs")
    return played


def _measures(shape: TraceShape, days: float) -> dict[str, tuple[str, bool, Measure]]:
    """Unit, whether less is better, and the measure, by name."""
    weights = tenant_weights(shape)
    return {
        "mean wait of all jobs": ("min", True, lambda runs: mean(_minutes(runs))),
        "mean wait of the busiest tenant": ("min", True, lambda runs: mean(_minutes(_of_busiest(runs)))),
        "p50 wait of the busiest tenant": ("min", True, lambda runs: median(_minutes(_of_busiest(runs)))),
        "p99 wait of the busiest tenant": ("min", True, lambda runs: quantile(_minutes(_of_busiest(runs)), 0.99)),
        "mean wait of another tenant": ("min", True, lambda runs: median(map(mean, _of_others(runs)))),
        "p50 wait of another tenant": ("min", True, lambda runs: median(map(median, _of_others(runs)))),
        "p99 wait of the other tenants": ("min", True, lambda runs: quantile(list(chain(*_of_others(runs))), 0.99)),
        "fairness (Jain's index)": ("", False, lambda runs: fairness(runs, weights, days)),
        "utilisation": ("", False, lambda runs: utilisation(runs, days)),
    }


def _urgent_measures(days: float) -> dict[str, tuple[str, bool, Measure]]:
    return {
        "its mean wait": ("min", True, lambda runs: mean(_minutes(_of_urgent(runs, urgent=True)))),
        "its p99 wait": ("min", True, lambda runs: quantile(_minutes(_of_urgent(runs, urgent=True)), 0.99)),
        "from submit to end, the mean of the others": (
            "min",
            True,
            lambda runs: mean((run.spans[-1][1] - run.job.submitted) / 60 for run in _of_urgent(runs, urgent=False)),
        ),
        "utilisation": ("", False, lambda runs: utilisation(runs, days)),
    }


def _minutes(runs: Runs) -> list[float]:
    return [run.waited / 60 for run in runs]


def _of_busiest(runs: Runs) -> Runs:
    busiest = busiest_tenant(runs)
    return [run for run in runs if run.job.tenant == busiest]


def _of_others(runs: Runs) -> list[list[float]]:
    """Minutes that jobs of each other tenant waited."""
    busiest, waits = busiest_tenant(runs), defaultdict[str, list[float]](list)
    for run in runs:
        if run.job.tenant != busiest:
            waits[run.job.tenant].append(run.waited / 60)
    return list(waits.values())


def _of_urgent(runs: Runs, *, urgent: bool) -> Runs:
    return [run for run in runs if (run.job.priority > 0) is urgent]
