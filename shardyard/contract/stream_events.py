"""The events of a stream: their names, and the shapes of their `data`, on which clients rely.

`GET /v1/jobs/{id}/events` has all but `Fleet` and `Gone`; `GET /v1/events` has `job` (a job as in lists), `Gone`,
`Fleet` and `Resync`. Fields are only ever added.
"""

from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from shardyard.contract.responses import Answer, ReasonView


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


class State(msgspec.Struct):
    """The first event of a stream, and then one for each change. Of changes in quick succession only the last is
    sent."""

    job_id: str
    state: str
    reason: ReasonView
    attempt: int
    version: int


class ReportChanged(msgspec.Struct):
    """The split report has changed; `etag` identifies its content. At most one is sent in a second."""

    attempt: int
    etag: str


class Split(msgspec.Struct):
    """A way of dividing a batch that the attempt had not used before. `pattern` and `devices` are as in the report."""

    attempt: int
    pattern: msgspec.Raw
    devices: msgspec.Raw


class Finding(msgspec.Struct):
    attempt: int
    finding: msgspec.Raw


class Metric(msgspec.Struct):
    """Points of one series, in order: [step, value, at]; a value that is not finite is None. `first` is the number of
    the first of them in the series, as in `GET /v1/jobs/{id}/metrics`. `device` is -1 for the job as a whole."""

    attempt: int
    device: int
    name: str
    first: int
    points: list[tuple[int, float | None, datetime]]


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


class Log(msgspec.Struct):
    """Lines of one device, in order, without a gap after the last such event except for lines that `dropped` names."""

    attempt: int
    device: int
    lines: list[EventLine]
    dropped: list[LostLines]


class Notice(msgspec.Struct):
    """A notice about the stream itself: `live_data_away` and `live_data_back`. While the telemetry Redis is away,
    progress and reports do not change, and lines come from files."""

    code: str
    message: str


class Resync(msgspec.Struct):
    """Events are missing here: `too_slow`, or `unknown_id` for a Last-Event-ID that is not known. Fetch the state
    again. `logs_after` is for `GET /v1/jobs/{id}/logs?after=`, which has the missing lines."""

    reason: str
    message: str
    logs_after: str | None = None


class End(msgspec.Struct):
    """The last event of a stream. `state` is `deleted` if the job was deleted."""

    job_id: str
    state: str
    attempt: int


class Gone(msgspec.Struct):
    """A job has left the lists: it was deleted, or archived."""

    job_id: str


class Fleet(msgspec.Struct):
    """Nodes, or the leases of their devices, have changed. Sent first, and then for each change."""

    etag: str


_SEPARATORS = str.maketrans({"\u2028": "\\u2028", "\u2029": "\\u2029", "\x85": "\\u0085"})


def data(value: Any) -> str:
    """The `data` of an event: JSON on one line, also for readers that accept other line ends than CR and LF."""
    text = msgspec.json.encode(value).decode()
    return text if text.isascii() else text.translate(_SEPARATORS)
