"""The OpenAPI document.

The framework knows paths and parameters. Bodies are read as bytes and answers are written by msgspec,
so what they look like is said here, in one table, from the types that they are made of.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.sse import EventSourceResponse
from pydantic import BaseModel

from api.http.auth import is_public
from api.http.problems import MEDIA_TYPE, PROBLEMS, Problem
from api.schemas.requests import CancelRequest, DrainRequest, NewTokenRequest, QuarantineRequest, SignInRequest
from api.system import openapi_examples
from jobs.model.spec import JobSpec
from shardyard.contract import responses
from shardyard.contract.report import Report
from shardyard.contract.report_diff import ReportDiff
from shardyard.contract.stream_events import EventName

_JSON, _TEXT, _BYTES, _ZIP = "application/json", "text/plain", "application/octet-stream", "application/zip"
_HTML, _SVG = "text/html", "image/svg+xml"
_REFS = "#/components/schemas/{name}"


class Stream:
    """An answer of server-sent events, whose shapes are in docs/api.md."""


@dataclass(frozen=True, slots=True)
class Body:
    model: type[BaseModel]
    examples: Mapping[str, Mapping[str, Any]]
    required: bool = True


@dataclass(frozen=True, slots=True)
class Operation:
    """What one method of one path does. `answers`: status -> type of a JSON answer, or None for one without a body.
    `also` are other media types in which the first answer can be had. `refuses`: error codes beside the usual ones.
    `takes` is the media type of a body that is not JSON."""

    summary: str
    answers: Mapping[int, Any]
    body: Body | None = None
    also: tuple[str, ...] = ()
    refuses: tuple[str, ...] = field(default=())
    takes: str = ""


_SPEC = Body(JobSpec, openapi_examples.SPECS)
_NEVER_RUN = ("unknown_bundle", "unknown_pool", "too_large_for_pool", "idempotency_conflict")

OPERATIONS: dict[tuple[str, str], Operation] = {
    ("post", "/v1/jobs"): Operation(
        "Submit a job", {201: responses.JobStatus, 200: responses.JobStatus}, _SPEC, refuses=_NEVER_RUN
    ),
    ("post", "/v1/plan"): Operation("Plan the split of a job spec", {200: responses.Plan}, _SPEC, (_TEXT,)),
    ("get", "/v1/jobs"): Operation("List jobs", {200: responses.JobList}, refuses=("malformed_cursor",)),
    ("post", "/v1/jobs/cancel"): Operation(
        "Cancel many jobs", {200: responses.CancelledJobs}, Body(CancelRequest, openapi_examples.CANCELS)
    ),
    ("get", "/v1/jobs/{job}"): Operation(
        "Show a job", {200: responses.JobStatus, 304: None}, refuses=("unreadable_spec",)
    ),
    ("delete", "/v1/jobs/{job}"): Operation("Delete a finished job", {204: None}, refuses=("job_not_finished",)),
    ("post", "/v1/jobs/{job}/cancel"): Operation(
        "Cancel a job", {202: responses.JobStatus}, refuses=("job_finished", "unreadable_spec")
    ),
    ("post", "/v1/jobs/{job}/resubmit"): Operation(
        "Submit a job's spec again",
        {201: responses.JobStatus, 200: responses.JobStatus},
        refuses=("invalid_spec", "unreadable_spec", *_NEVER_RUN),
    ),
    ("get", "/v1/jobs/{job}/attempts"): Operation("List a job's attempts", {200: responses.AttemptList}),
    ("get", "/v1/jobs/{job}/events"): Operation(
        "Follow a job", {200: Stream, 204: None}, refuses=("unreadable_spec", "too_many_streams")
    ),
    ("get", "/v1/jobs/{job}/splits"): Operation(
        "Show the split report", {200: Report, 304: None}, also=(_TEXT, _HTML, _SVG), refuses=("not_acceptable",)
    ),
    ("get", "/v1/jobs/{job}/splits/diff"): Operation(
        "Show two split reports side by side",
        {200: ReportDiff, 304: None},
        also=(_TEXT, _HTML),
        refuses=("not_acceptable",),
    ),
    ("get", "/v1/jobs/{job}/logs"): Operation(
        "Read log lines", {200: responses.LogPage}, also=(_TEXT,), refuses=("malformed_cursor",)
    ),
    ("get", "/v1/jobs/{job}/metrics"): Operation("Read a job's metrics", {200: responses.MetricList}),
    ("get", "/v1/jobs/{job}/artifacts"): Operation("List a job's files", {200: responses.ArtifactList}),
    ("get", "/v1/jobs/{job}/artifacts/{path}"): Operation(
        "Download one of a job's files", {200: bytes, 206: bytes, 304: None}, refuses=("range_not_satisfiable",)
    ),
    ("post", "/v1/bundles"): Operation(
        "Upload a bundle of code",
        {201: responses.BundleView, 200: responses.BundleView},
        refuses=("bad_bundle", "bundle_quota", "too_many_uploads"),
        takes=_ZIP,
    ),
    ("get", "/v1/bundles/{bundle}"): Operation("Show a bundle's files", {200: responses.BundleContents}),
    ("get", "/v1/events"): Operation("Follow all jobs", {200: Stream}, refuses=("too_many_streams",)),
    ("get", "/v1/pools"): Operation("List pools", {200: responses.PoolList}),
    ("get", "/v1/nodes"): Operation("List nodes", {200: responses.NodeList}),
    ("post", "/v1/nodes/{node}/drain"): Operation(
        "Give a node no new work",
        {200: responses.NodeView},
        Body(DrainRequest, openapi_examples.DRAINS, required=False),
    ),
    ("delete", "/v1/nodes/{node}/drain"): Operation("Give a node work again", {200: responses.NodeView}),
    ("post", "/v1/nodes/{node}/devices/{device}/quarantine"): Operation(
        "Give a device to nobody", {200: responses.NodeView}, Body(QuarantineRequest, openapi_examples.QUARANTINES)
    ),
    ("delete", "/v1/nodes/{node}/devices/{device}/quarantine"): Operation(
        "Bring a device back from quarantine", {200: responses.NodeView}
    ),
    ("delete", "/v1/nodes/{node}"): Operation("Forget a node that is gone", {204: None}, refuses=("node_in_use",)),
    ("get", "/v1/recipes"): Operation("List models, data sets, losses and optimizers", {200: responses.Json}),
    ("get", "/v1/tokens"): Operation("List tokens", {200: responses.TokenList}),
    ("post", "/v1/tokens"): Operation(
        "Make a token", {201: responses.NewToken}, Body(NewTokenRequest, openapi_examples.TOKENS)
    ),
    ("delete", "/v1/tokens/{token}"): Operation("Revoke a token", {204: None}),
    ("post", "/v1/sign-in"): Operation(
        "Begin a browser's session",
        {204: None},
        Body(SignInRequest, openapi_examples.SIGN_INS),
        refuses=("unauthenticated", "forbidden", "unavailable"),
    ),
    ("post", "/v1/sign-out"): Operation("End a browser's session", {204: None}, refuses=("forbidden", "unavailable")),
    ("get", "/v1/me"): Operation("Show whose token this is", {200: responses.Caller}),
    ("get", "/healthz"): Operation("Is this process up?", {200: responses.Json}),
    ("get", "/readyz"): Operation("Could a job start?", {200: responses.Readiness, 503: responses.Readiness}),
    ("get", "/metrics"): Operation("Metrics for Prometheus", {200: str}),
    ("get", "/openapi.json"): Operation("This document", {200: responses.Json}),
}


#: What one event of a stream is; docs/api.md has the shapes of `data` by the name of the event.
_EVENT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "event": {"type": "string", "enum": list(EventName)},
        "data": {"type": "string", "contentMediaType": _JSON},
        "id": {"type": "string"},
        "retry": {"type": "integer"},
    },
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
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": _schemas(),
            "responses": _problems(),
        },
    }


def _complete(described: dict[str, Any], method: str, path: str) -> None:
    """Put what the framework cannot know into its description of an operation."""
    operation = OPERATIONS[method, path]
    described["summary"] = operation.summary
    for parameter in described.get("parameters", ()):
        if parameter["name"] in openapi_examples.PARAMETERS:
            parameter["example"] = openapi_examples.PARAMETERS[parameter["name"]]
    if operation.body is not None:
        shown = {name: {"value": value} for name, value in operation.body.examples.items()}
        content = {"schema": _reference(operation.body.model.__name__), "examples": shown}
        described["requestBody"] = {"required": operation.body.required, "content": {_JSON: content}}
    if operation.takes:
        described["requestBody"] = {"required": True, "content": {operation.takes: {"schema": _schema_of(bytes)}}}
    if is_public(path):
        described["security"] = []
    refusals = {
        str(status): {"$ref": f"#/components/responses/{_problem_name(status)}"}
        for status in sorted({PROBLEMS[code][0] for code in _refusals(method, path, described, operation)})
    }
    described["responses"] = refusals | dict(_answers(operation))


def _answers(operation: Operation) -> Iterator[tuple[str, dict[str, Any]]]:
    for place, (status, kind) in enumerate(operation.answers.items()):
        answer: dict[str, Any] = {"description": operation.summary if kind else "No body"}
        if kind is not None:
            answer["content"] = {_media_type(kind): {"schema": _schema_of(kind)}}
            answer["content"] |= {
                media: {"schema": {"type": "string"}} for media in (operation.also if not place else ())
            }
        yield str(status), answer


def _refusals(method: str, path: str, described: Mapping[str, Any], operation: Operation) -> Iterator[str]:
    """Codes of the problems that an operation may answer with."""
    yield from ("bad_host", "bad_request", "headers_too_large")
    if not is_public(path):
        yield from ("unauthenticated", "forbidden", "unavailable")
    if "{" in path:
        yield "not_found"
    if described.get("parameters") or operation.body is not None:
        yield "invalid_request"
    if operation.body is not None:
        yield "malformed_json"
    if method != "get":
        yield from ("body_too_large", "body_timeout")
    yield from operation.refuses


def _problems() -> dict[str, Any]:
    by_status: dict[int, list[str]] = {}
    for code, (status, _) in PROBLEMS.items():
        by_status.setdefault(status, []).append(code)
    return {
        _problem_name(status): {
            "description": f"code: {', '.join(codes)}",
            "content": {MEDIA_TYPE: {"schema": _reference("Problem")}},
        }
        for status, codes in by_status.items()
    }


def _problem_name(status: int) -> str:
    return f"Problem{status}"


def _media_type(kind: Any) -> str:
    return {bytes: _BYTES, str: _TEXT, Stream: EventSourceResponse.media_type}.get(kind, _JSON)


def _schema_of(kind: Any) -> dict[str, Any]:
    if kind is Stream:
        return _EVENT
    if kind is bytes:
        return {"type": "string", "format": "binary"}
    return msgspec.json.schema_components([kind], ref_template=_REFS)[0][0]


def _reference(name: str) -> dict[str, str]:
    return {"$ref": _REFS.format(name=name)}


def _schemas() -> dict[str, Any]:
    """Every schema by its name: of bodies as pydantic has them, of answers as msgspec has them."""
    schemas: dict[str, Any] = {}
    for model in {operation.body.model for operation in OPERATIONS.values() if operation.body is not None}:
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= schema.pop("$defs", {}) | {model.__name__: schema}
    kinds = [
        kind for operation in OPERATIONS.values() for kind in operation.answers.values() if kind not in (None, Stream)
    ]
    _, answers = msgspec.json.schema_components([*kinds, Problem], ref_template=_REFS)
    assert not schemas.keys() & answers.keys(), "two types of one name"
    for name, answer in answers.items():
        if "description" in answer:
            answer["description"] = " ".join(answer["description"].split())
        if hasattr(responses, name):  # its defaults are for readers: this service sends every field
            answer["required"] = list(answer["properties"])
            for field in answer["properties"].values():
                field.pop("default", None)
    answers["JobStatus"]["properties"]["spec"] = _reference("JobSpec")
    return dict(sorted((schemas | answers).items()))
