"""Groups of jobs: comparisons and sweeps, and their reports."""

from datetime import datetime
from typing import Any, Final

import msgspec

from shardyard.contract.responses import TERMINAL_STATES, Answer, Json, PlacementView


class GroupSummary(Answer, frozen=True, kw_only=True):
    """A comparison or a sweep of a list. Its state is `queued`, `running`, and when all of its jobs have ended
    `cancelled`, `succeeded`, or `failed` if none of them succeeded. `counts` are its jobs by state."""

    id: str
    name: str = ""
    state: str = ""
    created_at: datetime
    jobs: int = 0
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    links: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def ended(self) -> bool:
        return self.state in TERMINAL_STATES


class Variant(Answer, frozen=True, kw_only=True):
    """A job of a comparison: the spec under a strategy on a number of devices. `batch_size` is that of each rank."""

    number: int
    strategy: str
    devices: int
    batch_size: int
    job: str
    state: str = ""
    reason: str = ""  # code
    message: str = ""


class LeftOut(Answer, frozen=True, kw_only=True):
    """A variant that was asked for and cannot be run."""

    strategy: str
    devices: int
    why: str


class Comparison(GroupSummary, frozen=True, kw_only=True):
    steps: int = 0  # optimizer steps of each job
    global_batch_size: int = 0  # rows of each step, of all ranks
    variants: list[Variant] = msgspec.field(default_factory=list)
    left_out: list[LeftOut] = msgspec.field(default_factory=list)
    spec: Json = msgspec.field(default_factory=dict)  # as it was sent


class ComparisonList(Answer, frozen=True):
    """A page of comparisons, newest first. `total` is how many there are on all pages. `links` has `self`
    and, unless this is the last page, `next`."""

    comparisons: list[GroupSummary]
    next: str | None = None
    total: int | None = None
    links: dict[str, str] = msgspec.field(default_factory=dict)


class CurvePoint(Answer, frozen=True):
    step: int
    value: float | None


class VariantResult(Variant, frozen=True, kw_only=True):
    """What a variant has measured; `None` where that is not known.

    `rows_per_second` is the mean over windows of steps after the warm-up, `rows_per_second_error` half of its 95 %
    confidence interval. `devices_worth` is the throughput over that of one device, and `efficiency` is
    `devices_worth` for each device. `slowdown` is S of the report: how much longer the run took than without its
    slowest device's slowness. `device_seconds` is the price of 1,000 rows."""

    rows_per_second: float | None = None
    rows_per_second_error: float | None = None
    windows: int = 0
    step_ms: float | None = None
    memory_peak_bytes: int | None = None
    communication_share: float | None = None
    slowdown: float | None = None
    devices_worth: float | None = None
    efficiency: float | None = None
    device_seconds: float | None = None
    loss: float | None = None
    placement: list[PlacementView] = msgspec.field(default_factory=list)
    curve: list[CurvePoint] = msgspec.field(default_factory=list)


class Recommendation(Answer, frozen=True, kw_only=True):
    """`verdict`: `recommended`, `too_noisy` (the best cannot be told apart: `candidates` has their numbers), `waiting`
    (jobs have not ended), or `none` (nothing was measured)."""

    verdict: str
    variant: int | None = None
    candidates: list[int] = msgspec.field(default_factory=list)
    reason: str = ""
    price: str = ""


class ComparisonReport(Answer, frozen=True, kw_only=True):
    """What a comparison has found so far; it is `complete` when all of its jobs have ended."""

    id: str
    name: str = ""
    state: str = ""
    complete: bool = False
    steps: int = 0
    warm_up_steps: int = 0
    global_batch_size: int = 0
    variants: list[VariantResult] = msgspec.field(default_factory=list)
    left_out: list[LeftOut] = msgspec.field(default_factory=list)
    recommendation: Recommendation
    notes: list[str] = msgspec.field(default_factory=list)


class Trial(Answer, frozen=True, kw_only=True):
    """A job of a sweep, with the values that its spec has by their paths."""

    number: int
    values: dict[str, Any] = msgspec.field(default_factory=dict)
    job: str
    state: str = ""
    reason: str = ""  # code
    message: str = ""


class Sweep(GroupSummary, frozen=True, kw_only=True):
    """`note`: why it got fewer trials than were planned."""

    search: str = ""  # grid | random | optuna
    metric: str = ""
    mode: str = ""  # min | max
    planned: int = 0  # jobs that it will have had at its end
    max_concurrent: int = 1
    steps: int | None = None
    note: str = ""
    trials: list[Trial] = msgspec.field(default_factory=list)
    spec: Json = msgspec.field(default_factory=dict)  # as it was sent


class SweepList(Answer, frozen=True):
    """A page of sweeps, newest first. `total` is how many there are on all pages. `links` has `self`
    and, unless this is the last page, `next`."""

    sweeps: list[GroupSummary]
    next: str | None = None
    total: int | None = None
    links: dict[str, str] = msgspec.field(default_factory=dict)


class TrialResult(Trial, frozen=True, kw_only=True):
    """What a trial has measured; `None` where that is not known. `value` is that of the sweep's metric."""

    value: float | None = None
    loss: float | None = None
    rows_per_second: float | None = None
    seconds: float | None = None
    curve: list[CurvePoint] = msgspec.field(default_factory=list)


class SweepReport(Answer, frozen=True, kw_only=True):
    """What a sweep has found so far; it is `complete` when all of its jobs have ended. `best` is the number of the
    successful trial with the best value."""

    id: str
    name: str = ""
    state: str = ""
    complete: bool = False
    search: str = ""
    metric: str = ""
    mode: str = ""
    planned: int = 0
    paths: list[str] = msgspec.field(default_factory=list)
    trials: list[TrialResult] = msgspec.field(default_factory=list)
    best: int | None = None
    notes: list[str] = msgspec.field(default_factory=list)


# -- what one job of a group is made from --------------------------------------------------------------

#: Of a run that has a limit of steps, and no other.
ENDLESS_EPOCHS: Final = 1_000_000
#: Fields of `parallelism` that only some strategies have.
_OF_STRATEGIES: Final = {
    "dim": ("dp",),
    "output_device": ("dp",),
    "functional": ("dp",),
    "module": ("dp", "ddp"),
    "placement": ("single",),
    "backend": ("ddp", "fsdp"),
}


def set_strategy(spec: dict[str, Any], strategy: str, devices: int) -> None:
    """Have a spec run under a strategy on so many devices, without the fields that only other strategies have."""
    parallelism: dict[str, Any] = spec.setdefault("parallelism", {})
    for name, owners in _OF_STRATEGIES.items():
        if strategy not in owners:
            parallelism.pop(name, None)
    parallelism["strategy"] = strategy
    spec["resources"] = {"devices": devices}
