"""Request bodies about jobs: their specs, and which of them to cancel."""

from functools import lru_cache

from pydantic import BaseModel, ConfigDict, Field

from api.schemas.request_body import parse_body
from jobs.model import spec_rules
from jobs.model.spec import JobSpec
from jobs.model.state import TERMINAL, JobState
from jobs.store import JobFilter
from shardyard.contract.errors import FieldError, InvalidRequest, InvalidSpec

#: Far more than any spec needs, and few enough that reading a hostile one takes a few hundredths of a second.
MAX_SPEC_VALUES = 5_000
#: How many parsed bodies are cached, for clients that send the same one again, and how large a cached body may be.
KEPT_SPECS, MAX_KEPT_BYTES = 64, 8192


class CancelRequest(BaseModel):
    """Selects the jobs to cancel: those that match all given fields, or, with `all`, all that have not ended."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    state: JobState | None = Field(None, description="queued, starting or running; by default any of them")
    pool: str | None = Field(None, min_length=1, max_length=63)
    label: str | None = Field(None, min_length=1, max_length=320, description="key=value")
    name: str | None = Field(None, min_length=1, max_length=200)
    all: bool = Field(False, strict=True, description="cancel all jobs that have not ended; only without other fields")


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


def parse_cancel(body: bytes) -> JobFilter:
    """Raises MalformedJson, InvalidRequest."""
    wanted = parse_body(CancelRequest, body, "the cancel request is not valid")
    chosen = (wanted.state, wanted.pool, wanted.label, wanted.name)
    if wanted.all == any(field is not None for field in chosen):
        problem = (
            "give either `all` or other fields"
            if wanted.all
            else 'select jobs by a field, or send {"all": true} for all'
        )
        raise InvalidRequest("the cancel request is not valid", fields=(FieldError("all", problem),))
    if wanted.state in TERMINAL:
        problem = f"{wanted.state} jobs have ended; give queued, starting or running"
        raise InvalidRequest("the cancel request is not valid", fields=(FieldError("state", problem),))
    return JobFilter(wanted.state, wanted.pool or "", parse_label(wanted.label or ""), wanted.name or "")


def parse_label(text: str) -> tuple[str, str] | None:
    """Key and value of `key=value`; None if the text is empty. Raises InvalidRequest."""
    if not text:
        return None
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise InvalidRequest("`label` cannot be used", fields=(FieldError("label", "write it as key=value"),))
    return key, value
