"""The split report: what each device got of every batch, what it cost there, and what to change.

`patterns` has every phase. `per_device`, `primitives` and `balance` are about the main phase alone
(train, or forward in forward mode): an evaluation runs other code at another batch size, and mixing
the two would hide both. For a script that only evaluates they are about that.

A number that could not be measured is `None`, and `notes` says why: its keys are paths in the report
("per_device.comm_ms"), and "; " separates the reasons of one note. Units are in the names; times are milliseconds where
a name ends in `_ms`.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Literal

import msgspec

from shardyard.contract.hardware import DeviceHardware

#: Sizes of a tensor.
Shape = tuple[int, ...]
Severity = Literal["info", "warning"]
#: Weights that a sentence names.
MAX_LISTED = 16
#: Between the reasons of one note.
REASON_SEPARATOR = "; "


class Pattern(msgspec.Struct, frozen=True):
    """All batches that were (or will be) divided in the same way; the unit of plans and of reports.

    The key is (phase, module, batch_rows, rows). `rows` has one number per leased device, 0 where it
    gets nothing. Under ddp a device's number is what its rank reads, and `batch_rows` is their sum.
    Shapes run parallel to `rows` and are those of the first occurrence. Steps count from 0 within
    their phase, over all epochs. `None` means not known; `notes` of the document says why.
    """

    phase: str
    module: str
    batch_rows: int | None
    rows: tuple[int | None, ...] | None
    shapes_vary: bool | None
    input_shapes: tuple[Shape | None, ...] | None
    output_shapes: tuple[Shape | None, ...] | None
    steps: int | None
    first_step: int | None
    last_step: int | None


class Timing(msgspec.Struct, frozen=True):
    """Milliseconds: the total of all steps, and quantiles of one measured step within 1 %.

    `measured_steps` says in how many steps the time was measured. Where that is not all of them, `total` is an
    estimate, and `error` half of its 95 % confidence interval. In reports of earlier versions both are `None`, and
    `total` is that of the measured steps alone: the two kinds cannot be compared.
    """

    total: float
    p50: float
    p95: float
    measured_steps: int | None = None
    error: float | None = None


class DeviceMeasures(msgspec.Struct, frozen=True):
    """One device over the main phase.

    `steps` counts all steps, `idle_steps` those in which the device got nothing. `ms_per_row` is
    forward plus backward time of one row, each over the rows of the steps in which it was measured.

    The times are disjoint parts of `wall_ms`, how long the device's program has run: `data_wait_ms` for batches,
    `forward_ms` and `backward_ms` of its own work, `comm_ms` of communication that no work hides, waiting for the
    slowest device included, `optimizer_ms`, and `other_ms` for the rest. Virtual devices of one process work in turn;
    their times are as if they had worked at once.

    `rows_per_second`, `tokens_per_second` and `flop_per_second` are by the clock, over the main phase's steps with what
    lies between them. `flop_per_step` are the floating-point operations of an average step, and `mfu` is
    `flop_per_second` over the card's peak.
    """

    device: int
    rows: int | None
    share: float | None
    steps: int
    idle_steps: int
    forward_ms: Timing | None
    backward_ms: Timing | None
    data_wait_ms: Timing | None
    comm_ms: Timing | None
    ms_per_row: float | None
    memory_peak_bytes: int | None
    optimizer_ms: Timing | None = None
    other_ms: Timing | None = None
    wall_ms: float | None = None
    rows_per_second: float | None = None
    tokens_per_second: float | None = None
    flop_per_step: int | None = None
    flop_per_second: float | None = None
    mfu: float | None = None


class NodeMeasures(msgspec.Struct, frozen=True):
    """One node's devices together over the main phase.

    `rows` and `share` are sums, `steps` is the most of a device. The times are means over its devices, of which each is
    the `total` of `DeviceMeasures`. `slowest_device` is the one of them that waited least for the others.
    """

    node: str
    devices: tuple[int, ...]
    rows: int | None
    share: float | None
    steps: int
    slowest_device: int | None
    data_wait_ms: float | None = None
    forward_ms: float | None = None
    backward_ms: float | None = None
    comm_ms: float | None = None
    optimizer_ms: float | None = None
    other_ms: float | None = None
    wall_ms: float | None = None


class PrimitiveTimings(msgspec.Struct, frozen=True):
    replicate_ms: Timing
    scatter_ms: Timing
    parallel_apply_ms: Timing
    gather_ms: Timing


class Balance(msgspec.Struct, frozen=True, omit_defaults=True):
    """How evenly rows and time are spread, and what costs most.

    `cause` is the largest loss, if it is at least a tenth of the time of the steps: `rows` or
    `compute` (the slowest device's excess over the mean, because it got more rows, or takes longer
    for a row), `input` (the longest wait for data), `communication` (the shortest time in
    communication: a rank that waits for nobody spends it too). `slowest_device` is the one that spent
    least in waiting for the others. `time_max_over_mean` is about the time of waiting for data and computing.
    `wasted_device_seconds` sums, over devices and all steps, how much longer each waited for others than the device
    that waited least. `slowest_node` is the node whose devices waited least on average; it is left out on one node.
    """

    rows_max_over_mean: float | None
    time_max_over_mean: float | None
    slowest_device: int | None
    cause: str | None
    idle_device_steps: int | None
    wasted_device_seconds: float | None
    output_device_memory_skew: float | None
    slowest_node: str | None = None


class WhatIf(msgspec.Struct, frozen=True):
    """The run as it is over the run as it would be, had slow devices worked as their peers do, with equal numbers of
    rows.

    `ratio` is that of the two times: 1.31 says that without the slowness of `device` the run would take 1/1.31 of its
    time. The parts add up to `ratio` - 1: the device got more `rows`, took longer to `compute` each, waited longer for
    its `input`; `other` is what no part explains, such as devices that are slow in turn.
    """

    ratio: float
    device: int
    rows: float
    compute: float
    input: float
    other: float


class GradientCheck(msgspec.Struct, frozen=True):
    """The gradient of one step of `rows` rows on all devices, compared with that of one device on the whole batch: its
    norm, and the norm of the difference."""

    step: int
    rows: int
    norm: float
    difference: float


class SplitWeights(msgspec.Struct, frozen=True):
    """The effect of dividing rows among unlike devices by weights.

    `weights` has one number for each device; `None` where rows are divided evenly and only ranks with unequal last
    batches are weighed. `source` says where they come from: the `spec`, `measured` before the first step, or the
    `checkpoint` that the run continues from.

    The times are of the forward and backward of the slowest device in a typical step: as `predicted_ms` before it
    began, `seen_ms`, and what would be with equal rows (`even_ms`). `speed_share` is the share of the sum of the
    devices' speeds that the steps reach: 1 where none waits for another.
    """

    weights: tuple[float, ...] | None
    source: str
    predicted_ms: float | None
    seen_ms: float | None
    even_ms: float | None
    speed_share: float | None
    gradient: GradientCheck | None


class PredictionCheck(msgspec.Struct, frozen=True):
    """`matches` is `None` when nothing could be compared (the report's notes say why)."""

    matches: bool | None
    differences: list[str]


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that should be changed. `numbers` are those of the message, by name; what the problem has cost so far
    is given in device-seconds, and as the share of the time of all devices, where it is known."""

    code: str
    severity: str
    message: str
    suggestion: str
    numbers: dict[str, float] = {}
    cost_device_seconds: float | None = None
    cost_share: float | None = None


class ReportDevice(msgspec.Struct, frozen=True):
    device: int
    id: str
    node: str
    name: str
    rank: int
    memory_total_bytes: int | None


class Resumed(msgspec.Struct, frozen=True):
    """The attempt continued from a checkpoint: that of `step` steps, which `attempt` had saved."""

    step: int
    attempt: int


class StepTimes(msgspec.Struct, frozen=True):
    """Steps of the main phase that followed one another, on average; `steps` of them were measured, from `first_step`
    on.

    `step_ms` is from one step to the next, without the longest. `rows` are those of all devices together in a step.
    `time_max_over_mean` is the time of waiting for data and computing on the device that took longest in all these
    windows together, over the mean of all devices.
    """

    first_step: int
    steps: int
    step_ms: float
    rows: float | None
    time_max_over_mean: float | None


class Report(msgspec.Struct, frozen=True):
    job_id: str
    attempt: int
    final: bool
    strategy: str
    device_kind: str
    virtual: bool
    devices: tuple[ReportDevice, ...]
    patterns: tuple[Pattern, ...]
    per_device: tuple[DeviceMeasures, ...]
    primitives: PrimitiveTimings | None
    balance: Balance
    prediction: PredictionCheck
    findings: tuple[Finding, ...]
    notes: dict[str, str]
    rehearsal: bool = False
    resumed: Resumed | None = None
    what_if: WhatIf | None = None
    verdict: str = ""  # one sentence on the whole run
    rows_per_second: float | None = None  # of all devices together
    hardware: tuple[DeviceHardware, ...] = ()  # sampled by the node
    learning_rate: float | None = None  # the largest so far
    tokens_per_second: float | None = None
    flop_per_step: int | None = None
    flop_per_second: float | None = None
    mfu: float | None = None
    per_node: tuple[NodeMeasures, ...] = ()  # where the attempt has several nodes
    step_times: tuple[StepTimes, ...] = ()  # of a final report: how the times of steps changed in the run
    weights: SplitWeights | None = None  # where rows are weighed


#: The disjoint parts of a device's wall time.
TIME_PARTS = ("data_wait_ms", "forward_ms", "backward_ms", "comm_ms", "optimizer_ms", "other_ms")


def time_parts(measures: DeviceMeasures | NodeMeasures) -> dict[str, float]:
    """What the time of a device went into, or of a node's devices on average, in milliseconds over all steps, by the
    name of the part. What every view of a report shows. Parts that are not known are left out."""
    timings = {name: getattr(measures, name) for name in TIME_PARTS}
    return {
        name: timing.total if isinstance(timing, Timing) else timing
        for name, timing in timings.items()
        if timing is not None
    }


#: How much work is done: the same fields in a report and in each of its devices.
RATES = ("rows_per_second", "tokens_per_second", "flop_per_step", "flop_per_second", "mfu")


def has_whole_times(report: Report) -> bool:
    """Whether totals are those of all steps. Those of earlier versions are of the measured steps alone, and can
    neither be added up nor compared."""
    timings = (getattr(device, name) for device in report.per_device for name in TIME_PARTS)
    return all(timing is None or timing.measured_steps is not None for timing in timings)


def describe_seconds(seconds: float) -> str:
    """Device-seconds for a sentence: "0.42 device-seconds", "12.3 device-seconds", "3.1 device-hours"."""
    if seconds >= 3600:
        return f"{seconds / 3600:,.1f} device-hours"
    return f"{seconds:,.{2 if seconds < 10 else 1 if seconds < 100 else 0}f} device-seconds"


def describe_bytes(count: float) -> str:
    """A number of bytes for a sentence: "512 B", "4.12 KiB", "97.7 MiB"."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    scale = min(max(0, (int(count).bit_length() - 1) // 10), len(units) - 1)
    return f"{count / 1024**scale:,.3g} {units[scale]}"


def describe_cost(finding: Finding) -> str:
    """What a finding has cost: "costs 12.3 device-seconds, 8% of the run"; "" where that is not known."""
    if finding.cost_device_seconds is None:
        return ""
    share = f", {finding.cost_share:.0%} of the run" if finding.cost_share is not None else ""
    return f"costs {describe_seconds(finding.cost_device_seconds)}{share}"


_SOURCES = {
    "spec": "as the spec has them",
    "measured": "measured before the first step",
    "checkpoint": "as the checkpoint has them",
}


def weight_lines(weights: SplitWeights) -> list[str]:
    """What every view of a report says of weights, in sentences."""
    lines = []
    if weights.weights is not None:
        listed = ", ".join(f"{weight:.4g}" for weight in weights.weights[:MAX_LISTED])
        more = f" and {len(weights.weights) - MAX_LISTED} more" if len(weights.weights) > MAX_LISTED else ""
        source = _SOURCES.get(weights.source, weights.source)
        lines.append(f"rows are divided by the weights {listed}{more}, {source}")
    else:
        lines.append("the gradient of each rank is weighed by its rows")
    if weights.seen_ms is not None and weights.even_ms is not None:
        predicted = "" if weights.predicted_ms is None else f"predicted {weights.predicted_ms:.3g} ms, "
        share = "" if weights.speed_share is None else f"; {weights.speed_share:.0%} of the sum of the devices' speeds"
        lines.append(
            f"a step takes {weights.seen_ms:.3g} ms on the slowest device ({predicted}with equal rows "
            f"{weights.even_ms:.3g} ms){share}"
        )
    if (gradient := weights.gradient) is not None:
        part = gradient.difference / gradient.norm if gradient.norm else gradient.difference
        lines.append(
            f"the gradient of step {gradient.step:,} ({gradient.rows:,} rows) differs from that of one device on the "
            f"whole batch by {part:.1e} of its norm"
        )
    return lines


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Report)


