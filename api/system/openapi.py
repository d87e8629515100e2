"""The OpenAPI document: what the framework knows of the routes, what they say (`api.http.operation_docs`), and the
schemas of all bodies and answers, from the types that they are made of."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, get_args

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from api.http.auth import is_public
from api.http.operation_docs import JSON, content_of, refusals
from api.http.problems import MEDIA_TYPE, PROBLEMS, Problem
from api.schemas import (
    account_requests,
    examples,
    fleet_requests,
    group_requests,
    job_requests,
    result_requests,
    webhook_requests,
)
from api.schemas.field_docs import describe_field
from api.system.operation_ids import OPERATION_IDS, TAGS
from jobs.model.spec import JobSpec
from jobs.model.spec_schema import SpecSchemaGenerator
from jobs.model.state import AttemptState, JobState, StateReason
from shardyard.contract import audit, fleet, gate, groups, joins, quotas, responses, scheduling, webhooks
from shardyard.contract.report import Report
from shardyard.contract.report_diff import ReportDiff

_REQUESTS = (account_requests, fleet_requests, group_requests, job_requests, result_requests, webhook_requests)
_BODIES: list[type[BaseModel]] = [
    JobSpec,
    *(
        kind
        for module in _REQUESTS
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, BaseModel) and kind.__module__ == module.__name__
    ),
]
_ANSWERS = {
    name: kind
    for contract in (responses, groups, fleet, gate, joins, audit, webhooks, quotas, scheduling)
    for name, kind in vars(contract).items()
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind is not responses.Answer
}
_REFS = "#/components/schemas/{name}"
#: Fields of answers that are one of a few words, though they are typed as text: a client of an earlier version must be
#: able to read words that it does not know.
_WORDS: dict[str, type[StrEnum]] = {
    **dict.fromkeys(
        ("JobSummary.state", "ListedJob.state", "JobStatus.state", "ResolvedJob.state", "JobReference.state"), JobState
    ),
    "JobExplanation.state": JobState,
    "AttemptView.state": AttemptState,
    "ReasonView.code": StateReason,
}


def document(app: FastAPI) -> dict[str, Any]:
    """The document of `app`, made once."""
    if app.openapi_schema is None:
        app.openapi_schema = _document(app)
    return app.openapi_schema


def _document(app: FastAPI) -> dict[str, Any]:
    found = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    paths = {path.replace("{path:path}", "{path}"): methods for path, methods in found["paths"].items()}
    for path, methods in paths.items():
        for method, described in methods.items():
            _complete(described, method, path)
    return {
        "openapi": found["openapi"],
        "info": found["info"],
        "tags": [{"name": name, "description": words} for name, words in TAGS.items()],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": _schemas(),
            "responses": _problems(),
        },
    }


def _complete(described: dict[str, Any], method: str, path: str) -> None:
    """Add what follows from an operation's method, path and parameters."""
    described["operationId"] = OPERATION_IDS.get((method.upper(), path), described["operationId"])
    for parameter in described.get("parameters", ()):
        parameter.setdefault("description", describe_field("parameters", parameter["name"]))
        if parameter["name"] in examples.PARAMETERS:
            parameter["example"] = examples.PARAMETERS[parameter["name"]]
    if is_public(path):
        described["security"] = []
    usual = refusals(_usual_refusals(described, method, path))
    described["responses"] |= {str(status): problem for status, problem in usual.items()}


def _usual_refusals(described: Mapping[str, Any], method: str, path: str) -> Iterator[str]:
    """Codes of the problems that any operation like this may answer with."""
    has_body = JSON in described.get("requestBody", {"content": ()})["content"]
    yield from ("bad_host", "bad_request", "headers_too_large")
    if not is_public(path):
        yield from ("unauthenticated", "forbidden", "unavailable")
    if "{" in path:
        yield "not_found"
    if described.get("parameters") or has_body:
        yield "invalid_request"
    if has_body:
        yield "malformed_json"
    if method != "get":
        yield from ("body_too_large", "body_timeout")


def _problems() -> dict[str, Any]:
    by_status: dict[int, list[str]] = {}
    for code, (status, _) in PROBLEMS.items():
        by_status.setdefault(status, []).append(code)
    return {
        f"Problem{status}": {"description": f"code: {', '.join(codes)}", "content": content_of(MEDIA_TYPE, "Problem")}
        for status, codes in by_status.items()
    }


def _schemas() -> dict[str, Any]:
    """Every schema by its name: pydantic's for bodies, msgspec's for answers."""
    schemas: dict[str, Any] = {}
    for model in _BODIES:
        schema = model.model_json_schema(
            ref_template=_REFS.replace("name", "model"), schema_generator=SpecSchemaGenerator
        )
        schemas |= schema.pop("$defs", {}) | {model.__name__: schema}
    _, answers = msgspec.json.schema_components([*_ANSWERS.values(), Report, ReportDiff, Problem], ref_template=_REFS)
    assert not schemas.keys() & answers.keys(), "two types of one name"
    for name, answer in answers.items():
        _mark_times(answer, _ANSWERS.get(name))
        if "description" in answer:
            answer["description"] = " ".join(answer["description"].split())
        answered = _ANSWERS.get(name)
        # The defaults of answers are for readers, and this service sends every field, but for those of reports.
        if answered is not None and not answered.__struct_config__.omit_defaults:
            answer["required"] = list(answer["properties"])
            for field in answer["properties"].values():
                field.pop("default", None)
    for name in ("JobStatus", "ResolvedJob"):
        answers[name]["properties"]["spec"] = {"$ref": _REFS.format(name="JobSpec")}
    found = schemas | answers | {words.__name__: _enum_of(words) for words in set(_WORDS.values())}
    for name, schema in found.items():
        _complete_lists(schema)
        for field, described in schema.get("properties", {}).items():
            _describe_field(name, field, described)
    return dict(sorted(found.items()))


def _complete_lists(schema: Any) -> None:
    """Say of lists of anything that they are, which msgspec leaves out."""
    if isinstance(schema, list):
        for part in schema:
            _complete_lists(part)
    elif isinstance(schema, dict):
        if schema.get("type") == "array" and "prefixItems" not in schema:
            schema.setdefault("items", {})
        for part in schema.values():
            _complete_lists(part)


def _mark_times(answer: dict[str, Any], kind: type[msgspec.Struct] | None) -> None:
    """Say of fields that are times that they are; msgspec says it only of those whose type demands a time zone."""
    for field in msgspec.structs.fields(kind) if kind is not None else ():
        if datetime in (field.type, *get_args(field.type)):
            described = answer["properties"][field.encode_name]
            texts = [one for one in (described, *described.get("anyOf", ())) if one.get("type") == "string"]
            texts[0]["format"] = "date-time"


def _enum_of(words: type[StrEnum]) -> dict[str, Any]:
    described = {"type": "string", "title": words.__name__, "description": " ".join((words.__doc__ or "").split())}
    return described | {"enum": [str(word) for word in words]}


def _describe_field(kind: str, field: str, described: dict[str, Any]) -> None:
    """Add what a field is, and the words that it may have. A reference is wrapped, since generators of clients drop
    what stands beside one."""
    words = _WORDS.get(f"{kind}.{field}")
    if words is not None:
        described.clear()
        described["allOf"] = [{"$ref": _REFS.format(name=words.__name__)}]
    elif "$ref" in described:
        described["allOf"] = [{"$ref": described.pop("$ref")}]
    if isinstance(described.get("default"), dict):  # generators cannot make it, and its fields have their own
        del described["default"]
    description = describe_field(kind, field)
    if description is not None:
        described.setdefault("description", description)
