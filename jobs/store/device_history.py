"""The history of devices: what each attempt has recorded about them."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from jobs.model.device_history import HistoryLine
from jobs.store.call import Call, call_function

#: Lines that are kept of each device.
MAX_HISTORY_LINES = 100
#: Lines of each device that a view of all of them has.
MAX_RECENT_LINES = 48


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """Lines of one device, the newest first. `next` is the position of the last one, where there are more; `total` is
    how many there are on all pages."""

    lines: tuple[HistoryLine, ...]
    next: int | None
    total: int


def read_history(device: str, *, before: int | None = None, limit: int = MAX_HISTORY_LINES) -> Call[HistoryPage]:
    """The history of a device, by its name in the whole fleet (`jobs.model.records:DeviceRecord.name_in_fleet`): all of
    it, or what comes before a position."""

    def decode(reply: tuple[int, Sequence[bytes]]) -> HistoryPage:
        total, found = reply
        lines, positions = found[::2], found[1::2]
        shown = tuple(_decoder.decode(line) for line in lines[:limit])
        return HistoryPage(shown, int(float(positions[limit - 1])) if len(lines) > limit else None, total)

    return call_function(
        "read_history", decode, device=device, before="" if before is None else before, limit=limit + 1
    )


def read_recent_history(devices: Sequence[str], since: int) -> Call[tuple[tuple[HistoryLine, ...], ...]]:
    """The newest lines of each device since a time in microseconds, the newest first. Devices are given as for
    `read_history`."""

    def decode(reply: Sequence[Sequence[bytes]]) -> tuple[tuple[HistoryLine, ...], ...]:
        return tuple(tuple(_decoder.decode(line) for line in lines) for lines in reply)

    return call_function("read_recent_history", decode, *devices, since=since, limit=MAX_RECENT_LINES)


_decoder = msgspec.json.Decoder(HistoryLine, strict=False)
