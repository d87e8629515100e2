"""Request bodies about who may do what: tokens, sign-ins, secrets, quotas, shares."""

import re
from collections.abc import Iterator
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from api.schemas.request_body import parse_body
from jobs.model.error_words import pattern
from jobs.model.quota import DEFAULT_WINDOW_HOURS, MAX_WINDOW_HOURS, OF_TENANTS, Quota
from jobs.model.settings import MAX_NODE_LENGTH, NODE_PATTERN
from jobs.model.spec import REFERENCE_NAME, SHOWN_PATTERN
from jobs.model.validation import require_plain
from jobs.protocol.names import DEFAULT_TENANT
from jobs.store.accounts.sessions import MAX_ID_LENGTH
from jobs.store.accounts.tokens import MACHINES_SCOPES, MAX_TEXT_LENGTH, Scope
from jobs.store.shares import MAX_WEIGHT, MIN_WEIGHT
from shardyard.contract.errors import FieldError, InvalidRequest, MalformedJson

MAX_TOKEN_SECONDS = 10 * 365 * 86_400
#: Whoever has one gets the passwords of Redis: a week is long enough to walk over to a machine.
MAX_JOIN_SECONDS = 7 * 86_400
#: Of a value in UTF-8.
MAX_SECRET_BYTES = 65_536
MAX_DEVICE_CODE_LENGTH = 2048
#: Of something that a quota limits; None: as much as there is.
Amount = Annotated[int | None, Field(ge=0, le=2**53)]
TENANT_PATTERN = pattern(
    r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$", "1 to 63 lower-case letters, digits and hyphens, no hyphen at either end"
)
Tenant = Annotated[str, Field(pattern=TENANT_PATTERN)]
_DEVICE_CODE = pattern(r"^[!-~]+$", "printable characters, without spaces")
_SECRET = pattern(r"^[^\x00]+$", "text without NUL")
SECRET = f'send {{"value": "..."}} with text of 1 to {MAX_SECRET_BYTES} bytes, and without NUL'
SIGN_IN = f'send {{"token": "..."}} with a bearer token of at most {MAX_TEXT_LENGTH} characters'
DEVICE_SIGN_IN = 'send {"device_code": "..."} with the code of an answer of POST /v1/sign-in/device'


class QuotaRequest(BaseModel):
    """What a tenant, or a token, may use, all of it: what is left out is not limited. A token has no `bundle_bytes`
    and no `file_bytes`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    jobs: Amount = Field(None, description="jobs that have not ended")
    running: Amount = Field(None, description="of them, jobs that have devices")
    devices: Amount = Field(None, description="devices that its jobs have at the same time")
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


class SecretRequest(BaseModel):
    """The value of a secret: text without NUL of at most 65,536 bytes in UTF-8. It is never shown again."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    value: str = Field(min_length=1, max_length=MAX_SECRET_BYTES, pattern=_SECRET, repr=False)


class ShareRequest(BaseModel):
    """The weight of a tenant: one of weight 2 may use twice as much as one of weight 1 before that goes first."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    weight: float = Field(ge=MIN_WEIGHT, le=MAX_WEIGHT, allow_inf_nan=False)


def parse_new_token(body: bytes) -> NewTokenRequest:
    """Raises MalformedJson, InvalidRequest."""
    problem = "the token request is not valid"
    wanted = parse_body(NewTokenRequest, body, problem)
    of_machine = not wanted.scopes.isdisjoint(MACHINES_SCOPES) or wanted.node is not None
    wrong = list(_wrong_of_machine(wanted)) if of_machine else []
    if wrong:
        raise InvalidRequest(problem, fields=tuple(wrong))
    return wanted


def _wrong_of_machine(wanted: NewTokenRequest) -> Iterator[FieldError]:
    """What is wrong with a request for a node's token, or one to join with: it has no rights of people, and no
    tenant."""
    if len(wanted.scopes) != 1 or wanted.scopes.isdisjoint(MACHINES_SCOPES):
        yield FieldError("scopes", 'a token of a node has the scope "node", or "join", and no other')
    if wanted.node is None and Scope.JOIN not in wanted.scopes:
        yield FieldError("node", "name the node that the token is for, as its SHARDYARD_NODE has it")
    if Scope.JOIN in wanted.scopes and (wanted.expires_in_seconds or MAX_JOIN_SECONDS + 1) > MAX_JOIN_SECONDS:
        yield FieldError("expires_in_seconds", f"a token to join with is valid for {MAX_JOIN_SECONDS} seconds at most")
    if wanted.tenant not in (None, DEFAULT_TENANT):
        yield FieldError("tenant", "leave it out: a node serves all tenants")
    if wanted.quota is not None:
        yield FieldError("quota", "leave it out: a token of a node submits no jobs")


def parse_sign_in(body: bytes) -> SignInRequest:
    """A sign-in, with a token or with a code. Raises MalformedJson, InvalidRequest; the error does not repeat either,
    which are secrets."""
    try:
        found = parse_body(SignInRequest, body, "the sign-in is not valid")
    except InvalidRequest as error:
        raise InvalidRequest(error.message, fields=(FieldError("token", SIGN_IN),)) from None
    if (found.token is None) == (found.code is None):
        raise InvalidRequest("the sign-in is not valid", fields=(FieldError("token", SIGN_IN),))
    return found


def parse_device_sign_in(body: bytes) -> str:
    """The device code of a sign-in. Raises MalformedJson, InvalidRequest; the error does not repeat the code, which is
    a secret."""
    try:
        return parse_body(DeviceSignInRequest, body, "the sign-in is not valid").device_code
    except InvalidRequest as error:
        raise InvalidRequest(error.message, fields=(FieldError("device_code", DEVICE_SIGN_IN),)) from None


def parse_secret(name: str, body: bytes) -> str:
    """The value of a secret. Raises MalformedJson, InvalidRequest; the error does not repeat the value."""
    if re.fullmatch(REFERENCE_NAME, name) is None:
        message = "1 to 63 letters, digits, dots, underscores and hyphens, the first and the last a letter or digit"
        raise InvalidRequest("a secret cannot have this name", fields=(FieldError("name", message),))
    wrong = InvalidRequest("the secret is not valid", fields=(FieldError("value", SECRET),))
    try:
        value = parse_body(SecretRequest, body, wrong.message).value
    except InvalidRequest as error:
        raise error if isinstance(error, MalformedJson) else wrong from None
    if len(value.encode()) > MAX_SECRET_BYTES:
        raise wrong
    return value


def parse_quota(body: bytes, *, of_token: bool) -> Quota:
    """The quota of a tenant, or of a token. Raises MalformedJson, InvalidRequest."""
    return make_quota(parse_body(QuotaRequest, body, "the quota is not valid"), "", of_token=of_token)


def make_quota(wanted: QuotaRequest, where: str, *, of_token: bool) -> Quota:
    """`where` comes before the name of a field that is wrong. Raises InvalidRequest."""
    wrong = [name for name in OF_TENANTS if of_token and getattr(wanted, name) is not None]
    if wrong:
        problems = [FieldError(where + name, f"{OF_TENANTS[name]} are the tenant's; leave it out") for name in wrong]
        raise InvalidRequest("the quota is not valid", fields=tuple(problems))
    return Quota(**wanted.model_dump())


def parse_share(body: bytes) -> float:
    """The weight of a tenant. Raises MalformedJson, InvalidRequest."""
    return parse_body(ShareRequest, body, "the share is not valid").weight
