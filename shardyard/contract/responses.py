"""The shapes of answers: the API fills them, the client reads them.

Times are UTC, and `None` until the event has happened. The service sends every field. A client ignores fields that it
does not know, and a field that an older service leaves out has its default; so a new field needs a default.
"""

from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, cast

import msgspec

from shardyard.contract.report import Finding, Pattern, Resumed

Json = dict[str, Any]

#: States that a job does not leave again.
TERMINAL_STATES = frozenset({"succeeded", "failed", "cancelled"})


# -- what the API fills in as text, and a client reads as values ---------------------------------------


def utc(microseconds: int | None) -> datetime | None:
    """As `at`, but None for None."""
    return None if microseconds is None else at(microseconds)


def at(microseconds: int) -> datetime:
    """A time of the store, in microseconds since the epoch, as the text that its JSON is: always with six decimals."""
    seconds, fraction = divmod(microseconds, 1_000_000)
    return cast(datetime, f"{_format_second(seconds)}.{fraction:06d}Z")


@lru_cache(1024)  # those of one job are in the same few
def _format_second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()[:19]


def json_object(encoded: bytes) -> Json:
    """An object that is JSON already, to be sent as it is."""
    return cast(Json, msgspec.Raw(encoded))


# -- jobs ----------------------------------------------------------------------------------------------


class Answer(msgspec.Struct, frozen=True):
    """A value that the service sends."""


class ReasonView(Answer, frozen=True):
    """Why a job is in its state: a code that is stable, and a sentence."""

    code: str = ""
    message: str = ""


class PlacementView(Answer, frozen=True):
    """Devices of a node that a job or an attempt has. `ranks` are those that drive them: one for each device under ddp
    and fsdp, numbered through from node to node, one for all under single and dp. Lists of attempts leave them out."""

    node: str
    devices: list[str] = []  # names for people, in the lease's order: cuda:3
    ranks: list[int] = []


class Progress(Answer, frozen=True, kw_only=True):
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


class CheckpointView(Answer, frozen=True):
    """The newest checkpoint of a run, from which a new attempt would resume."""

    step: int  # steps that were done when it was saved
    epoch: int = 0
    attempt: int = 0  # the attempt that saved it
    saved_at: datetime | None = None


class JobSummary(Answer, frozen=True, kw_only=True):
    """The fields of a job that lists and its status have in common."""

    id: str
    name: str = ""
    state: str
    reason: ReasonView = ReasonView()
    pool: str = ""
    devices: int = 0  # of each node
    nodes: int = 1
    strategy: str = ""
    priority: int = 0
    labels: dict[str, str] = {}
    attempt: int = 0
    cancel_requested: bool = False
    created_at: datetime
    started_at: datetime | None = None
    first_step_at: datetime | None = None
    finished_at: datetime | None = None
    placement: list[PlacementView] = []
    group: str | None = None  # the comparison or the sweep that it is a job of
    archived: bool = False  # finished long ago: kept on disk, and only in the list of archived jobs
    links: dict[str, str] = {}

    @property
    def ended(self) -> bool:
        return self.state in TERMINAL_STATES


class ListedJob(JobSummary, frozen=True, kw_only=True):
    """A job of a list. Its two fields are `None` where they are not known; the first 25 waiting jobs of a page have a
    `queue_position`."""

    progress: Progress | None = None
    queue_position: int | None = None


class JobStatus(JobSummary, frozen=True, kw_only=True):
    """The status of one job. `losses` counts attempts lost to failures of the service, which are not retries."""

    version: int = 0
    tenant: str = ""
    owner: str | None = None  # the name of the token that has submitted it
    queue_position: int | None = None
    retries: int = 0
    max_retries: int = 0
    losses: int = 0
    start_after: datetime | None = None  # it does not start before
    preemptions: int = 0  # how often a job of a higher priority took its devices
    suspended: bool = False  # a user has suspended it: it is in no queue, or leaves its devices
    retry_at: datetime | None = None  # while it is backing off: when it may start again
    checkpoint: CheckpointView | None = None
    parent_id: str | None = None
    batch_size: int | None = None
    global_batch_size: int | None = None
    start: str = ""  # warm | cold
    rehearsal: bool = False
    network: str | None = None  # of the newest attempt. none: its own loopback only | host: the node's
    progress: Progress | None = None
    result: Json | None = None
    error: Json | None = None
    spec: Json = {}  # the job spec, defaults filled in


class JobReference(Answer, frozen=True, kw_only=True):
    """As much of a job as is needed to choose it among several."""

    id: str
    name: str = ""
    state: str = ""
    created_at: datetime | None = None


class ResolvedJob(JobStatus, frozen=True, kw_only=True):
    """The job that a reference stands for, and how it was found. `others` have the same name: those before it, the
    newest first, and ten at most."""

    matched: str = "id"  # id | prefix | suffix | name | last
    others: list[JobReference] = []


