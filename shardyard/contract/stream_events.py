"""The events of a stream: their names, and the shapes of their `data`, on which clients rely.

`GET /v1/jobs/{id}/events` has all but `JobChanged`, `JobGone` and `FleetChanged`; `GET /v1/events` has those and
`Resync`. Fields are only ever added. The data of `Progressed` and `JobChanged` is the progress,
with `attempt`, and the job.
"""

from datetime import datetime
from enum import StrEnum
from typing import Any, cast

import msgspec

from shardyard.contract.report import Finding, Pattern
from shardyard.contract.responses import TERMINAL_STATES, Answer, JobSummary, Progress, ReasonView


class EventName(StrEnum):
    STATE = "state"
    PROGRESS = "progress"
    SPLIT = "split"
    REPORT = "report"
    METRIC = "metric"
    LOG = "log"
    FINDING = "finding"
    NOTICE = "notice"
    RESYNC = "resync"
    END = "end"
    JOB = "job"
    GONE = "gone"
    FLEET = "fleet"


class Event(Answer, frozen=True, kw_only=True):
    """The base of all events. `follow(after=event_id)` continues after it."""

    event_id: str = cast(str, msgspec.UNSET)  # it is not in the data: a reader has it from the stream


class StateChanged(Event, frozen=True, kw_only=True):
    """The first event of a stream, and then one for each change. Of changes in quick succession only the last is
    sent."""

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
    """A way of dividing a batch that the attempt had not used before. `pattern` and `devices` are as in the report."""

    attempt: int = 0
    pattern: Pattern
    devices: tuple[Any, ...] = ()


class ReportChanged(Event, frozen=True, kw_only=True):
    """The split report has changed; `etag` identifies its content. At most one is sent in a second."""

    attempt: int = 0
    etag: str = ""


class MetricPoint(Answer, frozen=True, array_like=True):
    """A value that is not finite is None."""

    step: int
    value: float | None
    at: datetime | None = None


class Metrics(Event, frozen=True, kw_only=True):
    """Points of one series, in order. `first` is the number of the first of them in the series, as in
    `GET /v1/jobs/{id}/metrics`. `device` is -1 for the job as a whole."""

    attempt: int = 0
    device: int = -1
    name: str
    first: int = 1
    points: tuple[MetricPoint, ...] = ()


class EventLine(Answer, frozen=True, kw_only=True):
    """As in `GET /v1/jobs/{id}/logs`. `seq` counts the lines of one device of one attempt from 1."""

    seq: int
    at: datetime | None = None
    stream: str = "stdout"
    rank: int = 0
    step: int | None = None
    text: str
    continued: bool = False


class LostLines(Answer, frozen=True, rename={"first": "from", "last": "to"}):
    """Numbers of lines that could not be written: the disk was full."""

    first: int
    last: int
    bytes: int = 0


class LogLines(Event, frozen=True, kw_only=True):
    """Lines of one device, in order, without a gap after the last such event except for lines that `dropped` names."""

    attempt: int = 0
    device: int
    lines: tuple[EventLine, ...] = ()
    dropped: tuple[LostLines, ...] = ()


class FindingMade(Event, frozen=True, kw_only=True):
    """The report has a new finding."""

    attempt: int = 0
    finding: Finding


class Notice(Event, frozen=True, kw_only=True):
    """A notice about the stream itself: `live_data_away` and `live_data_back`. While the telemetry Redis is away,
    progress and reports do not change, and lines come from files."""

    code: str
    message: str = ""


class Resync(Event, frozen=True, kw_only=True):
    """Events are missing here: `too_slow`, or `unknown_id` for a Last-Event-ID that is not known. Fetch the state
    again. `logs_after` is for `client.log_pages(job, after=...)`, which has the missing lines."""

    reason: str = ""
    message: str = ""
    logs_after: str | None = None


class Ended(Event, frozen=True, kw_only=True):
    """The last event of a stream. `state` is `deleted` if the job was deleted."""

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
    """Nodes, or the leases of their devices, have changed. Sent first, and then for each change."""

    etag: str = ""


_SEPARATORS = str.maketrans({"\u2028": "\\u2028", "\u2029": "\\u2029", "\x85": "\\u0085"})


def data(value: Any) -> str:
    """The `data` of an event, JSON on one line, also for readers that take more than CR and LF for a line's end."""
    text = msgspec.json.encode(value).decode()
    return text if text.isascii() else text.translate(_SEPARATORS)
