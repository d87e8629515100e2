"""Errors as RFC 9457 `application/problem+json`, and the one table from error codes to HTTP statuses."""

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus

import msgspec
import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from api.http.conventions.methods import allowed_methods
from jobs.model import validation
from jobs.support.logging_config import current_request
from shardyard.contract.errors import AmbiguousReference, FieldError, ShardyardError
from shardyard.contract.responses import JobReference

log = structlog.get_logger(__name__)

MEDIA_TYPE = "application/problem+json"
#: Where this service explains each problem; its `type` is the address of its page.
PAGES = "/docs/problems"
RETRY_AFTER_SECONDS = 2
#: Of a full disk, which somebody has to make room on.
FULL_DISK_SECONDS = 30


class BadHost(ShardyardError):
    """The Host header has a name that this service does not answer to (protection against DNS rebinding)."""

    code = "bad_host"


class BodyTimeout(ShardyardError):
    """The body did not arrive in time."""

    code = "body_timeout"


class StreamEnded(Exception):
    """A client requested a stream of events after its last event."""


class HeadersTooLarge(ShardyardError):
    """More header lines, or longer ones, than any client of ours sends."""

    code = "headers_too_large"


#: Error code -> status and title. A code that is missing here is a bug, and shown as `internal_error`.
PROBLEMS: dict[str, tuple[int, str]] = {
    "invalid_request": (422, "The request is not valid"),
    "invalid_spec": (422, "The job spec is not valid"),
    "not_supported": (422, "Not supported in this version"),
    "unknown_pool": (422, "Unknown pool"),
    "too_large_for_pool": (422, "Too large for the pool"),
    "unknown_bundle": (422, "Unknown bundle"),
    "unknown_secret": (422, "Unknown secret"),
    "wrong_digest": (422, "The file is not what its digest says"),
    "bad_bundle": (422, "The bundle cannot be used"),
    "malformed_cursor": (400, "Malformed cursor"),
    "malformed_json": (400, "Malformed JSON"),
    "bad_host": (400, "Host not allowed"),
    "bad_request": (400, "Bad request"),
    "body_too_large": (413, "Body too large"),
    "unsupported_media_type": (415, "The body is not JSON"),
    "range_not_satisfiable": (416, "The range is outside the file"),
    "body_timeout": (408, "The body did not arrive in time"),
    "too_many_uploads": (429, "Too many uploads at the moment"),
    "too_many_transfers": (429, "Too many requests of a node at the moment"),
    "too_many_streams": (429, "Too many event streams"),
    "too_many_reads": (429, "Too many large reads at the moment"),
    "rate_limited": (429, "Too many requests"),
    "quota_exceeded": (429, "The quota is used up"),
    "over_quota": (403, "More than the quota allows"),
    "store_full": (503, "No room for anything new"),
    "headers_too_large": (431, "Headers too large"),
    "unauthenticated": (401, "A valid token is needed"),
    "sign_in_failed": (401, "The sign-in did not succeed"),
    "forbidden": (403, "The token lacks the scope"),
    "files_in_bucket": (403, "Nodes upload their files to a bucket"),
    "no_access": (403, "No access to this service"),
    "not_found": (404, "Not found"),
    "method_not_allowed": (405, "Method not allowed"),
    "precondition_failed": (412, "It has changed meanwhile"),
    "not_acceptable": (406, "Not acceptable"),
    "conflict": (409, "Conflict"),
    "wrong_offset": (409, "The upload goes on elsewhere"),
    "ambiguous_reference": (409, "Several jobs match"),
    "idempotency_conflict": (409, "Idempotency key used for another request"),
    "job_finished": (409, "The job has ended"),
    "bundle_needed": (409, "A job needs the bundle"),
    "job_not_finished": (409, "The job has not ended"),
    "job_not_running": (409, "The job is not running"),
    "not_comparable": (409, "The jobs cannot be compared"),
    "profile_running": (409, "The job is being profiled"),
    "node_in_use": (409, "The node is in use"),
    "unboxed_nodes": (409, "Nodes put no box around jobs"),
    "bundle_quota": (409, "No room for the bundle"),
    "secret_quota": (409, "Too many secrets"),
    "webhook_quota": (409, "No room for the webhook"),
    "unreadable_spec": (409, "The job was stored by another version"),
    "storage_mismatch": (503, "The storage directory does not match"),
    "secret_key_unusable": (503, "The keys of secrets cannot be used"),
    "format_mismatch": (503, "The control Redis belongs to another version"),
    "storage_low": (507, "Too little room on the service's disk"),
    "storage_unavailable": (503, "The service's bucket does not answer"),
    "unavailable": (503, "Temporarily unavailable"),
    "internal_error": (500, "Internal error"),
}

