"""Computes the progress of a recipe, which the status shows, from its outline and its steps."""

from collections import deque
from collections.abc import Sequence
from typing import Any

from jobs.protocol.packets import AnyRecord
from jobs.protocol.records import MAX_INTERNED, BatchSplit, MetricSample, Outline, Step

#: Speed is that of the last few seconds, so that a slow start does not spoil the estimate.
WINDOW_SECONDS = 10.0
MAX_POINTS = 4096
#: Splits from `MAX_INTERNED` on that may wait for their step.
MAX_PASSING_SPLITS = 64
#: Phases whose steps count as steps of the job.
MAIN_PHASES = ("train", "forward")


class SpeedMeter:
    """How fast two counts grow: steps, and rows."""

    def __init__(self) -> None:
        self._recent: deque[tuple[float, int, int]] = deque(maxlen=MAX_POINTS)

    def add_point(self, at: float, steps: int, rows: int = 0) -> None:
        """Add both counts as they are at a time in seconds."""
        self._recent.append((at, steps, rows))
        while len(self._recent) > 2 and self._recent[-1][0] - self._recent[0][0] > WINDOW_SECONDS:
            self._recent.popleft()

    def per_second(self) -> tuple[float | None, float | None]:
        """(steps, rows) a second over the window; None before two points in time are known."""
        if len(self._recent) < 2:
            return None, None
        (first, steps_before, rows_before), (last, steps, rows) = self._recent[0], self._recent[-1]
        seconds = last - first
        if seconds <= 0:
            return None, None
        return (steps - steps_before) / seconds, (rows - rows_before) / seconds


class RowCounter:
    """Counts the rows of one process's steps, by the splits that it has sent."""

    def __init__(self) -> None:
        self._kept: dict[int, int] = {}  # split id -> rows
        self._passing: dict[int, int] = {}  # the same, until the next step

    def add_split(self, split: BatchSplit) -> None:
        kept = self._kept if len(self._kept) < MAX_INTERNED else self._passing
        kept[split.id] = sum(rows or 0 for rows in split.rows)
        if len(self._passing) > MAX_PASSING_SPLITS:
            del self._passing[next(iter(self._passing))]

    def count_rows(self, steps: Sequence[Step]) -> int:
        known = self._kept | self._passing if self._passing else self._kept
        self._passing.clear()
        return sum([known.get(split, 0) for step in steps for split in step.splits])


class RecipeProgress:
    """Receives the records of all ranks; counts the steps of the rank that is furthest behind."""

    def __init__(self, world_size: int) -> None:
        self._outline: Outline | None = None
        self._counts = [RowCounter() for _ in range(world_size)]
        self._done = [0] * world_size
        self._epoch = 0
        self._pace = SpeedMeter()
        self._rows = 0  # of all ranks
        self._loss: float | None = None

    def resume_from(self, step: int, epoch: int) -> None:
        """Begin after `step` steps, in an epoch that is counted from 0."""
        self._done = [step] * len(self._done)
        self._epoch = epoch + 1

    def add_record(self, rank: int, record: AnyRecord, source: int = 0) -> bool:
        """Take a record; True when it was a step of the main phase."""
        match record:
            case Outline() if rank == 0:
                self._outline = record
            case BatchSplit():
                self._counts[rank].add_split(record)
            case MetricSample(name="loss", device=-1):
                self._loss = record.value
            case Step():
                return self.add_steps(rank, (record,))
        return False

    def add_steps(self, rank: int, steps: Sequence[Step], source: int = 0) -> bool:
        """Take steps that a rank sent one after another; as `add_record`."""
        main = [step for step in steps if step.phase in MAIN_PHASES]
        if not main:
            return False
        last = main[-1]
        self._done[rank] = last.step + 1
        self._epoch = max(self._epoch, last.epoch + 1)
        self._rows += self._counts[rank].count_rows(main)
        self._pace.add_point(last.at, self.steps, self._rows)
        return True

    @property
    def steps(self) -> int:
        """Steps that every rank has done."""
        return min(self._done)

    def make_status(self) -> dict[str, Any] | None:
        """The status's `progress` object; None before the program has sent anything."""
        if self._outline is None and self.steps == 0:
            return None
        total = self._outline.total_steps if self._outline is not None else None
        steps_a_second, rows_a_second = self._pace.per_second()
        left = total - self.steps if total is not None else None
        return {
            "epoch": self._epoch,
            "epochs": self._outline.epochs if self._outline is not None else None,
            "step": self.steps,
            "steps": total,
            "fraction": round(self.steps / total, 4) if total else None,
            "rows_per_second": round(rows_a_second, 1) if rows_a_second is not None else None,
            "eta_seconds": round(left / steps_a_second, 1) if steps_a_second and left is not None else None,
            "loss": self._loss,
            "unit": "step",
            "source": "plan",
            "steps_seen": self.steps,
        }
