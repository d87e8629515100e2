"""Request bodies: their models, and the functions that check them."""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from jobs.model import spec_rules, validation
from jobs.model.error_words import pattern, unknown_name
from jobs.model.mail import MAX_ADDRESS_LENGTH
from jobs.model.pool_policy import PoolPolicy
from jobs.model.quota import DEFAULT_WINDOW_HOURS, MAX_WINDOW_HOURS, OF_TENANTS, Quota
from jobs.model.settings import MAX_NODE_LENGTH, NODE_PATTERN
from jobs.model.spec import MAX_DEVICES, REFERENCE_NAME, SHOWN_PATTERN, JobSpec
from jobs.model.state import TERMINAL, JobState
from jobs.model.validation import require_plain
from jobs.protocol.names import DEFAULT_TENANT
from jobs.protocol.profiles import DEFAULT_PROFILE_STEPS, MAX_PROFILE_STEPS
from jobs.splits.gates.limits import ANY_WARNING, GateLimits
from jobs.store import JobFilter
from jobs.store.accounts.sessions import MAX_ID_LENGTH
from jobs.store.accounts.tokens import MACHINES_SCOPES, MAX_TEXT_LENGTH, Scope
from jobs.store.shares import MAX_WEIGHT, MIN_WEIGHT
from shardyard.contract.errors import FieldError, InvalidRequest, InvalidSpec, MalformedJson
from shardyard.contract.finding_codes import FINDING_CODES
from shardyard.contract.webhooks import EVENT_PATTERNS, EventPattern
from shardyard.formatting import is_whole_id

MAX_TOKEN_SECONDS = 10 * 365 * 86_400
#: Whoever has one gets the passwords of Redis: a week is long enough to walk over to a machine.
MAX_JOIN_SECONDS = 7 * 86_400
MAX_DRAIN_SECONDS = 30 * 86_400
#: Of a value in UTF-8.
MAX_SECRET_BYTES = 65_536
MAX_URL_LENGTH = 2048
MAX_DEVICE_CODE_LENGTH = 2048
#: Of a mail of a webhook.
MAX_RECIPIENTS = 10
DEFAULT_OVERLAP_SECONDS, MAX_OVERLAP_SECONDS = 86_400, 7 * 86_400
#: Far more than any spec needs, and few enough that reading a hostile one takes a few hundredths of a second.
MAX_SPEC_VALUES = 5_000
#: How many parsed bodies are cached, for clients that send the same one again, and how large a cached body may be.
KEPT_SPECS, MAX_KEPT_BYTES = 64, 8192

#: Trials of a sweep, variants of a comparison, and how long either may be.
MAX_TRIALS, MAX_DEVICE_COUNTS, MAX_GROUP_STEPS = 200, 16, 1_000_000
MAX_PATHS = 10
_PATH = pattern(r"^[^.\x00-\x1f\x7f]+(\.[^.\x00-\x1f\x7f]+)*$", "the path of a field, such as program.data.batch_size")
_METRIC = pattern(
    r"^(loss|rows_per_second|metrics\.[^\x00-\x1f\x7f]+)$", "loss, rows_per_second, or metrics.<name> of an evaluation"
)

#: Of something that a quota limits; None: as much as there is.
Amount = Annotated[int | None, Field(ge=0, le=2**53)]
TENANT_PATTERN = pattern(
    r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$", "1 to 63 small letters, digits and hyphens, no hyphen at an end"
)
Tenant = Annotated[str, Field(pattern=TENANT_PATTERN)]
_DEVICE_CODE = pattern(r"^[!-~]+$", "printable characters, without spaces")
_NONCE = pattern(r"^[0-9a-f]+$", "hexadecimal digits")
_SECRET = pattern(r"^[^\x00]+$", "text without NUL")
_WEBHOOK_NAME = pattern(f"^$|{SHOWN_PATTERN}", "text in one line, without control characters")


