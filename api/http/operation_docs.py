"""What the OpenAPI document says of a route beside its parameters: the arguments of the route's decorator.

Bodies are read as bytes and answers are written by msgspec, so the framework cannot know what they look like.
`api.system.openapi` adds the schemas, and the refusals that follow from a route's method, path and parameters.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from api.http.problems import PROBLEMS

JSON, TEXT, HTML, SVG = "application/json", "text/plain", "text/html", "image/svg+xml"

Content = dict[str, Any]

BYTES: Content = {"type": "string", "format": "binary"}


def describe(
    summary: str,
    answer: type | Content | None = None,
    *,
    also: Iterable[str] = (),
    statuses: Iterable[int] = (200,),
    without_body: Iterable[int] = (),
    refuses: Iterable[str] = (),
    body: Content | None = None,
) -> dict[str, Any]:
    """`answer` is the type of a JSON answer, or the content of another one. `also`: other media types in which it
    can be had; `without_body`: statuses of other answers; `refuses`: codes of problems beside the usual ones."""
    content = answer if isinstance(answer, dict) else {} if answer is None else content_of(JSON, answer.__name__)
    content |= {media: {"schema": {"type": "string"}} for media in also}
    answers: dict[int, Any] = {status: {"content": content} for status in statuses} if content else {}
    answers |= {status: {"description": "No body"} for status in without_body}
    extra = {} if body is None else {"openapi_extra": {"requestBody": body}}
    return {"summary": summary, "responses": answers | refusals(refuses), **extra}


def content_of(media: str, schema: str | Mapping[str, Any]) -> Content:
    """Content of one media type; `schema` is one, or the name of one of the document's."""
    return {media: {"schema": {"$ref": f"#/components/schemas/{schema}"} if isinstance(schema, str) else schema}}


def json_body(schema: str, examples: Mapping[str, Any], *, required: bool = True) -> Content:
    content = content_of(JSON, schema)
    content[JSON]["examples"] = {name: {"value": value} for name, value in examples.items()}
    return {"required": required, "content": content}


def refusals(codes: Iterable[str]) -> dict[int | str, Any]:
    """Answers with problems, by their status."""
    statuses = sorted({PROBLEMS[code][0] for code in codes})
    return {status: {"$ref": f"#/components/responses/Problem{status}"} for status in statuses}
