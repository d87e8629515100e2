"""What trials say about how fast a candidate is."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from shardyard.contract.measuring.intervals import Interval, typical_value
from shardyard.contract.measuring.time_blocks import make_blocks
from shardyard.contract.report import Report
from shardyard.tuning.candidates import Candidate

#: What a candidate's throughput may be off by, while few windows say how much it varies.
UNSURE = 0.10


@dataclass(frozen=True, slots=True)
class TuningTrial:
    """One short run. `rates` are rows per second in windows of its steps; `steps` those that were done. `problem`:
    "out_of_memory", or what else went wrong; "" if it was measured."""

    candidate: Candidate
    steps: int
    rates: tuple[float, ...] = ()
    problem: str = ""
    job: str = ""

    @property
    def is_too_large(self) -> bool:
        return self.problem == OUT_OF_MEMORY


#: The reason of a job that had not enough memory.
OUT_OF_MEMORY = "out_of_memory"


def read_rates(report: Report) -> tuple[float, ...]:
    """Rows per second in windows after the warm-up; of a run without windows, those of the whole."""
    blocks = make_blocks(report.step_times)
    rates = tuple(1000 * block.rows / block.step_ms for block in blocks if block.rows and block.step_ms > 0)
    return rates or ((report.rows_per_second,) if report.rows_per_second else ())


def estimate(trials: Sequence[TuningTrial]) -> Interval | None:
    """Rows per second of a candidate, from all of its trials; None if none was measured."""
    rates = [rate for trial in trials for rate in trial.rates]
    if not rates:
        return None
    known = typical_value(rates)
    if known is not None:
        return replace(known, low=max(0.0, known.low))  # rates that vary very much say nothing: not less than nothing
    centre = median(rates)
    off = max(UNSURE * centre, (max(rates) - min(rates)) / 2)
    return Interval(centre, centre - off, centre + off)
