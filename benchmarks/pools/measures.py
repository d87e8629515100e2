"""What a pool that has played a trace is judged by: waits, fairness, utilisation."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from benchmarks.pools.pool import CAPACITY, JobRun
from benchmarks.pools.traces import DAY


def quantile(values: Sequence[float], at: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(at * len(ordered)))]


def busiest_tenant(runs: Sequence[JobRun]) -> str:
    """The one that wants the most device-seconds."""
    wanted: dict[str, float] = defaultdict(float)
    for run in runs:
        wanted[run.job.tenant] += run.job.device_seconds
    return max(wanted, key=lambda tenant: wanted[tenant])


def utilisation(runs: Sequence[JobRun], days: float) -> float:
    """Part of all device-seconds of the trace's days that jobs had."""
    return sum(_held(run, 0.0, days * DAY) for run in runs) / (days * DAY * CAPACITY)


def fairness(runs: Sequence[JobRun], weights: Mapping[str, float], days: float) -> float:
    """Jain's index of what tenants got of the pool for their weights, over those that wanted more than they were due:
    1 where all got equally much, 1/n where one of n got all. Of each day, and the mean of the days."""
    indexes = []
    for day in range(int(days)):
        begin, end = day * DAY, (day + 1) * DAY
        got: dict[str, float] = defaultdict(float)
        wanted: dict[str, float] = defaultdict(float)
        for run in runs:
            got[run.job.tenant] += _held(run, begin, end)
            wanted[run.job.tenant] += _wanted(run, begin, end)
        short = _find_short(wanted, weights, CAPACITY * DAY)
        if len(short) > 1:
            indexes.append(jain_index([got[tenant] / weights[tenant] for tenant in short]))
    return sum(indexes) / len(indexes) if indexes else 1.0


def jain_index(values: Sequence[float]) -> float:
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def _find_short(wanted: Mapping[str, float], weights: Mapping[str, float], capacity: float) -> list[str]:
    """Those that want more than they are due, when what others leave is divided by the weights of the rest."""
    short, room = {tenant for tenant, amount in wanted.items() if amount > 0}, capacity
    while short:
        level = room / sum(weights[tenant] for tenant in short)
        content = {tenant for tenant in short if wanted[tenant] <= level * weights[tenant]}
        if not content:
            return sorted(short)
        room -= sum(wanted[tenant] for tenant in content)
        short -= content
    return []


def _held(run: JobRun, begin: float, end: float) -> float:
    devices = run.job.devices * run.job.nodes
    return devices * sum(max(0.0, min(stop, end) - max(start, begin)) for start, stop in run.spans)


def _wanted(run: JobRun, begin: float, end: float) -> float:
    """What a job could have had of a time, if it had had its devices all along."""
    if run.job.submitted >= end or run.spans[-1][1] <= begin:
        return 0.0
    left = run.job.device_seconds - _held(run, 0.0, begin)
    room = run.job.devices * run.job.nodes * (end - max(begin, run.job.submitted))
    return max(0.0, min(left, room))