class QuotaRequest(BaseModel):
    """What a tenant, or a token, may use, all of it: what is left out is not limited. A token has no `bundle_bytes`
    and no `file_bytes`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    jobs: Amount = Field(None, description="jobs that have not ended")
    running: Amount = Field(None, description="of them, jobs that have devices")
    devices: Amount = Field(None, description="devices that its jobs have at a time")
    device_hours: float | None = Field(
        None, ge=0, le=1e9, description="devices times hours within the window; above it no job starts"
    )
    window_hours: int = Field(DEFAULT_WINDOW_HOURS, ge=1, le=MAX_WINDOW_HOURS, description="how long that window is")
    spec_bytes: Amount = Field(None, description="stored specs of all its jobs that are not archived")
    bundle_bytes: Amount = Field(None, description="bundles")
    file_bytes: Amount = Field(None, description="logs, metrics, artifacts and checkpoints of all its jobs")


class NewTokenRequest(BaseModel):
    """A new token. `tenant` is by default the caller's; a token without `expires_in_seconds` does not expire, and one
    without `quota` may use what its tenant may use. `node` is for the scopes `node` and `join`, which stand alone."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(min_length=1, max_length=200, pattern=SHOWN_PATTERN), AfterValidator(require_plain)]
    scopes: frozenset[Scope] = Field(min_length=1)
    tenant: Tenant | None = None
    expires_in_seconds: int | None = Field(None, ge=1, le=MAX_TOKEN_SECONDS)
    quota: QuotaRequest | None = None
    node: Annotated[str, Field(max_length=MAX_NODE_LENGTH, pattern=NODE_PATTERN)] | None = None


class JoinRequest(BaseModel):
    """A machine that joins as this node. `wants_token`: it needs one for its files, or has one that is good."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    node: Annotated[str, Field(max_length=MAX_NODE_LENGTH, pattern=NODE_PATTERN)]
    wants_token: bool = True


class ReachRequest(BaseModel):
    """Where a machine that joins listens, at the address that the request comes from, and what it says there."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    port: int = Field(ge=1024, le=65_535)
    nonce: str = Field(min_length=16, max_length=64, pattern=_NONCE)


class SignInRequest(BaseModel):
    """A sign-in, with one of them: the text of a bearer token, or the code of a sign-in link."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    token: str | None = Field(None, min_length=1, max_length=MAX_TEXT_LENGTH, description="text of a bearer token")
    code: str | None = Field(
        None, min_length=1, max_length=MAX_ID_LENGTH, description="code of `POST /v1/sign-in/code`, good once"
    )


class DeviceSignInRequest(BaseModel):
    """Asks for the token of a sign-in of a command line, by its `device_code`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    device_code: str = Field(min_length=1, max_length=MAX_DEVICE_CODE_LENGTH, pattern=_DEVICE_CODE)


class CancelRequest(BaseModel):
    """Selects the jobs to cancel: those that match all given fields, or, with `all`, all that have not ended."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    state: JobState | None = Field(None, description="queued, starting or running; by default any of them")
    pool: str | None = Field(None, min_length=1, max_length=63)
    label: str | None = Field(None, min_length=1, max_length=320, description="key=value")
    name: str | None = Field(None, min_length=1, max_length=200)
    all: bool = Field(False, strict=True, description="cancel all jobs that have not ended; only without other fields")


class SecretRequest(BaseModel):
    """The value of a secret: text without NUL of at most 65,536 bytes in UTF-8. It is never shown again."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    value: str = Field(min_length=1, max_length=MAX_SECRET_BYTES, pattern=_SECRET, repr=False)


EventPatterns = Annotated[list[EventPattern], Field(min_length=1, max_length=len(EVENT_PATTERNS))]
WebhookName = Annotated[str, Field(max_length=200, pattern=_WEBHOOK_NAME), AfterValidator(require_plain)]


HookUrl = Annotated[str | None, Field(min_length=1, max_length=MAX_URL_LENGTH, repr=False)]
#: Neither of the two names of a repository is `.` or `..`, which would lead elsewhere in a path.
_REPOSITORY = pattern(
    r"^[A-Za-z0-9][A-Za-z0-9-]{0,38}/([A-Za-z0-9_-]|\.[A-Za-z0-9_-])[A-Za-z0-9._-]{0,99}$", "owner/name of a repository"
)
Repository = Annotated[str | None, Field(max_length=140, pattern=_REPOSITORY)]
TokenSecret = Annotated[str | None, Field(min_length=1, max_length=63, pattern=REFERENCE_NAME)]
Recipients = Annotated[
    list[Annotated[str, Field(min_length=3, max_length=MAX_ADDRESS_LENGTH)]] | None,
    Field(min_length=1, max_length=MAX_RECIPIENTS),
]


