"""Server-sent events: from the bytes of a stream to typed values.

A kind of event that this version does not know is passed over.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from shardyard.contract.errors import ShardyardError
from shardyard.contract.report import Finding, Pattern
from shardyard.contract.responses import TERMINAL_STATES, Answer, JobSummary, Progress, ReasonView
from shardyard.contract.stream_events import EventLine, LostLines

#: No event of the service is larger; what is would fill the memory.
MAX_EVENT_BYTES = 32 * 1024 * 1024


class Event(Answer, frozen=True, kw_only=True):
    """The base of all events. `follow(after=event_id)` continues after it."""

    event_id: str = ""


class StateChanged(Event, frozen=True, kw_only=True):
    """The job's state or its reason has changed; the first event of a stream has the current ones."""

    job_id: str = ""
    state: str
    reason: ReasonView = ReasonView()
    attempt: int = 0
    version: int = 0

    @property
    def ended(self) -> bool:
        return self.state in TERMINAL_STATES


class Progressed(Event, frozen=True, kw_only=True):
    """The job's progress has changed."""

    attempt: int = 0
    progress: Progress


class SplitSeen(Event, frozen=True, kw_only=True):
    """A batch was divided in a way that had not been seen before."""

    attempt: int = 0
    pattern: Pattern
    devices: tuple[Any, ...] = ()


class ReportChanged(Event, frozen=True, kw_only=True):
    """The split report has changed: `job.report()` has the new one."""

    attempt: int = 0
    etag: str = ""


class MetricPoint(Answer, frozen=True, array_like=True, kw_only=False):
    step: int
    value: float | None
    at: datetime | None = None


class Metrics(Event, frozen=True, kw_only=True):
    """New points of one series, from its point number `first` on; `device` is -1 for the job as a whole."""

    attempt: int = 0
    device: int = -1
    name: str
    first: int = 1
    points: tuple[MetricPoint, ...] = ()


class LogLines(Event, frozen=True, kw_only=True):
    """New lines of one device, without a gap except for those that `dropped` names."""

    attempt: int = 0
    device: int
    lines: tuple[EventLine, ...] = ()
    dropped: tuple[LostLines, ...] = ()


class FindingMade(Event, frozen=True, kw_only=True):
    """The report has a new finding."""

    attempt: int = 0
    finding: Finding


class Notice(Event, frozen=True, kw_only=True):
    """A notice about the stream itself, for example that live data is away for a while."""

    code: str
    message: str = ""


class Resync(Event, frozen=True, kw_only=True):
    """Events were skipped, because the reader was too slow or away for too long: fetch everything again.

    `logs_after` goes to `client.log_pages(job, after=...)`, which has the lines that are missing.
    """

    reason: str = ""
    message: str = ""
    logs_after: str | None = None


class Ended(Event, frozen=True, kw_only=True):
    """The last event of a job. `state` is "deleted" if the job was deleted."""

    job_id: str = ""
    state: str
    attempt: int = 0


class JobChanged(Event, frozen=True, kw_only=True):
    """A job of yours has changed; this is its current state."""

    job: JobSummary


class JobGone(Event, frozen=True, kw_only=True):
    """A job has left the lists: it was deleted, or archived."""

    job_id: str


class FleetChanged(Event, frozen=True, kw_only=True):
    """Nodes, or the leases of their devices, have changed: `client.nodes()` has the current ones."""

    etag: str = ""


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
            raise ShardyardError(f"an event has more than {MAX_EVENT_BYTES} bytes; this is no stream of Shardyard")
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