class JobList(Answer, frozen=True):
    """A page of jobs. `total` is how many there are that match; where it is not exact, there are more than that, and on
    later pages of some lists it is None. `links` has `self` and, unless this is the last page, `next`."""

    jobs: list[ListedJob]
    next: str | None = None
    total: int | None = None
    total_is_exact: bool = True
    links: dict[str, str] = {}


class JobTable(Answer, frozen=True):
    """Jobs as rows of a table, newest first. `values` has a list for each job, with a value for each of `columns`:
    text, a number, true or false, or `None`. `counts` are all jobs that there are, by state, whatever was chosen.
    `total` and `links` are those of a `JobList`."""

    columns: list[str]
    jobs: list[ListedJob]
    values: list[list[Any]]
    counts: dict[str, int]
    next: str | None = None
    total: int | None = None
    total_is_exact: bool = True
    links: dict[str, str] = {}


class JobColumn(Answer, frozen=True):
    """A column that a table of jobs can have: its name, what it holds (`number`, `text` or `switch`), and how many of
    the newest jobs have a value for it."""

    name: str
    kind: str
    jobs: int


class JobColumnList(Answer, frozen=True):
    columns: list[JobColumn]
    total: int | None = None


class CancelledJobs(msgspec.Struct, kw_only=True):
    """The result of cancelling many jobs. `complete` is false if the time ran out first: repeat the request for the
    rest."""

    cancelled: int
    cancelling: int  # running ones; they are cancelled when their ranks have ended
    complete: bool = True


class AttemptView(Answer, frozen=True, kw_only=True):
    attempt: int
    state: str
    placement: list[PlacementView] = []
    created_at: datetime
    claimed_at: datetime | None = None
    started_at: datetime | None = None
    first_step_at: datetime | None = None
    ended_at: datetime | None = None
    reason: ReasonView | None = None
    error: Json | None = None
    resumed_from: Resumed | None = None  # None: it began at the first step
    network: str | None = None  # none: its own loopback only | host: the node's


class AttemptList(Answer, frozen=True):
    attempts: list[AttemptView]
    total: int | None = None


class Plan(Answer, frozen=True, kw_only=True):
    """The predicted splits of one epoch, in the form of the report. `rows` is the number of rows of the training data;
    it is None if only the worker can know it, and then `notes` says so. `step_ms` is what a full step would take on the
    slowest device, where the history of the pool's devices tells it; `notes` says from which job."""

    rows: int | None = None
    batch_size: int | None = None
    global_batch_size: int | None = None
    patterns: tuple[Pattern, ...] = ()
    findings: list[Finding] = []
    notes: dict[str, str] = {}
    step_ms: float | None = None


# -- files -------------------------------------------------------------------------------------------


class RankProfile(Answer, frozen=True):
    """What one rank recorded for a profile. `path` is that of its trace among the job's files, a gzip'd Chrome trace;
    where it is `None`, `error` says why there is none. `steps` were recorded, in `seconds`."""

    rank: int
    path: str | None = None
    bytes: int = 0
    steps: int = 0
    seconds: float = 0.0
    error: str | None = None


class ProfileView(Answer, frozen=True):
    """A profile of `steps` steps of a running attempt. `state` is `recording` or `finished`; `ranks` is empty until it
    has finished."""

    number: int
    attempt: int
    steps: int
    state: str
    requested_at: datetime | None = None
    finished_at: datetime | None = None
    ranks: list[RankProfile] = []


class ProfileList(Answer, frozen=True):
    """The profiles of an attempt, in the order in which they were asked for."""

    profiles: list[ProfileView]
    total: int | None = None


class ArtifactView(Answer, frozen=True):
    """One file that an attempt stored; `path` is its path for a download. `kind` is `file` for the program's own, else
    `checkpoint`, `profile` or `report`."""

    path: str
    bytes: int = 0
    modified_at: datetime | None = None
    kind: str = "file"


class LeftOutFiles(Answer, frozen=True, kw_only=True):
    """Files of a script's working directory that were not kept for one reason: how many, with how many bytes together,
    and the newest and the largest of them. `message` says it in a sentence."""

    reason: str
    message: str = ""
    files: int = 0
    bytes: int = 0
    newest: str = ""
    largest: str = ""


class ArtifactList(Answer, frozen=True, kw_only=True):
    """The files of an attempt. `truncated` is true if there are more files than this list shows; `left_out` has what a
    script wrote into its working directory and what was not kept."""

    attempt: int = 0
    artifacts: list[ArtifactView]
    total: int | None = None
    truncated: bool = False
    left_out: list[LeftOutFiles] = []


class BundleView(Answer, frozen=True, kw_only=True):
    """An uploaded zip of code: the number of its files, its size, and the size of its files when unpacked."""

    id: str
    files: int = 0
    bytes: int = 0
    unpacked_bytes: int = 0


class BundleFileView(Answer, frozen=True):
    path: str
    bytes: int = 0


