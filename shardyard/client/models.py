"""What the service answers, as types. Times are `datetime`s in UTC; `None` where a thing has not happened.

A newer service may say more than these know: fields that are not here are ignored. An older one may
say less: what it leaves out has its default.
"""

from datetime import datetime
from typing import Any

import msgspec

#: States that a job does not leave again.
TERMINAL = frozenset({"succeeded", "failed", "cancelled"})


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A value that the service sent."""


class Reason(Model, frozen=True, kw_only=True):
    """Why a job is in its state: a code that is stable, and a sentence."""

    code: str = ""
    message: str = ""


class Placement(Model, frozen=True, kw_only=True):
    node: str
    devices: list[str] = []  # names for people, in the lease's order: cuda:3


class Progress(Model, frozen=True, kw_only=True):
    """How far a job is; what is not known is None. `unit` is what `step` counts."""

    epoch: int | None = None
    epochs: int | None = None
    step: int | None = None
    steps: int | None = None
    fraction: float | None = None
    rows_per_second: float | None = None
    eta_seconds: float | None = None
    loss: float | None = None
    unit: str | None = None
    source: str | None = None
    steps_seen: int | None = None


class Checkpoint(Model, frozen=True, kw_only=True):
    """The newest state of a run that a new attempt would go on from."""

    step: int
    epoch: int = 0
    attempt: int = 0
    saved_at: datetime | None = None


class JobSummary(Model, frozen=True, kw_only=True):
    """One line of a list."""

    id: str
    name: str = ""
    state: str
    reason: Reason = Reason()
    pool: str = ""
    devices: int = 0
    strategy: str = ""
    priority: int = 0
    labels: dict[str, str] = {}
    attempt: int = 0
    cancel_requested: bool = False
    created_at: datetime
    started_at: datetime | None = None
    first_step_at: datetime | None = None
    finished_at: datetime | None = None
    placement: list[Placement] = []
    archived: bool = False
    links: dict[str, str] = {}

    @property
    def ended(self) -> bool:
        return self.state in TERMINAL


class JobStatus(JobSummary, frozen=True, kw_only=True):
    """Everything about one job. `losses` are attempts lost to failures of the service, which are not retries."""

    version: int = 0
    queue_position: int | None = None
    retries: int = 0
    max_retries: int = 0
    losses: int = 0
    retry_at: datetime | None = None
    checkpoint: Checkpoint | None = None
    parent_id: str | None = None
    batch_size: int | None = None
    global_batch_size: int | None = None
    start: str = ""
    rehearsal: bool = False
    progress: Progress | None = None
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    spec: dict[str, Any] = {}


class JobPage(Model, frozen=True, kw_only=True):
    jobs: list[JobSummary]
    next: str | None = None


class Cancelled(Model, frozen=True, kw_only=True):
    """What a cancel of many did: `cancelled` at once, and `cancelling`: told to end."""

    cancelled: int
    cancelling: int
    complete: bool = True


class Resumed(Model, frozen=True, kw_only=True):
    """A checkpoint: how many steps were done in it, and which attempt saved it."""

    step: int
    attempt: int


class Attempt(Model, frozen=True, kw_only=True):
    attempt: int
    state: str
    placement: list[Placement] = []
    created_at: datetime
    claimed_at: datetime | None = None
    started_at: datetime | None = None
    first_step_at: datetime | None = None
    ended_at: datetime | None = None
    reason: Reason | None = None
    error: dict[str, Any] | None = None
    resumed_from: Resumed | None = None  # the checkpoint that it began with


class AttemptList(Model, frozen=True, kw_only=True):
    attempts: list[Attempt]


class LogLine(Model, frozen=True, kw_only=True):
    """`seq` counts the lines of a device; `continued` says that the next line of its source belongs to this one."""

    seq: int = 0
    at: datetime | None = None
    device: int
    rank: int = 0
    stream: str = "stdout"
    step: int | None = None
    text: str
    continued: bool = False


class Dropped(Model, frozen=True, kw_only=True, rename={"first": "from", "last": "to"}):
    """Lines of a device that could not be kept."""

    device: int
    first: int
    last: int
    bytes: int = 0


class LogPage(Model, frozen=True, kw_only=True):
    """Lines in order of time. `next` goes on from here; `ended` says that nothing more will come of this attempt."""

    attempt: int
    lines: list[LogLine]
    dropped: list[Dropped] = []
    next: str | None = None
    ended: bool = False


class Point(Model, frozen=True, kw_only=True):
    """`value` is None where it was not a finite number."""

    number: int = 0
    step: int
    value: float | None
    at: datetime | None = None


class Bucket(Model, frozen=True, kw_only=True):
    """Points that were put together."""

    count: int
    first: Point
    last: Point
    minimum: float | None = None
    maximum: float | None = None
    mean: float | None = None


class Series(Model, frozen=True, kw_only=True):
    """Points of one name; `device` is -1 for the job as a whole."""

    device: int
    name: str
    points: list[Point] = []
    buckets: list[Bucket] = []
    next: int = 0
    last: int = 0


class MetricList(Model, frozen=True, kw_only=True):
    attempt: int = 0
    series: list[Series]


class Artifact(Model, frozen=True, kw_only=True):
    """A file that an attempt left; `path` is what to ask for."""

    path: str
    bytes: int = 0
    modified_at: datetime | None = None


class ArtifactList(Model, frozen=True, kw_only=True):
    """`truncated`: there are more files than one list shows."""

    attempt: int = 0
    artifacts: list[Artifact]
    truncated: bool = False


class Bundle(Model, frozen=True, kw_only=True):
    """An uploaded zip of code."""

    id: str
    files: int = 0
    bytes: int = 0
    unpacked_bytes: int = 0


class BundleFile(Model, frozen=True, kw_only=True):
    path: str
    bytes: int = 0


class BundleContents(Model, frozen=True, kw_only=True):
    """A bundle with its files; `jobs` need it, also those that have ended."""

    id: str
    bytes: int = 0
    unpacked_bytes: int = 0
    created_at: datetime | None = None
    jobs: int = 0
    files: list[BundleFile]


class Device(Model, frozen=True, kw_only=True):
    """A device of a node. `state` is free, leased, quarantined or offline; `job` is who holds it."""

    device: int
    label: str = ""
    id: str = ""
    name: str = ""
    kind: str = ""
    memory_total_bytes: int | None = None
    state: str
    job: str | None = None
    attempt: int | None = None
    quarantine: str | None = None  # why it is given to nobody
    quarantined_at: datetime | None = None


class Node(Model, frozen=True, kw_only=True):
    id: str
    pool: str = ""
    host: str = ""
    address: str = ""
    version: str = ""
    cores: int = 0
    alive: bool
    draining: bool = False
    stopping: bool = False  # its worker is leaving
    drain_deadline_at: datetime | None = None  # when what runs there is to move to other nodes
    attempts: int = 0  # that hold devices there
    registered_at: datetime | None = None
    devices: list[Device] = []
    environments: list[str] = []
    queued: int = 0


class NodeList(Model, frozen=True, kw_only=True):
    nodes: list[Node]


class Pool(Model, frozen=True, kw_only=True):
    name: str
    devices: int = 0
    free: int = 0
    leased: int = 0
    quarantined: int = 0
    largest_node: int = 0
    nodes: int = 0
    live_nodes: int = 0
    queued: int = 0


class PoolList(Model, frozen=True, kw_only=True):
    pools: list[Pool]


class Token(Model, frozen=True, kw_only=True):
    """A token without its secret."""

    id: str
    name: str = ""
    tenant: str = ""
    scopes: list[str] = []
    created_at: datetime | None = None
    expires_at: datetime | None = None


class NewToken(Token, frozen=True, kw_only=True):
    """`token` is the secret, shown this once; not by `repr`, which ends in logs and notebooks."""

    token: str

    def __repr__(self) -> str:
        return f"NewToken(id={self.id!r}, name={self.name!r}, tenant={self.tenant!r}, scopes={self.scopes!r})"


class TokenList(Model, frozen=True, kw_only=True):
    tokens: list[Token]


class Readiness(Model, frozen=True, kw_only=True):
    ready: bool = False
    checks: dict[str, str] = {}
