"""Says why a rate of a report (rows, tokens or FLOP per second, MFU) is not known."""

from collections.abc import Mapping, Sequence

from jobs.protocol.records import FLOP_STEP
from shardyard.contract.report import RATES, Report, join_reasons

NO_TOKENS = "the model's inputs are not token ids (whole numbers in two dimensions, for an nn.Embedding)"
NO_CLOCK = "the time between two steps is not known anywhere"
SAME_ROWS = "ranks that share a model by tensor parallelism read the same rows, so rows do not add up"
TOO_SHORT = f"FLOP are counted in training step {FLOP_STEP}, which was not reached"
UNLIKE_ROWS = "rows differ in shape from step to step, so the step whose FLOP were counted does not stand for others"
NOT_COUNTED = "no process has sent the FLOP of a step"
NO_PEAK = "virtual devices have no peak to compare with"
UNKNOWN_PEAK = "the peak of {} in the arithmetic of this program is not in the table"


def explain_missing_rate(
    field: str, report: Report, steps: int, *, is_work_alike: bool, rank_notes: Mapping[str, Sequence[str]]
) -> str:
    """The reason of a path that ends in one of `RATES`; `steps` are those of the main phase."""
    name = field.removeprefix("per_device.")
    if name == "mfu" and report.virtual:
        return NO_PEAK
    if name == "mfu" and _has(report, "flop_per_second"):
        return UNKNOWN_PEAK.format(", ".join(sorted({device.name for device in report.devices})))
    if name in ("rows_per_second", "tokens_per_second"):
        if all(getattr(device, name) is not None for device in report.per_device) and name == field:
            return SAME_ROWS
        return NO_CLOCK if name == "rows_per_second" else NO_TOKENS
    if rank_notes.get("flop_per_step"):
        return join_reasons(rank_notes["flop_per_step"])
    if steps <= FLOP_STEP:
        return TOO_SHORT
    return NOT_COUNTED if is_work_alike else UNLIKE_ROWS


def missing_rates(report: Report) -> list[str]:
    """Paths of the rates of all devices together that are not known."""
    return [name for name in RATES if getattr(report, name) is None]


def _has(report: Report, name: str) -> bool:
    return any(getattr(device, name) is not None for device in report.per_device)
