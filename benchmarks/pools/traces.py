"""Traces of jobs in the shapes of published ones: who submits when, how much, and how long it runs.

No trace is copied: jobs are drawn, from distributions with the features that the papers report.

*Philly*: Jeon et al., "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads", USENIX ATC 2019.
Jobs that are long (8 hours on average, some for weeks) on few GPUs (1.75 on average).
*Helios*: Hu et al., "Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU Datacenters", SC
2021. More than half of the jobs want one GPU and have 3 to 12 % of the GPU time; 3.72 GPUs on average; half of the
jobs end within 206 s, the average is 6,652 s; the busiest 5 % of the users have about half of the GPU time. At night
fewer come.
*PAI*: Weng et al., "MLaaS in the Wild: Workload Analysis and Scheduling in Large-Scale Heterogeneous GPU Clusters",
NSDI 2022. Half of the instances end within 23 minutes, nine tenths within 4.5 hours; the busiest 5 % of the users
have 77 % of them; gangs are common.

Lengths are lognormal, which fits the median and the mean (PAI: the median and the 90th percentile). That large jobs
run longer, that users submit in batches (sweeps), and how uneven tenants are, follows the papers in kind; the numbers
for it are this file's own. Lengths end at three days, so that some weeks have many of the longest.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

HOUR, DAY = 3600.0, 86_400.0
MAX_SECONDS = 3 * DAY
#: Of the length, for twice as many devices: 2 to this power.
LONGER_WITH_DEVICES = 0.3
#: Wall limits that users choose from: the first that is enough.
WALL_LIMITS = (HOUR, 4 * HOUR, 12 * HOUR, DAY, 3 * DAY, 7 * DAY)


@dataclass(frozen=True, slots=True)
class TraceJob:
    """`devices` of each of `nodes`, for so many seconds."""

    name: str
    tenant: str
    submitted: float
    devices: int
    nodes: int
    seconds: float
    wall: float
    priority: int = 0

    @property
    def device_seconds(self) -> float:
        return self.devices * self.nodes * self.seconds


@dataclass(frozen=True, slots=True)
class TraceShape:
    """`sizes`: devices of each node, nodes, and how many of a hundred jobs. `sigma` is that of the logarithm of
    lengths; `skew`: the tenant of rank n is this power of 1 / n as busy; `batch`: how many jobs one submission has,
    on average."""

    name: str
    sizes: tuple[tuple[int, int, int], ...]
    median_seconds: float
    sigma: float
    skew: float
    batch: float
    tenants: int = 16


SHAPES = (
    TraceShape("Philly", ((1, 1, 76), (2, 1, 11), (4, 1, 8), (8, 1, 4), (8, 2, 1)), 1500, 2.42, 1.3, 2.0),
    TraceShape("Helios", ((1, 1, 55), (2, 1, 12), (4, 1, 12), (8, 1, 18), (8, 2, 3)), 206, 2.64, 1.6, 6.0),
    TraceShape("PAI", ((1, 1, 62), (2, 1, 16), (4, 1, 12), (8, 1, 6), (4, 3, 4)), 1380, 1.85, 1.9, 10.0),
)


def tenant_names(shape: TraceShape) -> tuple[str, ...]:
    return tuple(f"tenant-{rank:02d}" for rank in range(1, shape.tenants + 1))


def tenant_weights(shape: TraceShape) -> dict[str, float]:
    """Every third tenant has bought twice as much."""
    return {name: 2.0 if rank % 3 == 0 else 1.0 for rank, name in enumerate(tenant_names(shape), 1)}


def draw_trace(shape: TraceShape, days: float, devices: int, load: float, seed: int) -> list[TraceJob]:
    """Jobs in the order of arrival, whose device-seconds are `load` times what so many devices have in that time."""
    chance = random.Random(f"{shape.name} {seed}")
    jobs: list[TraceJob] = []
    missing = days * DAY * devices * load
    while missing > 0:
        for job in _draw_batch(shape, days, chance):
            jobs.append(job)
            missing -= job.device_seconds
    jobs.sort(key=lambda job: job.submitted)
    return [replace(job, name=f"{number:09d}") for number, job in enumerate(jobs)]


def make_urgent(jobs: Sequence[TraceJob], part: float, priority: int, seed: int) -> list[TraceJob]:
    """The same jobs, of which some have a higher priority."""
    chance = random.Random(f"urgent {seed}")
    return [replace(job, priority=priority) if chance.random() < part else job for job in jobs]


def _draw_batch(shape: TraceShape, days: float, chance: random.Random) -> list[TraceJob]:
    """What one tenant submits at once: alike in size, and in length so far as runs of one program are."""
    names = tenant_names(shape)
    (tenant,) = chance.choices(names, [rank**-shape.skew for rank in range(1, len(names) + 1)])
    ((devices, nodes, _),) = chance.choices(shape.sizes, [weight for *_, weight in shape.sizes])
    longer = float(devices * nodes) ** LONGER_WITH_DEVICES
    begin = _draw_arrival(days, chance)
    count = 1 + int(chance.expovariate(1 / shape.batch)) if shape.batch > 1 else 1
    typical = chance.gauss(0.0, shape.sigma * math.sqrt(0.8))
    batch = []
    for number in range(count):
        logarithm = typical + chance.gauss(0.0, shape.sigma * math.sqrt(0.2))
        seconds = min(MAX_SECONDS, max(10.0, shape.median_seconds * math.exp(logarithm) * longer))
        wall = next(limit for limit in WALL_LIMITS if limit >= seconds)
        batch.append(TraceJob("", tenant, begin + number, devices, nodes, seconds, wall))
    return batch


def _draw_arrival(days: float, chance: random.Random) -> float:
    """Most of a day's come in the afternoon, a few at night, and at weekends half as many."""
    while True:
        at = chance.uniform(0, days * DAY)
        hour, weekday = at % DAY / HOUR, int(at / DAY) % 7
        likely = (1 + 0.7 * math.cos((hour - 15) / 24 * 2 * math.pi)) / 1.7 * (0.5 if weekday >= 5 else 1.0)
        if chance.random() < likely:
            return at