class NewWebhookRequest(BaseModel):
    """A new webhook: where deliveries go, and which events. `json` and `slack` need a `url`, `github` a `repo` and a
    `token_secret`, `email` its recipients `to`."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    url: HookUrl = Field(None, description="for github: its API, where it is not https://api.github.com")
    events: EventPatterns = Field(["job.*"], description="kinds of events, or groups of them")
    format: Literal["json", "slack", "github", "email"] = Field(
        "json",
        description="json, which is signed; slack, an incoming webhook of Slack, whose address is its secret; github, "
        "statuses of the commits that jobs name; email",
    )
    repo: Repository = Field(None, description="owner/name of the repository whose commits get statuses")
    token_secret: TokenSecret = Field(
        None, description="name of a secret of yours: a token that may write statuses of commits"
    )
    to: Recipients = Field(None, description="mail addresses")
    name: WebhookName = ""


class WebhookChange(BaseModel):
    """What to change of a webhook; what is left out stays."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    url: HookUrl = None
    events: EventPatterns | None = None
    repo: Repository = None
    token_secret: TokenSecret = None
    to: Recipients = None
    name: WebhookName | None = None
    active: bool | None = Field(None, strict=True, description="false: it gets no events; what waits for it stays")


class WebhookRotation(BaseModel):
    """How long deliveries are signed with the older secret as well."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    overlap_seconds: int = Field(
        DEFAULT_OVERLAP_SECONDS,
        ge=0,
        le=MAX_OVERLAP_SECONDS,
        strict=True,
        description="meanwhile receivers may have either; 0, for a secret that others may know: it ends at once",
    )


class DrainRequest(BaseModel):
    """How long running attempts may stay on the node; without a deadline, until they end."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    deadline_seconds: float | None = Field(
        None,
        ge=0,
        le=MAX_DRAIN_SECONDS,
        allow_inf_nan=False,
        description="after this time, what still runs moves to other nodes; 0: at once",
    )


class ProfileRequestBody(BaseModel):
    """How many steps each rank records."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    steps: int = Field(DEFAULT_PROFILE_STEPS, ge=1, le=MAX_PROFILE_STEPS, strict=True)


#: Of a gate: more than any figure of a report.
_MAX_LIMIT = 1e15
Ratio = Annotated[float | None, Field(gt=0, le=_MAX_LIMIT, allow_inf_nan=False)]


class GateRequest(BaseModel):
    """Limits that a job's report is to keep; at least one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_time_imbalance: Ratio = Field(
        None, description="the busiest device's time over the mean of all, as balance.time_max_over_mean; 1 is even"
    )
    max_row_imbalance: Ratio = Field(None, description="the same of rows, as balance.rows_max_over_mean")
    max_idle: int | None = Field(
        None, ge=0, le=2**53, description="steps in which a device got nothing, as balance.idle_device_steps"
    )
    min_throughput: Ratio = Field(None, description="rows per second of all devices, as rows_per_second")
    max_memory: int | None = Field(
        None, ge=1, le=2**53, description="bytes, as the largest per_device.memory_peak_bytes"
    )
    no_finding: list[Annotated[str, Field(max_length=63)]] = Field(
        [], max_length=64, description="codes of findings that the report must not have; warning: any of that severity"
    )
    against: str | None = Field(None, max_length=64, description="id of another job, for max_slowdown")
    max_slowdown: Ratio = Field(None, description="time of a step over that of the job `against`; 1.05: 5 % slower")


class PoolPolicyRequest(BaseModel):
    """The policy of a pool, all of it: what is left out has its default."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    box: Literal["any", "user", "full"] = Field(
        "any",
        description="what a node must have to take work: user, a box made without root or a full one; full, one that "
        "root makes",
    )
    network: Literal["none", "host"] = Field(
        "none", description="what jobs get in a box with a network of its own: none, a loopback; host, the node's"
    )
    preempt: bool = Field(
        False,
        strict=True,
        description="jobs of a higher priority take the devices of others, which save and go back to the queue",
    )


class ShareRequest(BaseModel):
    """The weight of a tenant: one of weight 2 may use twice as much as one of weight 1 before that goes first."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    weight: float = Field(ge=MIN_WEIGHT, le=MAX_WEIGHT, allow_inf_nan=False)


