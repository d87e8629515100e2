"""What findings about time need to know about a run besides its times."""

from collections.abc import Sequence
from dataclasses import dataclass

from jobs.splits.timings import Measures


@dataclass(frozen=True, slots=True)
class TimedRun:
    """`ranks`, `nodes` and `cards` have an entry for each device."""

    scatters: bool  # DataParallel divides the batches
    virtual: bool
    is_script: bool
    ranks: Sequence[int]
    nodes: Sequence[str]
    walls_ms: Sequence[float | None]
    num_workers: int | None = None  # of the DataLoader, where that is known
    straggler: int | None = None  # the device that is slow on purpose
    is_work_alike: bool = True  # rows cost the same on every device: their shapes do not vary
    cards: Sequence[str] = ()  # which kind of device each one is; empty where that is not known
    weights: Sequence[float] | None = None  # by which the service divides rows
    takes_weights: bool = False  # rows could be divided by weights
    gradient_bytes: int | None = None  # that each rank contributes to one reduction, under ddp

    @property
    def works_in_turn(self) -> bool:
        """Whether one process has several virtual devices."""
        return self.virtual and len(set(self.ranks)) < len(self.ranks)

    def name_device(self, device: int) -> str:
        rank = f" (rank {self.ranks[device]})" if len(set(self.ranks)) > 1 else ""
        return f"device {device}{rank}"

    def device_time_ms(self, measures: Measures) -> float:
        """How long all devices together have run."""
        walls = [wall for wall in self.walls_ms if wall is not None]
        steps_ms = sum(window.cycle_ms * window.steps for window in measures.sums.history.windows())
        return max(max(walls, default=0.0), steps_ms, 1.0) * len(self.ranks)

    def cost_share(self, device_seconds: float, measures: Measures) -> float:
        """What part of all devices' time that is."""
        return round(min(1.0, device_seconds * 1000 / self.device_time_ms(measures)), 4)
