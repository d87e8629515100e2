"""The split report: what each device got of every batch, what it cost there, and what to change.

`patterns` has every phase. `per_device`, `primitives` and `balance` are about the main phase alone
(train, or forward in forward mode): an evaluation runs other code at another batch size, and mixing
the two would hide both. For a script that only evaluates they are about that.

A number that could not be measured is `None`, and `notes` says why: its keys are paths in the report
("per_device.comm_ms"). Units are in the names; times are milliseconds where a name ends in `_ms`.
"""

import msgspec

from jobs.splits.lint import Finding
from jobs.splits.plan import Pattern
from jobs.splits.plan_check import PredictionCheck
from jobs.splits.timings import Balance, DeviceMeasures, PrimitiveTimings


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


def encode(report: Report) -> bytes:
    """The report as JSON."""
    return _encoder.encode(report)


def decode(body: bytes) -> Report:
    """Read a report from JSON; fields that this version does not know are ignored.

    Raises:
        ValueError: the bytes are not a report.
    """
    return _decoder.decode(body)
