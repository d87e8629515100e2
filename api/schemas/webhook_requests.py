"""Request bodies about webhooks."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from api.schemas.request_body import parse_body
from jobs.model.error_words import pattern
from jobs.model.mail import MAX_ADDRESS_LENGTH
from jobs.model.spec import REFERENCE_NAME, SHOWN_PATTERN
from jobs.model.validation import require_plain
from shardyard.contract.webhooks import EVENT_PATTERNS, EventPattern

MAX_URL_LENGTH = 2048
#: Of a mail of a webhook.
MAX_RECIPIENTS = 10
DEFAULT_OVERLAP_SECONDS, MAX_OVERLAP_SECONDS = 86_400, 7 * 86_400
_WEBHOOK_NAME = pattern(f"^$|{SHOWN_PATTERN}", "text in one line, without control characters")
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
        "statuses on the commits that jobs name; email",
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
    active: bool | None = Field(None, strict=True, description="false: it gets no events; what waits for it is kept")


class WebhookRotation(BaseModel):
    """How long deliveries are signed with the older secret as well."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    overlap_seconds: int = Field(
        DEFAULT_OVERLAP_SECONDS,
        ge=0,
        le=MAX_OVERLAP_SECONDS,
        strict=True,
        description="meanwhile receivers may use either; 0, for a secret that others may know: it ends at once",
    )


def parse_new_webhook(body: bytes) -> NewWebhookRequest:
    """Raises MalformedJson, InvalidRequest."""
    return parse_body(NewWebhookRequest, body, "the webhook is not valid")


def parse_webhook_change(body: bytes) -> WebhookChange:
    """Raises MalformedJson, InvalidRequest."""
    return parse_body(WebhookChange, body, "the change of the webhook is not valid")


def parse_webhook_rotation(body: bytes) -> WebhookRotation:
    """An empty body stands for the usual overlap. Raises MalformedJson, InvalidRequest."""
    return parse_body(WebhookRotation, body or b"{}", "the rotation of the webhook's secret is not valid")
