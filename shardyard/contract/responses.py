"""The shapes of answers. Times are UTC, ISO 8601 with microseconds; `None` where a thing has not happened."""

from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec

from shardyard.contract.report import Finding, Pattern

Json = dict[str, Any]


def utc(microseconds: int | None) -> str | None:
    """A time of the store, in microseconds since the epoch, as text."""
    return None if microseconds is None else at(microseconds)


def at(microseconds: int) -> str:
    seconds, fraction = divmod(microseconds, 1_000_000)
    return f"{_second(seconds)}.{fraction:06d}Z"


@lru_cache(1024)  # those of one job are in the same few
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()[:19]


class ReasonView(msgspec.Struct):
    code: str
    message: str


class PlacementView(msgspec.Struct):
    node: str
    devices: list[str]  # names for people, in the lease's order: cuda:3


class JobSummary(msgspec.Struct, kw_only=True):
    """One line of a list."""

    id: str
    name: str
    state: str
    reason: ReasonView
    pool: str
    devices: int
    strategy: str
    priority: int
    labels: dict[str, str]
    attempt: int
    cancel_requested: bool
    created_at: str
    started_at: str | None
    first_step_at: str | None
    finished_at: str | None
    placement: list[PlacementView]
    archived: bool  # finished long ago: it is kept on disk, and other lists than that of archived jobs leave it out
    links: dict[str, str]


class ListedJob(JobSummary, kw_only=True):
    """A job of a list. Both are `None` where they are not known; of those that wait, the first 25 have a place."""

    progress: Json | None
    queue_position: int | None


class CheckpointView(msgspec.Struct):
    """The newest state of the run that a new attempt would go on from."""

    step: int  # steps that are done in it
    epoch: int
    attempt: int  # that saved it
    saved_at: str


class JobStatus(JobSummary, kw_only=True):
    """Everything about one job. `losses` are attempts lost to failures of the service, which are not retries."""

    version: int
    queue_position: int | None
    retries: int
    max_retries: int
    losses: int
    retry_at: str | None  # while it backs off: when it may start again
    checkpoint: CheckpointView | None
    parent_id: str | None
    batch_size: int | None
    global_batch_size: int | None
    start: str  # warm | cold
    rehearsal: bool
    progress: Json | None
    result: Json | None
    error: Json | None
    spec: msgspec.Raw  # the job spec as JSON, defaults filled in


class JobList(msgspec.Struct):
    jobs: list[ListedJob]
    next: str | None


class CancelledJobs(msgspec.Struct, kw_only=True):
    """What a cancel of many did. `complete` is false when time ran out first: ask again for the rest."""

    cancelled: int
    cancelling: int  # told to end; they are cancelled when their ranks are gone
    complete: bool


class ArtifactView(msgspec.Struct):
    """One file; `path` is what to ask for."""

    path: str
    bytes: int
    modified_at: str


class ArtifactList(msgspec.Struct):
    """`truncated`: there are more files than one list shows."""

    attempt: int
    artifacts: list[ArtifactView]
    truncated: bool


class BundleView(msgspec.Struct, kw_only=True):
    """An uploaded zip of code: how many files it holds, its own bytes, and what the files have together."""

    id: str
    files: int
    bytes: int
    unpacked_bytes: int


class BundleFileView(msgspec.Struct):
    path: str
    bytes: int


class BundleContents(msgspec.Struct, kw_only=True):
    """A bundle with its files; `jobs` need it, also those that have ended."""

    id: str
    bytes: int
    unpacked_bytes: int
    created_at: str
    jobs: int
    files: list[BundleFileView]


class ResumedView(msgspec.Struct):
    """A checkpoint: how many steps were done in it, and which attempt saved it."""

    step: int
    attempt: int


class AttemptView(msgspec.Struct, kw_only=True):
    attempt: int
    state: str
    placement: list[PlacementView]
    created_at: str
    claimed_at: str | None
    started_at: str | None
    first_step_at: str | None
    ended_at: str | None
    reason: ReasonView | None
    error: Json | None
    resumed_from: ResumedView | None  # what it began with; null: at the first step


