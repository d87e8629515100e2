"""How much work devices do in a second: rows, tokens and floating-point operations (FLOP).

All rates are by the clock: over the steps of the main phase, with what lies between them, as far as the time from step
to step is known (the first step ends the start, and the step in which FLOP are counted takes longer).

- *Rows* are those of the splits.
- *Tokens* are the elements of batches of token ids, padding included. They are known where the model's first input is a
  tensor of whole numbers with two dimensions and the model has an nn.Embedding.
- *FLOP* are counted in one step of each process, and belong to a row of it; to a token, where tokens are known. Where
  rows differ in shape and tokens are not known, no step stands for another, and FLOP are not known.
- *MFU* is the FLOP per second over the peak of the card in the arithmetic that they were done in.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from jobs.splits.device_sums import DeviceSums
from jobs.splits.estimates import known_values
from shardyard.contract.report import DeviceMeasures

Peaks = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class WorkFacts:
    """What rates depend on beside the sums. `peaks` are those of each device's card, by arithmetic. `rows` says whether
    devices have rows of their own, all the same ones, or whether that is not known."""

    peaks: Sequence[Peaks | None] = ()
    is_work_alike: bool = True  # rows have the same shape in every step
    rows: Literal["own", "same", "unknown"] = "own"

    def peaks_of(self, device: int) -> Peaks | None:
        return self.peaks[device] if device < len(self.peaks) else None


NO_FACTS = WorkFacts()


class WorkRates(msgspec.Struct, frozen=True):
    """The fields of a report, by their names there. `None`: not known."""

    rows_per_second: float | None = None
    tokens_per_second: float | None = None
    flop_per_step: int | None = None
    flop_per_second: float | None = None
    mfu: float | None = None


def rate_device(device: DeviceSums, facts: WorkFacts, peaks: Peaks | None) -> WorkRates:
    steps_per_second = 1000.0 * device.other.count / device.cycles_ms if device.cycles_ms else None
    rows = None if device.uncounted_steps or not device.steps else device.rows
    tokens = _tokens_of(device)
    flop = _flop_per_step(device, rows if facts.is_work_alike else None, tokens)
    flop_per_second = None if flop is None else _rate(flop * device.steps, device, steps_per_second)
    return WorkRates(
        rows_per_second=_rate(rows, device, steps_per_second),
        tokens_per_second=_rate(tokens, device, steps_per_second),
        flop_per_step=flop,
        flop_per_second=flop_per_second,
        mfu=_utilisation(flop_per_second, device.work.flop, peaks),
    )


def rate_run(devices: Sequence[DeviceMeasures], facts: WorkFacts) -> WorkRates:
    """The rates of all devices together; `None` where that of one is not known."""
    flop = _sum([device.flop_per_step for device in devices])
    return WorkRates(
        rows_per_second=_together([device.rows_per_second for device in devices], facts),
        tokens_per_second=_together([device.tokens_per_second for device in devices], facts),
        flop_per_step=None if flop is None else round(flop),
        flop_per_second=_rounded(_sum([device.flop_per_second for device in devices])),
        mfu=_mean_utilisation(devices),
    )


def _tokens_of(device: DeviceSums) -> int | None:
    """Those of all steps; `None` where some step's are not known."""
    work = device.work
    return work.tokens if work.tokens and work.token_steps == device.steps else None


def _flop_per_step(device: DeviceSums, rows: int | None, tokens: int | None) -> int | None:
    """Of an average step: those that were counted, for as many rows or tokens as a step has on average."""
    if rows == 0 and device.steps:
        return 0
    work, counted = device.work, sum(device.work.flop.values())
    whole, part = (tokens, work.flop_tokens) if tokens is not None else (rows, work.flop_rows)
    if not counted or not whole or not part:
        return None
    return round(counted * whole / (part * device.steps))


def _rate(total: float | None, device: DeviceSums, steps_per_second: float | None) -> float | None:
    return None if total is None or steps_per_second is None else _rounded(total / device.steps * steps_per_second)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _utilisation(flop_per_second: float | None, flop: Mapping[str, int], peaks: Peaks | None) -> float | None:
    """`None` where the peak of some arithmetic is not known."""
    if not flop_per_second or peaks is None or any(name not in peaks for name in flop):
        return None
    seconds_at_peak = sum(count / peaks[name] for name, count in flop.items())
    return round(flop_per_second * seconds_at_peak / sum(flop.values()), 6)


def _mean_utilisation(devices: Sequence[DeviceMeasures]) -> float | None:
    """Of all devices together: of more capable cards more is expected."""
    working = [device for device in devices if device.flop_per_second != 0]
    known = [(device.flop_per_second, device.mfu) for device in working if device.flop_per_second and device.mfu]
    if not known or len(known) < len(working):
        return None
    return round(sum(rate for rate, _ in known) / sum(rate / mfu for rate, mfu in known), 6)


def _together(rates: Sequence[float | None], facts: WorkFacts) -> float | None:
    if facts.rows == "unknown":
        return None
    if facts.rows == "same":
        known = known_values(rates)
        return max(known) if known and len(known) == len(rates) else None
    return _rounded(_sum(rates))


def _sum(values: Sequence[float | None]) -> float | None:
    known = known_values(values)
    return sum(known) if known and len(known) == len(values) else None
