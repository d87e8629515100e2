"""What the benchmarks of shared pools measure, and the traces that they play."""

from statistics import median

import pytest

from benchmarks.pools.measures import fairness, jain_index, utilisation
from benchmarks.pools.pool import CAPACITY, JobRun
from benchmarks.pools.traces import DAY, SHAPES, TraceJob, TraceShape, draw_trace


def a_run(tenant: str, begin: float, end: float, *, submitted: float = 0.0, devices: int = CAPACITY) -> JobRun:
    job = TraceJob(f"{tenant}-{begin}", tenant, submitted, devices, 1, end - begin, DAY)
    return JobRun(job, [(begin, end)])


def test_the_index_is_one_where_all_got_as_much_and_one_nth_where_one_got_all() -> None:
    assert jain_index([3.0, 3.0, 3.0]) == 1.0
    assert jain_index([5.0, 0.0, 0.0, 0.0]) == 0.25


def test_fairness_is_of_those_that_wanted_more_than_their_share() -> None:
    two_thirds, third = 2 * DAY / 3, DAY / 3
    content = a_run("c", 0.0, 60.0, devices=1)
    runs = [a_run("a", 0.0, two_thirds), a_run("b", two_thirds, DAY + third), content]
    weights = {"a": 2.0, "b": 1.0, "c": 1.0}
    assert fairness(runs, weights, 1) == pytest.approx(1.0)
    assert fairness(runs, dict.fromkeys("abc", 1.0), 1) == pytest.approx(0.9, abs=0.01)


def test_utilisation_is_of_the_days_of_the_trace() -> None:
    assert utilisation([a_run("a", 0.0, DAY), a_run("b", DAY, 2 * DAY)], 1) == 1.0


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_trace_has_the_shape_that_it_is_named_after(shape: TraceShape) -> None:
    jobs = draw_trace(shape, 28, CAPACITY, 0.9, 1)
    small = [job for job in jobs if job.devices * job.nodes == 1]
    assert sum(job.device_seconds for job in jobs) >= 0.9 * 28 * DAY * CAPACITY
    assert len(small) > len(jobs) / 2 * 0.9
    assert sum(job.device_seconds for job in small) < 0.5 * sum(job.device_seconds for job in jobs)
    assert median(job.seconds for job in jobs) == pytest.approx(shape.median_seconds, rel=0.6)
    assert [job.submitted for job in jobs] == sorted(job.submitted for job in jobs)
    busiest = max({job.tenant for job in jobs}, key=lambda tenant: sum(job.tenant == tenant for job in jobs))
    assert sum(job.tenant == busiest for job in jobs) > len(jobs) / 5
