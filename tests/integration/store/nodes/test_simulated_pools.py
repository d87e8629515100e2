"""Pools that play a trace with the store's own functions, and the model that other orders are computed with."""

import pytest

from benchmarks.pools.multifactor import ModelPool, MultifactorPool
from benchmarks.pools.pool import CAPACITY, JobRun, play_trace
from benchmarks.pools.stored_pool import stored_pool
from benchmarks.pools.traces import SHAPES, draw_trace, make_urgent, tenant_weights

pytestmark = pytest.mark.integration

SHAPE = SHAPES[1]
WEIGHTS = tenant_weights(SHAPE)
DAYS = 0.25


def starts(runs: list[JobRun]) -> dict[str, list[float]]:
    return {run.job.name: [round(begin, 3) for begin, _ in run.spans] for run in runs}


def test_the_model_starts_each_job_when_the_functions_do() -> None:
    """Then what differs between orders is the order, and not where jobs are put."""
    jobs = draw_trace(SHAPE, DAYS, CAPACITY, 1.3, 3)
    with stored_pool(WEIGHTS, one_tenant=True) as pool:
        stored = play_trace(jobs, pool)
    assert starts(stored) == starts(play_trace(jobs, ModelPool()))
    assert sum(run.waited > 60 for run in stored) > len(jobs) / 4, "the pool was full"
    assert starts(play_trace(jobs, MultifactorPool(WEIGHTS))) != starts(stored)


def test_urgent_jobs_take_devices_and_all_jobs_end() -> None:
    jobs = make_urgent(draw_trace(SHAPE, DAYS, CAPACITY, 1.3, 3), 0.1, 50, 1)
    with stored_pool(WEIGHTS, preempt=True) as pool:
        runs = play_trace(jobs, pool)
    urgent = [run for run in runs if run.job.priority]
    assert all(len(run.spans) == 1 for run in urgent)
    assert 0 < sum(run.preemptions for run in runs) <= 3 * len(runs)
    assert max(run.preemptions for run in runs) <= 3
    for run in runs:
        assert sum(end - begin for begin, end in run.spans) >= run.job.seconds - 1e-6