class QuarantineRequest(BaseModel):
    """Why the device is in quarantine; `reason` is shown with the node."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    reason: Annotated[str, Field(min_length=1, max_length=500, pattern=SHOWN_PATTERN), AfterValidator(require_plain)]


SECRET = f'send {{"value": "..."}} with text of 1 to {MAX_SECRET_BYTES} bytes, and without NUL'
SIGN_IN = f'send {{"token": "..."}} with a bearer token of at most {MAX_TEXT_LENGTH} characters'
DEVICE_SIGN_IN = 'send {"device_code": "..."} with the code of an answer of POST /v1/sign-in/device'
Model = TypeVar("Model", bound=BaseModel)


GroupName = Annotated[str, Field(min_length=1, max_length=200, pattern=SHOWN_PATTERN), AfterValidator(require_plain)]
SpecPath = Annotated[str, Field(min_length=1, max_length=200, pattern=_PATH)]


class _GroupRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    spec: dict[str, Any] = Field(description="a job spec, as `POST /v1/jobs` takes it")
    name: GroupName | None = Field(None, description="a name for people, and the beginning of the names of its jobs")


class ComparisonRequest(_GroupRequest):
    """A spec, and what to run it under. Each job has `steps` optimizer steps, and each step as many rows as one of the
    spec has."""

    strategies: list[Literal["single", "dp", "ddp", "fsdp"]] = Field(
        min_length=1, max_length=4, description="how the model is put on the devices"
    )
    devices: list[Annotated[int, Field(ge=1, le=MAX_DEVICES, strict=True)]] = Field(
        min_length=1, max_length=MAX_DEVICE_COUNTS, description="how many devices, each beside each strategy"
    )
    steps: int = Field(50, ge=1, le=MAX_GROUP_STEPS, strict=True, description="optimizer steps of each job")


class SweepRange(BaseModel):
    """Where values are drawn from: whole numbers where both ends are. With `log`, small values are as likely as large
    ones."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    min: Annotated[int, Field(strict=True)] | float = Field(description="the least value")
    max: Annotated[int, Field(strict=True)] | float = Field(description="the largest value")
    log: bool = Field(False, strict=True, description="small values are as likely as large ones")

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.min > self.max:
            raise ValueError("min is above max; swap them")
        if self.log and self.min <= 0:
            raise ValueError("min is above 0 where log is set")
        return self

    @property
    def is_whole(self) -> bool:
        return isinstance(self.min, int) and isinstance(self.max, int)


