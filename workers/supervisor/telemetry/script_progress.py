"""How far a script is. Nobody knows what it will do, so its own word counts first (`shardyard.job.progress`), then the
progress bar that it draws, then what an earlier pass over its DataLoader took; its steps are counted in any case."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from time import monotonic
from typing import Any

from jobs.protocol.records import AnyRecord, Group, Loaded, Metric, Progress, Split, Step
from workers.supervisor.telemetry.progress import Pace, RowCount
from workers.supervisor.telemetry.tqdm_parser import Bar

#: Processes and ranks beyond these are not followed.
MAX_PROCESSES = 512
#: Who is believed, the first that has spoken.
SOURCES = ("job", "tqdm", "loader")
PHASES = ("train", "forward", "eval")


@dataclass(frozen=True, slots=True)
class _Position:
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
    """Fed with the records of all processes, and with the bars that the script draws."""

    def __init__(self) -> None:
        self._ranks: dict[tuple[int, int], int] = {}  # by rank and source: its rank in the process group
        self._counts: dict[tuple[int, int], RowCount] = {}
        self._done: dict[str, dict[int, int]] = {}  # by phase, and by rank: steps
        self._rows: dict[str, int] = {}  # by phase, of all ranks
        self._paces: dict[str, Pace] = {}  # by phase, and by source of a position
        self._positions: dict[str, _Position] = {}  # by source
        self._speaker: dict[str, int] = {}  # by source of a position: the lowest rank that has spoken
        self._loader: tuple[int, int] | None = None  # rank and number of the DataLoader whose passes are counted
        self._passes = self._steps_before = self._per_pass = 0  # passes that ended, steps until then, and in the last
        self._batches = 0  # in the last
        self._loss: float | None = None

    def feed(self, rank: int, record: AnyRecord, source: int = 0) -> bool:
        """Take a record; True when it changed what `snapshot` shows."""
        process = rank, source
        if process not in self._counts and len(self._counts) >= MAX_PROCESSES:
            return False
        match record:
            case Split():
                self._counts.setdefault(process, RowCount()).split(record)
            case Step():
                return self.feed_steps(rank, (record,), source)
            case Group():
                self._ranks[process] = record.rank if record.world_size > 1 else rank
                return False
            case Metric(name="loss", device=-1):
                self._loss = record.value
            case Progress(source="job" | "tqdm"):
                self._take(record.source, self._rank(process), _Position(record.step, record.steps, record.unit))
            case Progress(source="loader"):
                self._load(self._rank(process), record)
            case Loaded(trained=True, complete=True):
                self._passed(self._rank(process), record)
            case _:
                return False
        return True

    def feed_steps(self, rank: int, steps: Sequence[Step], source: int = 0) -> bool:
        """Take steps that a process sent one after another; as `feed`."""
        process = rank, source
        if process not in self._counts and len(self._counts) >= MAX_PROCESSES:
            return False
        for phase, alike in groupby(steps, key=lambda step: step.phase):
            if phase in PHASES:
                self._steps(process, phase, list(alike))
        return True

    def draw(self, bars: tuple[Bar, ...]) -> None:
        """Take in the bars that are open, outermost first."""
        if not bars:
            return
        inner, outer = bars[-1], bars[0]
        if inner is outer or outer.total is None:
            self._positions["tqdm"] = _Position(inner.done, inner.total, _unit(inner), left_seconds=inner.left_seconds)
        else:
            epoch = min(outer.done + 1, outer.total)
            self._positions["tqdm"] = _Position(
                inner.done, inner.total, _unit(inner), epoch, outer.total, outer.left_seconds
            )

    def _rank(self, process: tuple[int, int]) -> int:
        return self._ranks.get(process, process[0])

    def _steps(self, process: tuple[int, int], phase: str, steps: Sequence[Step]) -> None:
        rank = self._rank(process)
        done = self._done.setdefault(phase, {})
        if rank not in done and len(done) >= MAX_PROCESSES:
            return
        done[rank] = done.get(rank, 0) + len(steps)
        rows = self._counts.setdefault(process, RowCount()).steps(steps)
        self._rows[phase] = self._rows.get(phase, 0) + rows
        self._paces.setdefault(phase, Pace()).add(steps[-1].at, min(done.values()), self._rows[phase])
        if phase == "train" and self._loader is not None and self._loader[0] == rank:
            self._within(done[rank] - self._steps_before, self._passes + 1)

    def _take(self, source: str, rank: int, position: _Position) -> None:
        """Of several ranks that say how far they are, the lowest is believed."""
        if rank <= self._speaker.setdefault(source, rank):
            self._speaker[source] = rank
            self._positions[source] = position
            self._paces.setdefault(source, Pace()).add(monotonic(), position.done)

    def _load(self, rank: int, record: Progress) -> None:
        """How far a pass is. A loader of another length than the one that is trained on is for evaluation."""
        if not self._passes or record.steps == self._batches:
            self._take("loader", rank, _Position(record.step, record.steps, record.unit, self._passes + 1))

    def _passed(self, rank: int, loaded: Loaded) -> None:
        """A pass over a DataLoader took so many steps; the next one is expected to take as many."""
        if self._loader is None:
            self._loader = rank, loaded.loader
        done = self._done.get("train", {}).get(rank, 0)
        if self._loader != (rank, loaded.loader) or done == self._steps_before:
            return
        self._passes, self._batches = self._passes + 1, loaded.batches
        self._per_pass, self._steps_before = done - self._steps_before, done
        self._within(self._per_pass, self._passes)
        if "loader" in self._speaker:
            self._positions["loader"] = _Position(loaded.batches, loaded.batches, "batch", self._passes)

    def _within(self, done: int, epoch: int) -> None:
        if "loader" not in self._speaker and done <= self._per_pass:
            self._positions["loader"] = _Position(done, self._per_pass, "step", epoch)

    def snapshot(self) -> dict[str, Any] | None:
        """The status's `progress` object; None before the script has done or said anything."""
        phase = next((phase for phase in ("train", "forward", "eval") if phase in self._done), None)
        if phase is None and not self._positions:
            return None
        seen = min(self._done[phase].values()) if phase is not None else 0
        source = next((source for source in SOURCES if source in self._positions), None)
        position = self._positions[source] if source is not None else _Position(seen, None)
        rows_a_second = self._paces[phase].speed()[1] if phase is not None and self._rows[phase] else None
        eta, fraction = self._eta(source, position), position.fraction
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

    def _eta(self, source: str | None, position: _Position) -> float | None:
        """Until the end of the job, where the source knows one."""
        if source is None or position.total is None or source == "loader":
            return None
        if position.left_seconds is not None or source not in self._paces:
            return position.left_seconds
        speed = self._paces[source].speed()[0]
        return max(0, position.total - position.done) / speed if speed else None


def _unit(bar: Bar) -> str:
    """A bar's "it" says nothing about what is counted."""
    return "step" if bar.unit == "it" else bar.unit
