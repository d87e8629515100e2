"""Request bodies: their models, and the functions that check them."""

from functools import lru_cache
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from jobs.model import spec, validation
from jobs.model.spec import JobSpec
from jobs.model.state import TERMINAL, JobState
from jobs.protocol.profiles import DEFAULT_PROFILE_STEPS, MAX_PROFILE_STEPS
from jobs.store import JobFilter
from jobs.store.tokens import MAX_TEXT_LENGTH, Scope
from shardyard.contract.errors import FieldError, InvalidRequest, InvalidSpec

MAX_TOKEN_SECONDS = 10 * 365 * 86_400
MAX_DRAIN_SECONDS = 30 * 86_400
#: Far more than any spec needs, and few enough that reading a hostile one takes a few hundredths of a second.
MAX_SPEC_VALUES = 5_000
#: How many parsed bodies are cached, for clients that send the same one again, and how large a cached body may be.
KEPT_SPECS, MAX_KEPT_BYTES = 64, 8192

Tenant = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]


class NewTokenRequest(BaseModel):
    """A new token. `tenant` is by default the caller's; a token without `expires_in_seconds` does not expire."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")
    scopes: frozenset[Scope] = Field(min_length=1)
    tenant: Tenant | None = None
    expires_in_seconds: int | None = Field(None, ge=1, le=MAX_TOKEN_SECONDS)


class SignInRequest(BaseModel):
    """A sign-in; `token` is the text of a bearer token."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    token: str = Field(min_length=1, max_length=MAX_TEXT_LENGTH)


class CancelRequest(BaseModel):
    """Selects the jobs to cancel: those that match all given fields, or, with `all`, all that have not ended."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    state: JobState | None = Field(None, description="queued, starting or running; by default any of them")
    pool: str | None = Field(None, min_length=1, max_length=63)
    label: str | None = Field(None, min_length=1, max_length=320, description="key=value")
    name: str | None = Field(None, min_length=1, max_length=200)
    all: bool = Field(False, strict=True, description="cancel all jobs that have not ended; only without other fields")


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


class QuarantineRequest(BaseModel):
    """Why the device is in quarantine; `reason` is shown with the node."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    reason: str = Field(min_length=1, max_length=500, pattern=r"^[^\x00-\x1f\x7f]+$")


SIGN_IN = f'send {{"token": "..."}} with a bearer token of at most {MAX_TEXT_LENGTH} characters'
Model = TypeVar("Model", bound=BaseModel)


def parse_spec(body: bytes) -> JobSpec:
    """The spec of a body. It is cached and shared, so callers must not change it. Raises MalformedJson, InvalidSpec,
    NotSupported."""
    return _parse_cached_spec(body) if len(body) <= MAX_KEPT_BYTES else _parse_spec(body)


def _parse_spec(body: bytes) -> JobSpec:
    from jobs.model import catalogue

    if body.count(b",") > MAX_SPEC_VALUES:
        raise InvalidSpec(f"a job spec may have {MAX_SPEC_VALUES} values at most")
    wanted = spec.parse(body)
    wrong = catalogue.check(wanted)
    if wrong:
        raise InvalidSpec("the job spec names things that do not exist", fields=tuple(wrong))
    return wanted


_parse_cached_spec = lru_cache(KEPT_SPECS)(_parse_spec)


def parse_new_token(body: bytes) -> NewTokenRequest:
    """Raises MalformedJson, InvalidRequest."""
    return _parse_body(NewTokenRequest, body, "the token request is not valid")


def parse_sign_in(body: bytes) -> str:
    """The token of a sign-in. Raises MalformedJson, InvalidRequest; the error does not repeat the token, which is a
    secret."""
    try:
        return _parse_body(SignInRequest, body, "the sign-in is not valid").token.strip()
    except InvalidRequest as error:
        raise InvalidRequest(error.message, fields=(FieldError("token", SIGN_IN),)) from None


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
        return model.model_validate_json(body)
    except ValidationError as error:
        fields = validation.field_errors(validation.details(error), model)
        raise InvalidRequest(problem, fields=fields) from None
