"""How weights of devices change the time of a step: as predicted, as seen, and with equal rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from jobs.protocol.records import GradientProof, RowWeights
from jobs.splits.step_windows import StepWindow, fill_backwards
from shardyard.contract.report import GradientCheck, SplitWeights
from shardyard.contract.row_shares import divide_rows


@dataclass(frozen=True, slots=True)
class RowTimes:
    """Of a typical step: its rows, and what one of them takes, for each device; `step_ms` is that of the slowest."""

    rows: tuple[int, ...]
    per_row: tuple[float, ...]
    step_ms: float
    even_ms: float
    fitting_ms: float

    @property
    def fitting_rows(self) -> tuple[int, ...]:
        return fitting_rows(sum(self.rows), self.per_row)

    @property
    def speed_share(self) -> float:
        return sum(self.rows) / self.step_ms / sum(1 / each for each in self.per_row)


def fitting_rows(rows: int, per_row: Sequence[float]) -> tuple[int, ...]:
    """Rows for each device so that all need about as long."""
    return divide_rows(rows, tuple(1 / each for each in per_row))


def fitting_weights(per_row: Sequence[float]) -> list[float]:
    """Weights in proportion to the speeds of devices, in few digits, and 1 for the slowest."""
    slowest = max(per_row)
    return [round(slowest / each, 2) for each in per_row]


def read_row_times(windows: Sequence[StepWindow]) -> RowTimes | None:
    """What a row takes on each device; `None` where that is not known of all."""
    filled = fill_backwards(windows) if windows else []
    if not filled or any(not min(window.rows) for window in filled):
        return None
    devices = range(len(filled[-1].rows))
    per_row = tuple(median(window.compute(device) / window.rows[device] for window in filled) for device in devices)
    if min(per_row) <= 0:
        return None
    rows = tuple(round(count) for count in filled[-1].rows)
    step_ms = median(max(window.compute(device) for device in devices) for window in filled)
    fitting = max(count * each for count, each in zip(fitting_rows(sum(rows), per_row), per_row, strict=True))
    return RowTimes(rows, per_row, step_ms, sum(rows) / len(rows) * max(per_row), fitting)


def describe_weights(told: RowWeights | None, proof: GradientProof | None, times: RowTimes | None) -> SplitWeights:
    predicted = None
    if told is not None and told.row_ms and times is not None:
        predicted = max(count * each for count, each in zip(times.rows, told.row_ms, strict=True))
    return SplitWeights(
        weights=None if told is None else told.weights,
        source="spec" if told is None else told.source,
        predicted_ms=None if predicted is None else round(predicted, 4),
        seen_ms=None if times is None else round(times.step_ms, 4),
        even_ms=None if times is None else round(times.even_ms, 4),
        speed_share=None if times is None else round(times.speed_share, 4),
        gradient=None if proof is None else GradientCheck(proof.step, proof.rows, proof.norm, proof.difference),
    )