def encode_report(report: Report) -> bytes:
    return _encoder.encode(report)


def decode_report(body: bytes) -> Report:
    """Read a report from JSON; fields that this version does not know are ignored.

    Raises:
        ValueError: the bytes are not a report.
    """
    return _decoder.decode(body)


def join_reasons(reasons: Iterable[str]) -> str:
    """A note with several reasons, none of which contains the separator."""
    return REASON_SEPARATOR.join(dict.fromkeys(reason.replace(REASON_SEPARATOR, ", ") for reason in reasons))


def fields_by_reason(notes: Mapping[str, str]) -> dict[str, list[str]]:
    """Each reason that the notes give, once, with the paths of all fields that it is about."""
    found: dict[str, list[str]] = {}
    for field, note in sorted(notes.items()):
        for reason in note.split(REASON_SEPARATOR):
            found.setdefault(reason, []).append(field)
    return found


def describe_rows(rows: Sequence[int | None]) -> str:
    """Rows of a split for a sentence: "4, 4, 2", or "7 x 4, 2" where a list would be long."""
    if len(rows) <= 8:
        return ", ".join("?" if count is None else str(count) for count in rows)
    groups = [(count, len(list(equal))) for count, equal in groupby(rows)]
    return ", ".join(
        f"{times} x {'?' if count is None else count}" if times > 1 else describe_rows([count])
        for count, times in groups
    )
