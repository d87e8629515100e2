"""The events of a stream: their names, and the shapes of their `data`. What reads streams relies on both.

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
    """The first event of a stream, and then one for each change. Of changes in quick succession the last is told."""

    job_id: str
    state: str
    reason: ReasonView
    attempt: int
    version: int


class ReportChanged(msgspec.Struct):
    """The split report is another than before; `etag` stands for its content. At most one in a second."""

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
    """Points of one series, in order: [step, value, at]; a value that is no finite number is None. `first` is the
    number of the first of them in the series (`GET /v1/jobs/{id}/metrics` counts alike), `device` -1 for the job as a
    whole."""

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
    """Lines of one device, in order and without a gap to the event before, but for those that `dropped` names."""

    attempt: int
    device: int
    lines: list[EventLine]
    dropped: list[LostLines]


class Notice(msgspec.Struct):
    """Something about the stream itself: `live_data_away` and `live_data_back` for the telemetry Redis, without which
    progress and reports stand still, and lines come from files."""

    code: str
    message: str


class Resync(msgspec.Struct):
    """Events are missing here: `too_slow`, or `unknown_id` for a Last-Event-ID that leads nowhere. Fetch the state
    anew. `logs_after` is for `GET /v1/jobs/{id}/logs?after=`, which has the lines that are missing."""

    reason: str
    message: str
    logs_after: str | None = None


class End(msgspec.Struct):
    """The last event: nothing more will come. `state` is `deleted` for a job that is gone."""

    job_id: str
    state: str
    attempt: int


class Gone(msgspec.Struct):
    """A job has left the lists: it was deleted, or archived."""

    job_id: str


class Fleet(msgspec.Struct):
    """Nodes, or who holds their devices, are other than before. The first event, and then one for each change."""

    etag: str


_SEPARATORS = str.maketrans({"\u2028": "\\u2028", "\u2029": "\\u2029", "\x85": "\\u0085"})


def data(value: Any) -> str:
    """The `data` of an event, JSON on one line, also for readers that take more than CR and LF for a line's end."""
    text = msgspec.json.encode(value).decode()
    return text if text.isascii() else text.translate(_SEPARATORS)
