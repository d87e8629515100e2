"""Every route with its parameters, body and answers, from the OpenAPI document that the service shows."""

import re
from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI

from api.app import ROUTERS
from api.system import openapi

Document = dict[str, Any]


def text() -> str:
    app = FastAPI(title="Shardyard")
    for router in ROUTERS:
        app.include_router(router)
    document = openapi.document(app)
    by_tag: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            tag = (operation.get("tags") or ["other"])[0]
            by_tag.setdefault(tag, []).append("\n".join(_operation(document, method.upper(), path, operation)))
    parts = [f"## {tag[:1].upper()}{tag[1:]}\n\n" + "\n".join(found) for tag, found in by_tag.items()]
    return (
        "# Routes\n\n"
        "All routes, from the OpenAPI document; a running service has it at `/openapi.json`, and shows it at `/docs`. "
        "[The HTTP API](../api.md) explains what holds for all of them.\n\n" + "\n".join(parts)
    )


def _operation(document: Document, method: str, path: str, operation: Document) -> Iterator[str]:
    yield f"### {method} {path}\n"
    if words := operation.get("description") or operation.get("summary"):
        yield f"{words.strip()}\n"
    if rows := [_parameter(document, given) for given in operation.get("parameters", ())]:
        yield "\n".join(["| parameter | in | type | means |", "|---|---|---|---|", *rows]) + "\n"
    body = operation.get("requestBody", {}).get("content", {})
    if body:
        kinds = ", ".join(f"`{media}`{_named(content)}" for media, content in body.items())
        yield f"Body: {kinds}.\n"
    answers = [
        f"`{status}`{''.join(_named(content) for content in list(answer.get('content', {}).values())[:1])}"
        for status, answer in operation["responses"].items()
        if "$ref" not in answer
    ]
    yield f"Answers: {', '.join(answers)}.\n"


def _parameter(document: Document, given: Document) -> str:
    if "$ref" in given:
        given = document["components"]["parameters"][given["$ref"].rpartition("/")[2]]
    required = ", required" if given.get("required") and given["in"] != "path" else ""
    return f"| `{given['name']}` | {given['in']}{required} | {_type(given.get('schema', {}))} | {_cell(given)} |"


def _type(schema: Document) -> str:
    if "$ref" in schema:
        return f"`{schema['$ref'].rpartition('/')[2]}`"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if alternatives := schema.get("anyOf"):
        return " or ".join(dict.fromkeys(_type(part) for part in alternatives if part.get("type") != "null"))
    return str(schema.get("type", "any"))


def _named(content: Document) -> str:
    reference = content.get("schema", {}).get("$ref")
    return f" (`{reference.rpartition('/')[2]}`)" if reference else ""


def _cell(given: Document) -> str:
    words = given.get("description") or given.get("schema", {}).get("description") or ""
    return re.sub(r"\s+", " ", words).replace("|", "\\|").replace("<", "&lt;").strip()
