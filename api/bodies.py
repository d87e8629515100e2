"""Request bodies other than the job spec."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from jobs.errors import FieldError, InvalidRequest, MalformedJson
from jobs.tokens import Scope

MAX_TOKEN_SECONDS = 10 * 365 * 86_400

Tenant = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]


class NewTokenRequest(BaseModel):
    """`tenant` is the caller's when it is left out; a token without `expires_in_seconds` does not expire."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")
    scopes: frozenset[Scope] = Field(min_length=1)
    tenant: Tenant | None = None
    expires_in_seconds: int | None = Field(None, ge=1, le=MAX_TOKEN_SECONDS)


def parse_new_token(body: bytes) -> NewTokenRequest:
    """Raises MalformedJson, InvalidRequest."""
    try:
        return NewTokenRequest.model_validate_json(body)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False)
        if details[0]["type"] == "json_invalid":
            raise MalformedJson(f"the body is not valid JSON: {details[0]['msg']}") from None
        fields = tuple(field_error(dict(detail)) for detail in details[:20])
        raise InvalidRequest("the token request is not valid", fields=fields) from None


def field_error(detail: dict[str, Any]) -> FieldError:
    """One of pydantic's complaints as one of ours."""
    given = repr(detail.get("input"))
    name = ".".join(str(part) for part in detail["loc"]) or "(body)"
    return FieldError(name, f"{detail['msg']} (got {given[:80]}{'...' if len(given) > 80 else ''})")