class BundleContents(Answer, frozen=True, kw_only=True):
    """A bundle with its files. `jobs` is the number of jobs that need it, including finished ones."""

    id: str
    bytes: int = 0
    unpacked_bytes: int = 0
    created_at: datetime | None = None
    jobs: int = 0
    files: list[BundleFileView]


# -- logs and metrics --------------------------------------------------------------------------------


class LogLine(Answer, frozen=True, kw_only=True):
    """One line of a log. `seq` counts the lines of a device. `continued` is true if the next entry of its source is the
    rest of the same line."""

    seq: int = 0
    at: datetime | None = None
    device: int
    rank: int = 0
    stream: str = "stdout"
    step: int | None = None
    text: str
    continued: bool = False


class DroppedLines(Answer, frozen=True, rename={"first": "from", "last": "to"}):
    """Lines of a device that could not be stored."""

    device: int
    first: int
    last: int
    bytes: int = 0


class LogPage(Answer, frozen=True, kw_only=True):
    """Log lines in order of time, of the streams that `streams` names. `next` is the cursor of the following page,
    whichever streams are asked for then; `ended` is true if the attempt will write no more lines. `cut_off`: these are
    the last that are here, and not the last that it printed: the others were lost with its node, or still come."""

    attempt: int
    streams: list[str] = []
    lines: list[LogLine]
    dropped: list[DroppedLines] = []
    next: str | None = None
    ended: bool = False
    cut_off: bool = False


class PointView(Answer, frozen=True, kw_only=True):
    number: int = 0
    step: int
    value: float | None  # None: not a finite number
    at: datetime | None = None


class BucketView(Answer, frozen=True, kw_only=True):
    """Adjacent points that were combined."""

    count: int
    first: PointView
    last: PointView
    minimum: float | None = None
    maximum: float | None = None
    mean: float | None = None


class SeriesView(Answer, frozen=True, kw_only=True):
    """One series of a metric. `device` is -1 for the job as a whole. `next` is the value for
    `after=`, with the same device and name."""

    device: int
    name: str
    points: list[PointView] = []
    buckets: list[BucketView] = []
    next: int = 0
    last: int = 0


class MetricList(Answer, frozen=True, kw_only=True):
    attempt: int = 0
    series: list[SeriesView]


# -- accounts and the service ------------------------------------------------------------------------


class NodeFileList(Answer, frozen=True, kw_only=True):
    """Paths of files below a directory of the storage. `next`: the cursor of the following page."""

    files: list[str]
    next: str | None = None


class TokenView(Answer, frozen=True, kw_only=True):
    """A token without its secret. `node` is the one that a token with the scope `node` is for."""

    id: str
    name: str = ""
    tenant: str = ""
    scopes: list[str] = []
    node: str = ""
    created_at: datetime | None = None
    expires_at: datetime | None = None


class NewToken(TokenView, frozen=True, kw_only=True):
    """`token` is the secret, shown only this once, and not by `repr`, which ends up in logs and notebooks."""

    token: str

    def __repr__(self) -> str:
        return f"NewToken(id={self.id!r}, name={self.name!r}, tenant={self.tenant!r}, scopes={self.scopes!r})"


class TokenList(Answer, frozen=True):
    tokens: list[TokenView]
    total: int | None = None


class SecretView(Answer, frozen=True, kw_only=True):
    """A secret without its value, which only the ranks of jobs that name it get."""

    name: str
    created_at: datetime | None = None
    updated_at: datetime | None = None


class SecretList(Answer, frozen=True):
    secrets: list[SecretView]
    total: int | None = None


class SignInCode(Answer, frozen=True, kw_only=True):
    """A code that a browser signs in with once, for the owner of the token that asked for it."""

    code: str
    expires_at: datetime


class Caller(Answer, frozen=True, kw_only=True):
    """The owner of the token or session of a request."""

    token: str  # its id
    tenant: str
    scopes: list[str]
    operator: bool  # it belongs to the tenant `default`, which manages nodes


class SignInWays(Answer, frozen=True, kw_only=True):
    """How people can sign in. A token always works; `single_sign_on` is "" or the provider's name."""

    single_sign_on: str = ""
    device: bool = False  # `shardyard login` works


class DeviceSignIn(Answer, frozen=True, kw_only=True):
    """A sign-in of a command line: somebody enters `user_code` at `verification_uri`, while the service is asked with
    `device_code` every `interval` seconds."""

    device_code: str
    user_code: str
    verification_uri: str
    verification_uri_complete: str = ""  # with the code in it, where the provider has that
    expires_in: int
    interval: int

    def __repr__(self) -> str:
        return f"DeviceSignIn(user_code={self.user_code!r}, verification_uri={self.verification_uri!r})"


class DeviceSignInState(Answer, frozen=True, kw_only=True):
    """`state` is pending, slow_down (wait five seconds longer between requests from now on) or signed_in."""

    state: str
    token: NewToken | None = None


class Readiness(Answer, frozen=True):
    ready: bool = False
    checks: dict[str, str] = {}  # part -> "ok", or what is wrong with it
