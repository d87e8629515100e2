"""The history of a device, as the control Redis has it: a line for each attempt and each change of its quarantine."""

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec


class DeviceMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an attempt's supervisor has found out about one of its devices.

    `relative` is the device's time for a row over the median of its peers: other devices of the attempt that are of
    the same kind. `slow`: its report names it as slow, for its computing. `error`: the attempt failed by a fault
    of this device.
    """

    relative: float | None = None
    ms_per_row: float | None = None
    slow: bool = False
    error: str = ""


#: What an attempt leaves about the devices of all its nodes: by part, then by the device's index on its node.
AttemptMarks: TypeAlias = Mapping[int, Mapping[int, DeviceMark]]


class HistoryLine(DeviceMark, frozen=True, kw_only=True):
    """One attempt, or (`event`) the begin or the end of a quarantine, whose reason `quarantine` is. `at` is when the
    attempt ended, in microseconds since the epoch; `peers` counts the attempt's other devices, and `gang` is a digest
    of the names of all of them."""

    at: int
    event: Literal["attempt", "quarantined", "released"] = "attempt"
    attempt: str = ""  # its ref
    reason: str = ""
    seconds: float = 0.0
    peers: int = 0
    gang: str = ""
    by: str = ""  # of an event: operator | sweep
    quarantine: str = ""


class SlowRecord(msgspec.Struct, frozen=True):
    """A device was slow in `slow` of its last `judged` attempts beside peers; `relative` is the median of those."""

    slow: int
    judged: int
    relative: float