#: Statuses that the framework raises by itself, and their codes.
_FRAMEWORK_CODES: dict[int, str] = {
    400: "bad_request",
    401: "unauthenticated",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    406: "not_acceptable",
    413: "body_too_large",
}

_STATUS_HEADERS: dict[int, Mapping[str, str]] = {
    401: {"WWW-Authenticate": "Bearer"},
    408: {"Connection": "close"},
    413: {"Connection": "close"},
    429: {"Retry-After": str(RETRY_AFTER_SECONDS), "Connection": "close"},
    503: {"Retry-After": str(RETRY_AFTER_SECONDS)},
    507: {"Retry-After": str(FULL_DISK_SECONDS)},
}


class Problem(msgspec.Struct, omit_defaults=True):
    type: str
    title: str
    status: int
    detail: str
    code: str
    instance: str
    errors: list[FieldError] = msgspec.field(default_factory=list)
    candidates: list[JobReference] = msgspec.field(default_factory=list)
    request_id: str = ""


def problem_response(
    code: str,
    detail: str,
    path: str,
    fields: tuple[FieldError, ...] = (),
    candidates: tuple[JobReference, ...] = (),
) -> Response:
    """The answer for an error code; an unknown code becomes an internal error without details."""
    if code not in PROBLEMS:
        code, detail, fields = "internal_error", "an internal error occurred; the service's log has the details", ()
    status, title = PROBLEMS[code]
    problem = Problem(
        type=f"{PAGES}/{code}",
        title=title,
        status=status,
        detail=detail,
        code=code,
        instance=path,
        errors=list(fields),
        candidates=list(candidates),
        request_id=current_request.get(),
    )
    return Response(msgspec.json.encode(problem), status, _STATUS_HEADERS.get(status), MEDIA_TYPE)


def error_response(error: ShardyardError, path: str) -> Response:
    candidates = error.candidates if isinstance(error, AmbiguousReference) else ()
    response = problem_response(error.code, error.message, path, error.fields, candidates)
    if error.retry_after is not None:
        response.headers["Retry-After"] = str(error.retry_after)
    return response


def install_handlers(app: FastAPI) -> None:
    """Answer every error of `app` as a problem."""
    for kind, handler in _HANDLERS.items():
        app.add_exception_handler(kind, handler)
    app.add_exception_handler(Exception, _handle_bug)


async def handle_error(request: Request, error: Exception) -> Response:
    """The answer to an error, as the application gives it."""
    handler = next((handler for kind, handler in _HANDLERS.items() if isinstance(error, kind)), _handle_bug)
    return await handler(request, error)


async def _handle_service_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ShardyardError)
    if error.code not in PROBLEMS or PROBLEMS[error.code][0] == HTTPStatus.INTERNAL_SERVER_ERROR:
        log.error("request_failed", path=request.url.path, exc_info=error)
    return error_response(error, request.url.path)


async def _handle_validation_error(request: Request, error: Exception) -> Response:
    """FastAPI's validation errors, which concern the query and the path."""
    assert isinstance(error, RequestValidationError)
    fields = validation.field_errors([{**detail, "loc": detail["loc"][1:]} for detail in error.errors()])
    return problem_response("invalid_request", "the request's parameters are not valid", request.url.path, fields)


async def _handle_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = _FRAMEWORK_CODES.get(error.status_code, "internal_error")
    path, headers = request.url.path, dict(error.headers or {})
    detail = str(error.detail)
    if error.status_code == HTTPStatus.NOT_FOUND:
        detail = f"there is nothing at {path}"
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = allowed = ", ".join(allowed_methods(request.app.state.routes, path))
        detail = f"{request.method} is not allowed at {path}; allowed: {allowed}"
    response = problem_response(code, detail, path)
    response.headers.update(headers)
    return response


async def _handle_disconnect(request: Request, _error: Exception) -> Response:
    """The client disconnected while it sent its body: it cannot read this answer, and no error is logged."""
    return problem_response("bad_request", "the connection closed before the body was complete", request.url.path)


async def _handle_stream_end(_request: Request, _error: Exception) -> Response:
    """204 makes browsers stop reconnecting to a stream."""
    return Response(status_code=204)


async def _handle_bug(request: Request, error: Exception) -> Response:
    log.error("request_failed", method=request.method, path=request.url.path, exc_info=error)
    return problem_response(
        "internal_error", "an internal error occurred; the service's log has the details", request.url.path
    )


_HANDLERS: dict[type[Exception], Callable[[Request, Exception], Awaitable[Response]]] = {
    ShardyardError: _handle_service_error,
    RequestValidationError: _handle_validation_error,
    HTTPException: _handle_http_error,
    ClientDisconnect: _handle_disconnect,
    StreamEnded: _handle_stream_end,
}
