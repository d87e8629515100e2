"""Computes the progress of a script, whose length is not known beforehand.

What the script itself reports (`shardyard.job.progress`) counts first, then its tqdm progress bar, then the length of
an earlier pass over its DataLoader. Its steps are counted in any case.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from time import monotonic
from typing import Any

from jobs.protocol.packets import AnyRecord
from jobs.protocol.probe_records import Group, Loaded
from jobs.protocol.records import BatchSplit, MetricSample, Outcome, ProgramProgress, Step
from workers.supervisor.telemetry.progress import RowCounter, SpeedMeter
from workers.supervisor.telemetry.tqdm_parser import TqdmBar

#: Processes and ranks beyond these are not followed.
MAX_PROCESSES = 512
#: Sources of the progress: the first one that has reported anything is used.
SOURCES = ("job", "tqdm", "loader")
PHASES = ("train", "forward", "eval")


@dataclass(frozen=True, slots=True)
class _ReportedPosition:
    """`done` of `total`, in `unit`s, within the `epoch`th of `epochs` passes where these are known."""

    done: int
    total: int | None
    unit: str = "step"
    epoch: int | None = None
    epochs: int | None = None
    left_seconds: float | None = None

    @property
    def fraction(self) -> float | None:
        """Of the whole job, as far as this knows one."""
        if not self.total:
            return None
        part = min(1.0, self.done / self.total)
        return (self.epoch - 1 + part) / self.epochs if self.epoch is not None and self.epochs else part


class ScriptProgress:
    """Receives the records of all processes, and the progress bars that the script draws."""

    def __init__(self) -> None:
        self._ranks: dict[tuple[int, int], int] = {}  # by rank and source: its rank in the process group
        self._counts: dict[tuple[int, int], RowCounter] = {}
        self._done: dict[str, dict[int, int]] = {}  # by phase, and by rank: steps
        self._rows: dict[str, int] = {}  # by phase, of all ranks
        self._paces: dict[str, SpeedMeter] = {}  # by phase, and by source of a position
        self._positions: dict[str, _ReportedPosition] = {}  # by source
        self._source_rank: dict[str, int] = {}  # by source of a position: the lowest rank that has reported
        self._loader: tuple[int, int] | None = None  # rank and number of the DataLoader whose passes are counted
        self._passes = self._steps_before = self._per_pass = 0  # passes that ended, steps until then, and in the last
        self._batches = 0  # in the last
        self._loss: float | None = None
        self._succeeded = False

    def add_record(self, rank: int, record: AnyRecord, source: int = 0) -> bool:
        """Take a record; True when it changed what `make_status` shows."""
        process = rank, source
        if process not in self._counts and len(self._counts) >= MAX_PROCESSES:
            return False
        match record:
            case BatchSplit():
                self._counts.setdefault(process, RowCounter()).add_split(record)
            case Step():
                return self.add_steps(rank, (record,), source)
            case Group():
                self._ranks[process] = record.rank if record.world_size > 1 else rank
                return False
            case MetricSample(name="loss", device=-1):
                self._loss = record.value
            case ProgramProgress(source="job" | "tqdm"):
                position = _ReportedPosition(record.step, record.steps, record.unit)
                self._set_position(record.source, self._rank_of(process), position)
            case ProgramProgress(source="loader"):
                self._add_loader_progress(self._rank_of(process), record)
            case Loaded(trained=True):
                self._add_pass(self._rank_of(process), record)
            case Outcome(exit_code=0) if source == 0:
                self._succeeded = True
            case _:
                return False
        return True

    def add_steps(self, rank: int, steps: Sequence[Step], source: int = 0) -> bool:
        """Take steps that a process sent one after another; as `add_record`."""
        process = rank, source
        if process not in self._counts and len(self._counts) >= MAX_PROCESSES:
            return False
        for phase, alike in groupby(steps, key=lambda step: step.phase):
            if phase in PHASES:
                self._count_steps(process, phase, list(alike))
        return True

    def set_bars(self, bars: tuple[TqdmBar, ...]) -> None:
        """Take in the bars that are open, outermost first."""
        if not bars:
            return
        inner, outer = bars[-1], bars[0]
        if inner is outer or outer.total is None:
            self._positions["tqdm"] = _ReportedPosition(
                inner.done, inner.total, _unit_of(inner), left_seconds=inner.left_seconds
            )
        else:
            epoch = min(outer.done + 1, outer.total)
            self._positions["tqdm"] = _ReportedPosition(
                inner.done, inner.total, _unit_of(inner), epoch, outer.total, outer.left_seconds
            )

    def _rank_of(self, process: tuple[int, int]) -> int:
        return self._ranks.get(process, process[0])

    def _count_steps(self, process: tuple[int, int], phase: str, steps: Sequence[Step]) -> None:
        rank = self._rank_of(process)
        done = self._done.setdefault(phase, {})
        if rank not in done and len(done) >= MAX_PROCESSES:
            return
        done[rank] = done.get(rank, 0) + len(steps)
        rows = self._counts.setdefault(process, RowCounter()).count_rows(steps)
        self._rows[phase] = self._rows.get(phase, 0) + rows
        self._paces.setdefault(phase, SpeedMeter()).add_point(steps[-1].at, min(done.values()), self._rows[phase])
        if phase == "train" and self._loader is not None and self._loader[0] == rank:
            self._set_pass_position(done[rank] - self._steps_before, self._passes + 1)

    def _set_position(self, source: str, rank: int, position: _ReportedPosition) -> None:
        """Of several ranks that report a position, the lowest rank counts."""
        if rank <= self._source_rank.setdefault(source, rank):
            self._source_rank[source] = rank
            self._positions[source] = position
            self._paces.setdefault(source, SpeedMeter()).add_point(monotonic(), position.done)

    def _add_loader_progress(self, rank: int, record: ProgramProgress) -> None:
        """Set how far a pass is. A loader of another length than the one that is trained on is for evaluation."""
        if not self._passes or record.steps == self._batches:
            self._set_position(
                "loader", rank, _ReportedPosition(record.step, record.steps, record.unit, self._passes + 1)
            )

    def _add_pass(self, rank: int, loaded: Loaded) -> None:
        """A pass over a DataLoader took so many steps; the next one is expected to take as many. A script may make a
        DataLoader for each pass."""
        if not loaded.complete:
            self._add_partial_pass(rank, loaded)
            return
        if self._loader is None or (self._loader[0] == rank and loaded.batches == self._batches):
            self._loader = rank, loaded.loader
        done = self._done.get("train", {}).get(rank, 0)
        if self._loader != (rank, loaded.loader) or done == self._steps_before:
            return
        self._passes, self._batches = self._passes + 1, loaded.batches
        self._per_pass, self._steps_before = done - self._steps_before, done
        self._set_pass_position(self._per_pass, self._passes)
        if "loader" in self._source_rank:
            self._positions["loader"] = _ReportedPosition(loaded.batches, loaded.batches, "batch", self._passes)

    def _add_partial_pass(self, rank: int, loaded: Loaded) -> None:
        """The script has left a pass: this is as far as it got."""
        position = self._positions.get("loader")
        if (
            position is not None
            and rank == self._source_rank.get("loader")
            and self._loader
            in (
                None,
                (rank, loaded.loader),
            )
        ):
            self._positions["loader"] = replace(position, done=loaded.batches, epoch=self._passes + 1)

    def _set_pass_position(self, done: int, epoch: int) -> None:
        if "loader" not in self._source_rank and done <= self._per_pass:
            self._positions["loader"] = _ReportedPosition(done, self._per_pass, "step", epoch)

    def make_status(self) -> dict[str, Any] | None:
        """The status's `progress` object; None before the script has done or reported anything."""
        phase = next((phase for phase in ("train", "forward", "eval") if phase in self._done), None)
        if phase is None and not self._positions:
            return None
        seen = min(self._done[phase].values()) if phase is not None else 0
        source = next((source for source in SOURCES if source in self._positions), None)
        position = self._positions[source] if source is not None else _ReportedPosition(seen, None)
        if self._succeeded and source == "loader":  # the last pass may have been left early
            position = replace(position, total=position.done)
        rows_a_second = self._paces[phase].per_second()[1] if phase is not None and self._rows[phase] else None
        eta, fraction = self._eta_seconds(source, position), position.fraction
        return {
            "epoch": position.epoch,
            "epochs": position.epochs,
            "step": position.done,
            "steps": position.total,
            "fraction": round(fraction, 4) if fraction is not None else None,
            "rows_per_second": round(rows_a_second, 1) if rows_a_second is not None else None,
            "eta_seconds": round(eta, 1) if eta is not None else None,
            "loss": self._loss,
            "unit": position.unit,
            "source": source,
            "steps_seen": seen,
        }

    def _eta_seconds(self, source: str | None, position: _ReportedPosition) -> float | None:
        """Until the end of the job, where the source knows one."""
        if source is None or position.total is None or source == "loader" or self._succeeded:
            return None
        if position.left_seconds is not None or source not in self._paces:
            return position.left_seconds
        speed = self._paces[source].per_second()[0]
        return max(0, position.total - position.done) / speed if speed else None


def _unit_of(bar: TqdmBar) -> str:
    """A bar's "it" says nothing about what is counted."""
    return "step" if bar.unit == "it" else bar.unit
