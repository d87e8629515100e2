"""Two split reports side by side: what each device got, what it cost, and how the two compare.

A `ratio` is this one over the other, of numbers as they are and of times by their p50; it is `None`
where one of the two was not measured, or the other is 0. Reports of earlier versions have other times: beside a report
of this version they have no ratio, and a note says so.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeVar

import msgspec

from shardyard.contract.batch_growth import find_batch_growth
from shardyard.contract.report import (
    RATES,
    TIME_PARTS,
    DeviceMeasures,
    Finding,
    Pattern,
    Report,
    Resumed,
    Timing,
    has_whole_times,
)

S = TypeVar("S", bound=msgspec.Struct)

Value = int | float | str | Timing | None

_DEVICE_FIELDS = tuple(name for name in DeviceMeasures.__struct_fields__ if name != "device")
_PRIMITIVES = ("replicate_ms", "scatter_ms", "parallel_apply_ms", "gather_ms")
_INDEXES = frozenset({"slowest_device"})  # not quantities
#: What earlier versions took from other steps, or defined in another way.
_TIMES = frozenset({*TIME_PARTS, "ms_per_row", "wall_ms", "time_max_over_mean", "wasted_device_seconds"})
_EARLIER_TIMES = "made by an earlier version: its times are those of the measured steps alone, and cannot be compared"


class ReportSide(msgspec.Struct, frozen=True):
    """Which report one side is."""

    job_id: str
    attempt: int
    final: bool
    strategy: str
    devices: int
    device_kind: str
    virtual: bool
    rehearsal: bool
    resumed: Resumed | None


class ValuePair(msgspec.Struct, frozen=True):
    """One number, time or word of both reports."""

    this: Value
    against: Value
    ratio: float | None


class PatternPair(msgspec.Struct, frozen=True):
    """A way to divide a batch, and in how many steps each of the two divided one that way; 0: in none."""

    phase: str
    module: str
    batch_rows: int | None
    rows: tuple[int | None, ...] | None
    this_steps: int | None
    against_steps: int | None


class DevicePair(msgspec.Struct, frozen=True):
    """A device of the lease; every number is `None` on the side that had no such device."""

    device: int
    rows: ValuePair
    share: ValuePair
    steps: ValuePair
    idle_steps: ValuePair
    forward_ms: ValuePair
    backward_ms: ValuePair
    data_wait_ms: ValuePair
    comm_ms: ValuePair
    ms_per_row: ValuePair
    memory_peak_bytes: ValuePair
    optimizer_ms: ValuePair
    other_ms: ValuePair
    wall_ms: ValuePair
    rows_per_second: ValuePair
    tokens_per_second: ValuePair
    flop_per_step: ValuePair
    flop_per_second: ValuePair
    mfu: ValuePair


class RatePairs(msgspec.Struct, frozen=True):
    """The work of all devices together."""

    rows_per_second: ValuePair
    tokens_per_second: ValuePair
    flop_per_step: ValuePair
    flop_per_second: ValuePair
    mfu: ValuePair


class PrimitivePairs(msgspec.Struct, frozen=True):
    replicate_ms: ValuePair
    scatter_ms: ValuePair
    parallel_apply_ms: ValuePair
    gather_ms: ValuePair


class BalancePairs(msgspec.Struct, frozen=True):
    rows_max_over_mean: ValuePair
    time_max_over_mean: ValuePair
    slowest_device: ValuePair
    cause: ValuePair
    idle_device_steps: ValuePair
    wasted_device_seconds: ValuePair
    output_device_memory_skew: ValuePair


class FindingPairs(msgspec.Struct, frozen=True):
    """Findings of one side only, and the codes of those that both have."""

    this_only: tuple[Finding, ...]
    against_only: tuple[Finding, ...]
    both: tuple[str, ...]


class SideNotes(msgspec.Struct, frozen=True):
    this: dict[str, str]
    against: dict[str, str]


class ReportDiff(msgspec.Struct, frozen=True):
    """`primitives` is `None` where neither has them."""

    this: ReportSide
    against: ReportSide
    patterns: tuple[PatternPair, ...]
    per_device: tuple[DevicePair, ...]
    primitives: PrimitivePairs | None
    balance: BalancePairs
    findings: FindingPairs
    notes: SideNotes
    throughput: RatePairs


def compare_reports(this: Report, against: Report) -> ReportDiff:
    """Both reports side by side. They may be of any two jobs."""
    primitives = None
    without = _INDEXES if has_whole_times(this) == has_whole_times(against) else _INDEXES | _TIMES
    if this.primitives is not None or against.primitives is not None:
        pairs = (_pair_of(this.primitives, against.primitives, name, without) for name in _PRIMITIVES)
        primitives = PrimitivePairs(*pairs)
    return ReportDiff(
        this=_report_side(this),
        against=_report_side(against),
        patterns=tuple(_pair_patterns(this.patterns, against.patterns)),
        per_device=tuple(_pair_devices(this.per_device, against.per_device, without)),
        primitives=primitives,
        balance=BalancePairs(
            *(_pair_of(this.balance, against.balance, name, without) for name in BalancePairs.__struct_fields__)
        ),
        findings=_pair_findings(this, against),
        notes=SideNotes(_side_notes(this), _side_notes(against)),
        throughput=RatePairs(*(_pair_of(this, against, name, without) for name in RATES)),
    )


def _compare_batches(this: Report, against: Report) -> Finding | None:
    return find_batch_growth(_rows_of_step(this), this.learning_rate, _rows_of_step(against), against.learning_rate)


def _rows_of_step(report: Report) -> int | None:
    """Of the most frequent kind of training step; of several modules, of the largest."""
    steps = [one for one in report.patterns if one.phase == "train" and one.batch_rows]
    most = max(steps, key=lambda one: (one.steps or 0, one.batch_rows or 0), default=None)
    return None if most is None else most.batch_rows


def _side_notes(report: Report) -> dict[str, str]:
    return report.notes if has_whole_times(report) else report.notes | {"times": _EARLIER_TIMES}


def _report_side(report: Report) -> ReportSide:
    return ReportSide(
        job_id=report.job_id,
        attempt=report.attempt,
        final=report.final,
        strategy=report.strategy,
        devices=len(report.devices),
        device_kind=report.device_kind,
        virtual=report.virtual,
        rehearsal=report.rehearsal,
        resumed=report.resumed,
    )


def _pair_of(
    this: msgspec.Struct | None, against: msgspec.Struct | None, name: str, without_ratio: Collection[str]
) -> ValuePair:
    left, right = (None if one is None else getattr(one, name) for one in (this, against))
    return ValuePair(left, right, None if name in without_ratio else _value_ratio(left, right))


def _value_ratio(this: Value, against: Value) -> float | None:
    left, right = _value_size(this), _value_size(against)
    return None if left is None or not right else left / right


def _value_size(value: Value) -> float | None:
    if isinstance(value, Timing):
        return value.p50
    return None if isinstance(value, str) else value


def _pair_patterns(this: Sequence[Pattern], against: Sequence[Pattern]) -> Iterator[PatternPair]:
    """In the order of this report, then what only the other one has."""
    ours, theirs = _by_key(this, _split_of), _by_key(against, _split_of)
    for key in dict.fromkeys([*ours, *theirs]):
        mine, other = ours.get(key), theirs.get(key)
        yield PatternPair(*key, 0 if mine is None else mine.steps, 0 if other is None else other.steps)


_Split = tuple[str, str, int | None, tuple[int | None, ...] | None]


def _split_of(pattern: Pattern) -> _Split:
    return pattern.phase, pattern.module, pattern.batch_rows, pattern.rows


K = TypeVar("K")


def _by_key(entries: Sequence[S], key: Callable[[S], K]) -> dict[K, S]:
    return {key(entry): entry for entry in entries}


def _pair_devices(
    this: Sequence[DeviceMeasures], against: Sequence[DeviceMeasures], without_ratio: Collection[str]
) -> Iterator[DevicePair]:
    ours, theirs = (_by_key(side, lambda device: device.device) for side in (this, against))
    for device in sorted({*ours, *theirs}):
        pairs = (_pair_of(ours.get(device), theirs.get(device), name, without_ratio) for name in _DEVICE_FIELDS)
        yield DevicePair(device, *pairs)


def _pair_findings(this: Report, against: Report) -> FindingPairs:
    """Those of each report, and what follows from both: about the one whose steps have more rows."""
    ours, theirs = ({finding.code for finding in side.findings} for side in (this, against))
    grown, shrunk = _compare_batches(this, against), _compare_batches(against, this)
    this_only = [finding for finding in this.findings if finding.code not in theirs]
    against_only = [finding for finding in against.findings if finding.code not in ours]
    return FindingPairs(
        this_only=(*([grown] if grown is not None else []), *this_only),
        against_only=(*([shrunk] if shrunk is not None else []), *against_only),
        both=tuple(sorted(ours & theirs)),
    )