def _choice_or_range(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """One error for the whole union, at the field itself."""
    try:
        return check(value)
    except ValidationError as error:
        own = [detail["msg"] for detail in error.errors() if detail["type"] == "value_error"]
        words = own[0].removeprefix("Value error, ") if own else ""
        raise ValueError(words or 'a list of values, or {"min": 0.001, "max": 0.1, "log": true}') from None


Choices = Annotated[list[Any], Field(min_length=1, max_length=MAX_TRIALS)]
ChoicesOrRange = Annotated[Choices | SweepRange, WrapValidator(_choice_or_range)]


class SweepRequest(_GroupRequest):
    """A spec, and what values to put into it: either all of a `grid`, or `trials` of what `random` may draw."""

    grid: Annotated[dict[SpecPath, Choices], Field(min_length=1, max_length=MAX_PATHS)] | None = Field(
        None, description="values by the path of their field"
    )
    random: Annotated[dict[SpecPath, ChoicesOrRange], Field(min_length=1, max_length=MAX_PATHS)] | None = Field(
        None, description="values, or a range of them, by the path of their field"
    )
    search: Literal["grid", "random", "optuna"] | None = Field(
        None,
        description="by default what fits to the values; `optuna` chooses the next values of `random` by the trials "
        "that have ended",
    )
    trials: int | None = Field(None, ge=1, le=MAX_TRIALS, strict=True, description="how many jobs, with `random`")
    seed: int = Field(0, ge=0, le=2**63 - 1, strict=True, description="the same one draws the same values")
    metric: str = Field("loss", max_length=200, pattern=_METRIC, description="by what the best trial is chosen")
    mode: Literal["min", "max"] | None = Field(None, description="by default min for the loss, and max for others")
    max_concurrent: int = Field(1, ge=1, le=MAX_TRIALS, strict=True, description="jobs that may run at a time")
    steps: int | None = Field(
        None,
        ge=1,
        le=MAX_GROUP_STEPS,
        strict=True,
        description="optimizer steps of each job; left out: as the spec says",
    )

    @property
    def field(self) -> str:
        """Of its values."""
        return "grid" if self.grid is not None else "random"

    @property
    def chosen_search(self) -> str:
        return self.search or self.field

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(self.grid or self.random or ())

    @property
    def chosen_mode(self) -> str:
        return self.mode or ("min" if self.metric == "loss" else "max")


def parse_comparison(body: bytes) -> ComparisonRequest:
    """Raises MalformedJson, InvalidRequest."""
    problem = "the comparison is not valid"
    _refuse_long(body, problem)
    wanted = _parse_body(ComparisonRequest, body, problem)
    for field in ("strategies", "devices"):
        values = getattr(wanted, field)
        if len(set(values)) < len(values):
            raise InvalidRequest(problem, fields=(FieldError(field, "name each one once"),))
    return wanted


def _refuse_long(body: bytes, problem: str) -> None:
    if body.count(b",") > MAX_SPEC_VALUES:
        raise InvalidRequest(f"{problem}: it may have {MAX_SPEC_VALUES} values at most")


def parse_sweep(body: bytes) -> SweepRequest:
    """Raises MalformedJson, InvalidRequest."""
    _refuse_long(body, "the sweep is not valid")
    wanted = _parse_body(SweepRequest, body, "the sweep is not valid")
    wrong = list(_wrong_of_sweep(wanted))
    if wrong:
        raise InvalidRequest("the sweep is not valid", fields=tuple(wrong))
    return wanted


def _wrong_of_sweep(wanted: SweepRequest) -> Iterator[FieldError]:
    if (wanted.grid is None) == (wanted.random is None):
        yield FieldError("grid", "give either `grid` or `random`, with values by the paths of their fields")
    elif wanted.search is not None and (wanted.search == "grid") != (wanted.grid is not None):
        yield FieldError("search", f"the values are in `{wanted.field}`; leave it out")
    if wanted.grid is not None and wanted.trials is not None:
        yield FieldError("trials", "a grid has as many as its values make; leave it out")
    if wanted.random is not None and wanted.trials is None:
        yield FieldError("trials", "say how many to draw")


def parse_spec(body: bytes) -> JobSpec:
    """The spec of a body. It is cached and shared, so callers must not change it. Raises MalformedJson, InvalidSpec,
    NotSupported."""
    return _parse_cached_spec(body) if len(body) <= MAX_KEPT_BYTES else _parse_spec(body)


def _parse_spec(body: bytes) -> JobSpec:
    from jobs.model import catalogue

    if body.count(b",") > MAX_SPEC_VALUES:
        raise InvalidSpec(f"a job spec may have {MAX_SPEC_VALUES} values at most")
    return spec_rules.parse_spec(body, catalogue.check)


_parse_cached_spec = lru_cache(KEPT_SPECS)(_parse_spec)


def parse_new_token(body: bytes) -> NewTokenRequest:
    """Raises MalformedJson, InvalidRequest."""
    problem = "the token request is not valid"
    wanted = _parse_body(NewTokenRequest, body, problem)
    of_machine = not wanted.scopes.isdisjoint(MACHINES_SCOPES) or wanted.node is not None
    wrong = list(_wrong_of_machine(wanted)) if of_machine else []
    if wrong:
        raise InvalidRequest(problem, fields=tuple(wrong))
    return wanted


def parse_join(body: bytes) -> JoinRequest:
    """Raises MalformedJson, InvalidRequest."""
    return _parse_body(JoinRequest, body, "the request to join is not valid")


def parse_reach(body: bytes) -> ReachRequest:
    """Raises MalformedJson, InvalidRequest."""
    return _parse_body(ReachRequest, body, "the request is not valid")


def _wrong_of_machine(wanted: NewTokenRequest) -> Iterator[FieldError]:
    """What is wrong with a request for a node's token, or one to join with: it has no rights of people, and no
    tenant."""
    if len(wanted.scopes) != 1 or wanted.scopes.isdisjoint(MACHINES_SCOPES):
        yield FieldError("scopes", 'a token of a node has the scope "node", or "join", and no other')
    if wanted.node is None and Scope.JOIN not in wanted.scopes:
        yield FieldError("node", "name the node that the token is for, as its SHARDYARD_NODE has it")
    if Scope.JOIN in wanted.scopes and (wanted.expires_in_seconds or MAX_JOIN_SECONDS + 1) > MAX_JOIN_SECONDS:
        yield FieldError("expires_in_seconds", f"a token to join with is good for {MAX_JOIN_SECONDS} seconds at most")
    if wanted.tenant not in (None, DEFAULT_TENANT):
        yield FieldError("tenant", "leave it out: a node serves all tenants")
    if wanted.quota is not None:
        yield FieldError("quota", "leave it out: a token of a node submits no jobs")


def parse_sign_in(body: bytes) -> SignInRequest:
    """A sign-in, with a token or with a code. Raises MalformedJson, InvalidRequest; the error does not repeat either,
    which are secrets."""
    try:
        found = _parse_body(SignInRequest, body, "the sign-in is not valid")
    except InvalidRequest as error:
        raise InvalidRequest(error.message, fields=(FieldError("token", SIGN_IN),)) from None
    if (found.token is None) == (found.code is None):
        raise InvalidRequest("the sign-in is not valid", fields=(FieldError("token", SIGN_IN),))
    return found


def parse_device_sign_in(body: bytes) -> str:
    """The device code of a sign-in. Raises MalformedJson, InvalidRequest; the error does not repeat the code, which is
    a secret."""
    try:
        return _parse_body(DeviceSignInRequest, body, "the sign-in is not valid").device_code
    except InvalidRequest as error:
        raise InvalidRequest(error.message, fields=(FieldError("device_code", DEVICE_SIGN_IN),)) from None


def parse_secret(name: str, body: bytes) -> str:
    """The value of a secret. Raises MalformedJson, InvalidRequest; the error does not repeat the value."""
    if re.fullmatch(REFERENCE_NAME, name) is None:
        message = "1 to 63 letters, digits, dots, underscores and hyphens, the first and the last a letter or digit"
        raise InvalidRequest("a secret cannot have this name", fields=(FieldError("name", message),))
    wrong = InvalidRequest("the secret is not valid", fields=(FieldError("value", SECRET),))
    try:
        value = _parse_body(SecretRequest, body, wrong.message).value
    except InvalidRequest as error:
        raise error if isinstance(error, MalformedJson) else wrong from None
    if len(value.encode()) > MAX_SECRET_BYTES:
        raise wrong
    return value


def parse_new_webhook(body: bytes) -> NewWebhookRequest:
    """Raises MalformedJson, InvalidRequest."""
    return _parse_body(NewWebhookRequest, body, "the webhook is not valid")


def parse_webhook_change(body: bytes) -> WebhookChange:
    """Raises MalformedJson, InvalidRequest."""
    return _parse_body(WebhookChange, body, "the change of the webhook is not valid")


def parse_webhook_rotation(body: bytes) -> WebhookRotation:
    """An empty body stands for the usual overlap. Raises MalformedJson, InvalidRequest."""
    return _parse_body(WebhookRotation, body or b"{}", "the rotation of the webhook's secret is not valid")


def parse_cancel(body: bytes) -> JobFilter:
    """Raises MalformedJson, InvalidRequest."""
    wanted = _parse_body(CancelRequest, body, "the cancel request is not valid")
    chosen = (wanted.state, wanted.pool, wanted.label, wanted.name)
    if wanted.all == any(field is not None for field in chosen):
        problem = (
            "give either `all` or other fields"
            if wanted.all
            else 'select jobs by a field, or send {"all": true} for all'
        )
        raise InvalidRequest("the cancel request is not valid", fields=(FieldError("all", problem),))
    if wanted.state in TERMINAL:
        problem = f"{wanted.state} jobs have ended; queued, starting or running"
        raise InvalidRequest("the cancel request is not valid", fields=(FieldError("state", problem),))
    return JobFilter(wanted.state, wanted.pool or "", parse_label(wanted.label or ""), wanted.name or "")


def parse_drain(body: bytes) -> DrainRequest:
    """A drain request; no body means no deadline. Raises MalformedJson, InvalidRequest."""
    return _parse_body(DrainRequest, body.strip() or b"{}", "the drain request is not valid")


def parse_profile(body: bytes) -> int:
    """The steps of a request for a profile. Raises MalformedJson, InvalidRequest."""
    return _parse_body(ProfileRequestBody, body.strip() or b"{}", "the profile request is not valid").steps


def parse_gate(body: bytes) -> tuple[GateLimits, str | None]:
    """The limits, and the id of the job to compare with. Raises MalformedJson, InvalidRequest."""
    problem = "the gate is not valid"
    wanted = _parse_body(GateRequest, body.strip() or b"{}", problem)
    given = wanted.model_dump(exclude={"against"})
    limits = GateLimits(**given | {"no_finding": tuple(dict.fromkeys(wanted.no_finding))})
    wrong = list(_wrong_of_gate(limits, wanted.against))
    if wrong:
        raise InvalidRequest(problem, fields=tuple(wrong))
    return limits, wanted.against


def _wrong_of_gate(limits: GateLimits, against: str | None) -> Iterator[FieldError]:
    for index, code in enumerate(limits.no_finding):
        if code not in FINDING_CODES | {ANY_WARNING}:
            yield FieldError(f"no_finding.{index}", unknown_name(code, sorted(FINDING_CODES), "finding"))
    if against is not None and limits.max_slowdown is None:
        yield FieldError("max_slowdown", "say how much slower than the job `against` it may be, such as 1.05")
    if against is not None and not is_whole_id(against):
        yield FieldError("against", "the whole id of a job")
    if against is None and limits.max_slowdown is not None:
        yield FieldError("against", "name the job that `max_slowdown` compares with")
    if limits == GateLimits():
        fields = [name for name in GateRequest.model_fields if name != "against"]
        yield FieldError("max_time_imbalance", f"give at least one limit: {', '.join(fields)}")


def parse_policy(body: bytes) -> PoolPolicy:
    """Raises MalformedJson, InvalidRequest."""
    wanted = _parse_body(PoolPolicyRequest, body, "the policy of the pool is not valid")
    return PoolPolicy(wanted.box, wanted.network, preempt=wanted.preempt)


def parse_share(body: bytes) -> float:
    """The weight of a tenant. Raises MalformedJson, InvalidRequest."""
    return _parse_body(ShareRequest, body, "the share is not valid").weight


def parse_quota(body: bytes, *, of_token: bool) -> Quota:
    """The quota of a tenant, or of a token. Raises MalformedJson, InvalidRequest."""
    return make_quota(_parse_body(QuotaRequest, body, "the quota is not valid"), "", of_token=of_token)


def make_quota(wanted: QuotaRequest, where: str, *, of_token: bool) -> Quota:
    """`where` comes before the name of a field that is wrong. Raises InvalidRequest."""
    wrong = [name for name in OF_TENANTS if of_token and getattr(wanted, name) is not None]
    if wrong:
        problems = [FieldError(where + name, f"{OF_TENANTS[name]} are the tenant's; leave it out") for name in wrong]
        raise InvalidRequest("the quota is not valid", fields=tuple(problems))
    return Quota(**wanted.model_dump())


def parse_quarantine(body: bytes) -> QuarantineRequest:
    """Raises MalformedJson, InvalidRequest."""
    return _parse_body(QuarantineRequest, body, "the quarantine request is not valid")


def refuse_body(body: bytes) -> None:
    """Refuse a body where none is used: ignoring it silently would mislead the client.

    Raises:
        InvalidRequest: there is one, and not just an empty object.
    """
    if body.strip() not in (b"", b"{}"):
        raise InvalidRequest("this request takes no body", fields=(FieldError("(body)", "leave it out"),))


def parse_label(text: str) -> tuple[str, str] | None:
    """Key and value of `key=value`; None if the text is empty. Raises InvalidRequest."""
    if not text:
        return None
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise InvalidRequest("`label` cannot be used", fields=(FieldError("label", "write it as key=value"),))
    return key, value


def _parse_body(model: type[Model], body: bytes, problem: str) -> Model:
    try:
        wanted = model.model_validate_json(body)
    except ValidationError as error:
        fields = validation.field_errors(validation.details(error), model)
        raise InvalidRequest(problem, fields=(*fields, *validation.repeated_keys(body))) from None
    twice = validation.repeated_keys(body)
    if twice:
        raise InvalidRequest(problem, fields=twice)
    return wanted
