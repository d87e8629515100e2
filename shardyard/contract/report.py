"""The split report: what each device got of every batch, what it cost there, and what to change.

`patterns` has every phase. `per_device`, `primitives` and `balance` are about the main phase alone
(train, or forward in forward mode): an evaluation runs other code at another batch size, and mixing
the two would hide both. For a script that only evaluates they are about that.

A number that could not be measured is `None`, and `notes` says why: its keys are paths in the report
("per_device.comm_ms"), and "; " separates the reasons of one note. Units are in the names; times are milliseconds where
a name ends in `_ms`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

#: Sizes of a tensor.
Shape = tuple[int, ...]
Severity = Literal["info", "warning"]
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
    """Milliseconds over the measured steps: total exactly, quantiles of one step within 1 %."""

    total: float
    p50: float
    p95: float


class DeviceMeasures(msgspec.Struct, frozen=True):
    """One device over the main phase.

    `steps` counts all steps, `idle_steps` those in which the device got nothing. `ms_per_row` is
    forward plus backward time of one row, each over the rows of the steps in which it was measured.
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


class PrimitiveTimings(msgspec.Struct, frozen=True):
    replicate_ms: Timing
    scatter_ms: Timing
    parallel_apply_ms: Timing
    gather_ms: Timing


class Balance(msgspec.Struct, frozen=True):
    """How evenly rows and time are spread, and what costs most.

    `cause` is the largest loss, if it is at least a tenth of the time of the steps: `rows` or
    `compute` (the slowest device's excess over the mean, because it got more rows, or takes longer
    for a row), `input` (the longest wait for data), `communication` (the shortest time in
    communication: a rank that waits for nobody spends it too). `slowest_device` is the one that spent
    most in waiting for data and computing, which is whom the others wait for. `wasted_device_seconds` sums, over
    devices and steps, the time from a device's end of work to the end of the slowest one's.
    """

    rows_max_over_mean: float | None
    time_max_over_mean: float | None
    slowest_device: int | None
    cause: str | None
    idle_device_steps: int | None
    wasted_device_seconds: float | None
    output_device_memory_skew: float | None


class PredictionCheck(msgspec.Struct, frozen=True):
    """`matches` is `None` when nothing could be compared (the report's notes say why)."""

    matches: bool | None
    differences: list[str]


class Finding(msgspec.Struct, frozen=True):
    code: str
    severity: str
    message: str
    suggestion: str


class ReportDevice(msgspec.Struct, frozen=True):
    device: int
    id: str
    node: str
    name: str
    rank: int
    memory_total_bytes: int | None


class Resumed(msgspec.Struct, frozen=True):
    """The attempt went on from a checkpoint: that of `step` steps, which `attempt` had saved."""

    step: int
    attempt: int


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


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Report)


def encode_report(report: Report) -> bytes:
    """The report as JSON."""
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
    groups: list[tuple[int | None, int]] = []
    for count in rows:
        times = groups.pop()[1] + 1 if groups and groups[-1][0] == count else 1
        groups.append((count, times))
    return ", ".join(
        f"{times} x {'?' if count is None else count}" if times > 1 else describe_rows([count])
        for count, times in groups
    )
