"""A pool that plays a trace: the loop of events, and what became of each job."""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from benchmarks.pools.traces import TraceJob

NODES, DEVICES_PER_NODE = 8, 8
CAPACITY = NODES * DEVICES_PER_NODE
#: What it takes to save, to leave the devices, and to come back to the same step.
LEAVE_SECONDS, RESUME_SECONDS = 20.0, 40.0


class Pool(Protocol):
    """Decides what starts. Times are seconds since the begin of the trace."""

    def submit(self, now: float, job: TraceJob) -> None: ...

    def dispatch(self, now: float) -> Sequence[TraceJob]:
        """The jobs that start now."""

    def finish(self, now: float, job: TraceJob) -> None: ...

    def preempted(self, now: float) -> Iterable[TraceJob]:
        """Jobs that are asked to leave their devices, each once."""

    def leave(self, now: float, job: TraceJob) -> None:
        """A job that was asked to has left its devices, and waits again."""


class Watcher(Protocol):
    """Sees a trace while it is played."""

    def submitted(self, now: float, job: TraceJob) -> None: ...

    def passed(self, now: float) -> None: ...


@dataclass(slots=True)
class JobRun:
    """`spans` are the times on devices, of which each but the last ended by leaving them."""

    job: TraceJob
    spans: list[tuple[float, float]] = field(default_factory=list)

    @property
    def waited(self) -> float:
        """Until it started first."""
        return self.spans[0][0] - self.job.submitted

    @property
    def preemptions(self) -> int:
        return len(self.spans) - 1


@dataclass(slots=True)
class _Running:
    run: JobRun
    since: float
    token: int  # which start the event of an end belongs to


def play_trace(jobs: Sequence[TraceJob], pool: Pool, watcher: Watcher | None = None) -> list[JobRun]:
    """What became of each job, in the order of arrival. All run to their end.

    Raises:
        RuntimeError: jobs wait, nothing runs, and nothing starts.
    """
    runs = {job.name: JobRun(job) for job in jobs}
    left = {job.name: job.seconds for job in jobs}
    running: dict[str, _Running] = {}
    order = count()
    events = [(job.submitted, next(order), "submit", job, 0) for job in jobs]
    heapq.heapify(events)
    waiting = 0
    while events:
        now = events[0][0]
        while events and events[0][0] == now:
            _, _, what, job, token = heapq.heappop(events)
            if what == "submit":
                pool.submit(now, job)
                waiting += 1
                if watcher is not None:
                    watcher.submitted(now, job)
            elif job.name in running and running[job.name].token == token:
                ended = running.pop(job.name)
                ended.run.spans.append((ended.since, now))
                if what == "finish":
                    pool.finish(now, job)
                else:
                    lost = LEAVE_SECONDS + (RESUME_SECONDS if ended.run.preemptions > 0 else 0.0)
                    left[job.name] -= max(0.0, now - ended.since - lost)
                    pool.leave(now, job)
                    waiting += 1
        for job in pool.dispatch(now):
            waiting -= 1
            token = next(order)
            running[job.name] = _Running(runs[job.name], now, token)
            again = RESUME_SECONDS if runs[job.name].spans else 0.0
            heapq.heappush(events, (now + again + left[job.name], next(order), "finish", job, token))
        for job in pool.preempted(now):
            held = running[job.name]
            heapq.heappush(events, (now + LEAVE_SECONDS, next(order), "leave", job, held.token))
        if watcher is not None:
            watcher.passed(now)
        if waiting and not running and not events:
            raise RuntimeError(f"{waiting} jobs wait in an empty pool")
    return list(runs.values())
