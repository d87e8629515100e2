"""Reads the bodies of requests, whose models are in the modules beside this one."""

from typing import TypeVar

from pydantic import BaseModel, ValidationError

from jobs.model import validation
from shardyard.contract.errors import FieldError, InvalidRequest

Model = TypeVar("Model", bound=BaseModel)


def parse_body(model: type[Model], body: bytes, problem: str) -> Model:
    """`problem`: the message of what is raised. Raises MalformedJson, InvalidRequest."""
    try:
        wanted = model.model_validate_json(body)
    except ValidationError as error:
        fields = validation.field_errors(validation.details(error), model)
        raise InvalidRequest(problem, fields=(*fields, *validation.repeated_keys(body))) from None
    twice = validation.repeated_keys(body)
    if twice:
        raise InvalidRequest(problem, fields=twice)
    return wanted


def refuse_body(body: bytes) -> None:
    """Refuse a body where none is used: ignoring it silently would mislead the client.

    Raises:
        InvalidRequest: there is one, and not just an empty object.
    """
    if body.strip() not in (b"", b"{}"):
        raise InvalidRequest("this request takes no body", fields=(FieldError("(body)", "leave it out"),))
