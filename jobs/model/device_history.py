"""The history of a device, as the control Redis has it: a line for each attempt and each change of its quarantine."""

from collections.abc import Callable, Mapping, Sequence
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


class RowHistory(msgspec.Struct, frozen=True):
    """What a row took on each of some devices in an attempt that had all of them."""

    attempt: str  # its ref
    row_ms: tuple[float, ...]


def find_common_times(histories: Sequence[Sequence[HistoryLine]], is_known: Callable[[str], bool]) -> RowHistory | None:
    """Of the newest attempt that has left a time for a row on each device. Histories have their newest line first;
    `is_known` says of an attempt's ref whether it may be looked at."""
    times = [
        {line.attempt: line.ms_per_row for line in lines if line.event == "attempt" and line.ms_per_row}
        for lines in histories
    ]
    if not times:
        return None
    common = (ref for ref in times[0] if all(ref in one for one in times) and is_known(ref))
    newest = next(common, None)
    return None if newest is None else RowHistory(newest, tuple(one[newest] or 0.0 for one in times))


class SlowRecord(msgspec.Struct, frozen=True):
    """A device was slow in `slow` of its last `judged` attempts beside peers; `relative` is the median of those."""

    slow: int
    judged: int
    relative: float
