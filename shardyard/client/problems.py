"""Reads exceptions from error answers: the classes of `shardyard.contract.errors`, chosen by the `code`."""

from collections.abc import Iterator

import msgspec

from shardyard.client.transport import HttpAnswer
from shardyard.contract.errors import (
    AmbiguousReference,
    BodyTooLarge,
    Conflict,
    FieldError,
    Forbidden,
    InvalidRequest,
    NotFound,
    ShardyardError,
    Unauthenticated,
    Unavailable,
)
from shardyard.contract.responses import JobReference

#: For answers that carry no code of ours, for example a proxy's. 429, 502, 503, 504: another time.
_BY_STATUS: dict[int, type[ShardyardError]] = {
    400: InvalidRequest,
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    413: BodyTooLarge,
    422: InvalidRequest,
    **dict.fromkeys((429, 502, 503, 504), Unavailable),
}


class _WrongField(msgspec.Struct):
    field: str = ""
    message: str = ""


class _ProblemBody(msgspec.Struct):
    code: str = ""
    detail: str = ""
    title: str = ""
    errors: list[_WrongField] = []
    candidates: tuple[JobReference, ...] = ()


def _walk_errors(root: type[ShardyardError]) -> Iterator[type[ShardyardError]]:
    yield root
    for child in root.__subclasses__():
        yield from _walk_errors(child)


_BY_CODE = {kind.code: kind for kind in _walk_errors(ShardyardError) if kind.__module__ == ShardyardError.__module__}


def error_of(answer: HttpAnswer) -> ShardyardError:
    """The answer's problem+json as an exception. A code that this version does not know keeps its name in `code`."""
    try:
        problem = msgspec.json.decode(answer.body, type=_ProblemBody)
    except (msgspec.DecodeError, UnicodeDecodeError):
        problem = _ProblemBody()
    kind = _BY_CODE.get(problem.code) or _BY_STATUS.get(answer.status, ShardyardError)
    message = (
        problem.detail
        or problem.title
        or f"the service answered {answer.status} {_status_phrase(answer.status)}".strip()
    )
    if kind is AmbiguousReference:
        return AmbiguousReference(message, problem.candidates)
    error = kind(message, fields=tuple(FieldError(wrong.field, wrong.message) for wrong in problem.errors))
    if problem.code and problem.code != kind.code:
        vars(error)["code"] = problem.code  # it is of the class for everyone else
    return error


def retry_after(answer: HttpAnswer) -> float | None:
    """Seconds that the service asks to wait before the request is sent again."""
    try:
        seconds = float(answer.headers.get("retry-after", ""))
    except ValueError:
        return None  # absent, or a date: this service sends none
    return seconds if 0 <= seconds < float("inf") else None


def _status_phrase(status: int) -> str:
    from http import HTTPStatus

    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