class AttemptList(msgspec.Struct):
    attempts: list[AttemptView]


class LogLine(msgspec.Struct):
    """`text` is what a person may see; `continued` says that the next line of its source belongs to it."""

    seq: int
    at: str
    device: int
    rank: int
    stream: str
    step: int | None
    text: str
    continued: bool


class DroppedLines(msgspec.Struct, rename={"first": "from", "last": "to"}):
    device: int
    first: int
    last: int
    bytes: int


class LogPage(msgspec.Struct, kw_only=True):
    """Lines in order of time. `next` goes on from here; `ended` says that nothing more will come of this attempt."""

    attempt: int
    lines: list[LogLine]
    dropped: list[DroppedLines]
    next: str | None
    ended: bool


class PointView(msgspec.Struct):
    number: int
    step: int
    value: float | None  # None: not a finite number
    at: str


class BucketView(msgspec.Struct, kw_only=True):
    count: int
    first: PointView
    last: PointView
    minimum: float | None
    maximum: float | None
    mean: float | None


class SeriesView(msgspec.Struct, kw_only=True):
    """`device` is -1 for the job as a whole. `next` is for `after=`, with the same device and name."""

    device: int
    name: str
    points: list[PointView]
    buckets: list[BucketView]
    next: int
    last: int


class MetricList(msgspec.Struct):
    attempt: int
    series: list[SeriesView]


class Plan(msgspec.Struct, kw_only=True):
    """The splits of one epoch before anything runs, in the report's form. `rows` of the training data; None where only
    the worker can know, and then `notes` says so."""

    rows: int | None
    batch_size: int | None
    global_batch_size: int | None
    patterns: tuple[Pattern, ...]
    findings: list[Finding]
    notes: dict[str, str]


class DeviceView(msgspec.Struct, kw_only=True):
    device: int
    label: str
    id: str
    name: str
    kind: str
    memory_total_bytes: int | None
    state: str  # free | leased | quarantined | offline
    job: str | None  # the job that holds it: an id of the caller's tenant, or "another tenant"
    attempt: int | None
    quarantine: str | None  # why it is given to nobody; one that is still leased goes there when it is free
    quarantined_at: str | None


class NodeView(msgspec.Struct, kw_only=True):
    id: str
    pool: str
    host: str
    address: str
    version: str
    cores: int
    alive: bool
    draining: bool
    stopping: bool  # its worker is leaving
    drain_deadline_at: str | None  # when what runs there is to move to other nodes; about, the node's own clock decides
    attempts: int  # that hold devices there
    registered_at: str
    devices: list[DeviceView]
    environments: list[str]  # Pythons that a script may name in program.python
    queued: int  # jobs that wait in the node's pool


class NodeList(msgspec.Struct):
    nodes: list[NodeView]


class PoolView(msgspec.Struct, kw_only=True):
    name: str
    devices: int
    free: int
    leased: int
    quarantined: int
    largest_node: int  # most devices that one job can ask for
    nodes: int
    live_nodes: int
    queued: int


class PoolList(msgspec.Struct):
    pools: list[PoolView]


class TokenView(msgspec.Struct, kw_only=True):
    id: str
    name: str
    tenant: str
    scopes: list[str]
    created_at: str
    expires_at: str | None


class NewToken(TokenView, kw_only=True):
    """`token` is shown this once."""

    token: str


class Caller(msgspec.Struct, kw_only=True):
    """Whose token or session a request came with."""

    token: str  # its id
    tenant: str
    scopes: list[str]
    operator: bool  # of the tenant that nodes belong to


class TokenList(msgspec.Struct):
    tokens: list[TokenView]


class Readiness(msgspec.Struct):
    ready: bool
    checks: dict[str, str]  # part -> "ok", or what is wrong with it
