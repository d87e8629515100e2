"""Server-sent events: from the bytes of a stream to typed values.

A kind of event that this version does not know is passed over.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from shardyard.contract.errors import ShardyardError
from shardyard.contract.stream_events import (
    Ended,
    Event,
    EventLine,
    FindingMade,
    FleetChanged,
    JobChanged,
    JobGone,
    LogLines,
    LostLines,
    MetricPoint,
    Metrics,
    Notice,
    Progressed,
    ReportChanged,
    Resync,
    SplitSeen,
    StateChanged,
)

__all__ = [
    "Ended",
    "Event",
    "EventLine",
    "FindingMade",
    "FleetChanged",
    "JobChanged",
    "JobGone",
    "LogLines",
    "LostLines",
    "MetricPoint",
    "Metrics",
    "Notice",
    "Progressed",
    "ReportChanged",
    "Resync",
    "SplitSeen",
    "StateChanged",
    "EventParser",
    "decode_event",
]

#: No event of the service is larger; what is would fill the memory.
MAX_EVENT_BYTES = 32 * 1024 * 1024

KINDS: dict[str, type[Event]] = {
    "state": StateChanged,
    "progress": Progressed,
    "split": SplitSeen,
    "report": ReportChanged,
    "metric": Metrics,
    "log": LogLines,
    "finding": FindingMade,
    "notice": Notice,
    "resync": Resync,
    "end": Ended,
    "job": JobChanged,
    "gone": JobGone,
    "fleet": FleetChanged,
}
#: Kinds whose data is a value that others know too: the field that it becomes.
_INNER: dict[type[Event], str] = {Progressed: "progress", JobChanged: "job"}


@dataclass(slots=True)
class RawEvent:
    """One event as received: its name, its data, and the id to continue after."""

    event: str
    data: str
    id: str | None


class EventParser:
    """Parses the bytes of a stream into events (the format of the HTML standard)."""

    def __init__(self) -> None:
        self._rest = b""
        self._event = ""
        self._data: list[str] = []
        self._size = 0
        self._id: str | None = None

    def feed(self, part: bytes) -> list[RawEvent]:
        """
        Raises:
            ShardyardError: an event is larger than any of this service.
        """
        self._rest += part
        *lines, self._rest = self._rest.replace(b"\r\n", b"\n").split(b"\n")
        made = []
        for line in lines:
            self._size += len(line)
            if line:
                self._read_field(line.decode(errors="replace"))
            elif (message := self._take_event()) is not None:
                made.append(message)
        if self._size + len(self._rest) > MAX_EVENT_BYTES:
            raise ShardyardError(f"an event has more than {MAX_EVENT_BYTES} bytes; this is not a stream of Shardyard")
        return made

    def _read_field(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._event = value
        elif name == "data":
            self._data.append(value)
        elif name == "id" and "\0" not in value:
            self._id = value

    def _take_event(self) -> RawEvent | None:
        message = RawEvent(self._event or "message", "\n".join(self._data), self._id) if self._data else None
        self._event, self._data, self._size = "", [], 0
        return message


def decode_event(message: RawEvent) -> Event | None:
    """The event as a value; None for a kind that this version does not know.

    Raises:
        ShardyardError: it is not what the service sends under this name.
    """
    kind = KINDS.get(message.event)
    if kind is None:
        return None
    try:
        data = msgspec.json.decode(message.data, type=dict[str, Any])
        if kind in _INNER:
            data = {"attempt": data.get("attempt", 0), _INNER[kind]: data}
        return msgspec.convert(data | {"event_id": message.id or ""}, kind)
    except msgspec.DecodeError as error:
        raise ShardyardError(f"the service sent an event {message.event!r} that cannot be read: {error}") from error
