"""Dependencies that all routes share: the caller, their service, the body, and checked ids."""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Header, Path, Query, Request
from starlette.requests import ClientDisconnect

from api.http.audit import CHANGES
from api.http.audit_log import AuditLog
from api.http.auth import SAFE, Authenticator, Principal, is_public
from api.http.conventions.query_names import refuse_unknown_parameters
from api.http.middleware import RATE_LIMIT_FIELDS
from api.http.rate_limits import RateLimiter
from api.http.request_turns import RequestTurns
from api.http.responses import versions_of
from api.http.tenant_slots import current_tenant
from jobs.files.log_file import STREAMS
from jobs.model.trace_context import TraceContext, parse_traceparent
from jobs.store.accounts.tokens import Scope
from shardyard.contract.errors import FieldError, Forbidden, InvalidRequest, NotFound, ShardyardError

T = TypeVar("T")


class UnsupportedMediaType(ShardyardError):
    """The body is not said to be JSON."""

    code = "unsupported_media_type"


MAX_KEY_LENGTH = 255
#: Holds the id of a browser's session.
SESSION_COOKIE = "shardyard_session"
#: Routes for tokens of nodes, which have slots instead of limits on requests.
NODE_FILES = "/v1/node/files"
#: Routes for tokens to join with, and no others.
JOINS = "/v1/node/join"
#: Requests with a body that only read.
READS = frozenset({("POST", "/v1/jobs/{job}/gate")})
#: Of a JSON body; one without a type counts as JSON.
_JSON = ("application/json", "", "text/json")
_OF_CURL = "application/x-www-form-urlencoded"
_JOB_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


async def authenticate(request: Request) -> None:
    """Dependency of the whole application: no route is reached without passing here."""
    if (request.method, request.scope["route"].path) in CHANGES:
        audit_log: AuditLog = request.app.state.audit_log
        audit_log.require_room()
    if is_public(request.scope["path"]):
        refuse_unknown_parameters(request)
        return
    authenticator: Authenticator = request.app.state.authenticator
    header = header_of(request.scope, b"authorization")
    session = request.cookies.get(SESSION_COOKIE) if header is None else None
    if session is not None:
        check_origin(request)
        principal = await authenticator.authenticate_session(session)
    else:
        principal = await authenticator.authenticate_header(header)
    brings_files = bool(principal.node) and request.scope["route"].path.startswith(NODE_FILES)
    limiter: RateLimiter = request.app.state.rate_limiter
    if limiter.is_limited and not brings_files:
        fields = limiter.count_locally(principal.token)
        if fields is None:
            fields = await limiter.count_request(principal.tenant, principal.token)
        request.scope[RATE_LIMIT_FIELDS] = fields
    tenant = f"node/{principal.node}" if principal.node else principal.tenant
    current_tenant.set(tenant)
    if not brings_files:
        turns: RequestTurns = request.app.state.request_turns
        await turns.take_turn(tenant, request.scope)
    request.state.authenticate_header = principal
    if not (brings_files or request.scope["route"].path.startswith(JOINS)):
        reads = request.method in SAFE or (request.method, request.scope["route"].path) in READS
        principal.require_scope(Scope.READ if reads else Scope.SUBMIT)
    if request.scope["query_string"]:
        refuse_unknown_parameters(request)


def header_of(scope: Mapping[str, Any], name: bytes) -> str | None:
    """A header of a request; `name` in lower case."""
    return next((value.decode("latin-1") for known, value in scope["headers"] if known == name), None)


def check_origin(request: Request) -> None:
    """A browser sends a cookie with whatever page asks it to: what changes something must come from our own.

    Raises:
        Forbidden: it comes from elsewhere, or does not say from where.
    """
    if request.method in SAFE:
        return
    origin = request.headers.get("origin", "")
    if origin.partition("://")[2] != request.headers.get("host", ""):
        raise Forbidden("a session is valid only for the pages of this service; send a token instead")


# All of them are `async`, though they wait for nothing: the framework calls any other dependency in a thread.


async def principal(request: Request) -> Principal:
    principal: Principal = request.state.authenticate_header
    return principal


def _holder_of(scope: Scope) -> Callable[[Request], Awaitable[Principal]]:
    """A dependency that is a caller whose token has a scope."""

    async def holder(request: Request) -> Principal:
        who = await principal(request)
        who.require_scope(scope)
        return who

    return holder


def service_of(kind: type[T]) -> Callable[[Request], Awaitable[T]]:
    """A dependency that hands a route the application's instance of a service class."""

    async def service(request: Request) -> T:
        services: Mapping[type, Any] = request.app.state.services
        return services[kind]  # type: ignore[no-any-return]  # the application keeps each under its class

    return service


async def job_id(job: Annotated[str, Path(description="id of a job")]) -> str:
    return checked_id(job)


async def _other_job_id(against: Annotated[str, Query(description="id of the other job")]) -> str:
    return checked_id(against)


def checked_id(given: str, kind: str = "job") -> str:
    """An id that is not one of ours is simply not found, and never reaches a key or a path."""
    if _JOB_ID.fullmatch(given) is None:
        raise NotFound(f"there is no {kind} {given[:64]!r}")
    return given


async def _bundle_id(bundle: Annotated[str, Path(description="id of a bundle")]) -> str:
    """As `checked_id`: what is not of the form of an id reaches no key and no path."""
    if re.fullmatch(r"sha256:[0-9a-f]{64}", bundle) is None:
        raise NotFound(f"there is no bundle {bundle[:80]!r}")
    return bundle


async def body(request: Request) -> bytes:
    """All of it. The framework has it, too, by two generators, where most bodies come in one piece."""
    parts, more = [], True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    content = b"".join(parts)
    if content:
        _require_json(header_of(request.scope, b"content-type"), content)
    return content


def _require_json(given: str | None, content: bytes) -> None:
    """Raises UnsupportedMediaType unless a body is said to be JSON. What curl says of every body counts as well, if the
    body looks like an object."""
    media = "" if given is None else given.partition(";")[0].strip().lower()
    if media in _JSON or media.endswith("+json") or (media == _OF_CURL and content.lstrip()[:1] == b"{"):
        return
    raise UnsupportedMediaType(
        f"this takes JSON, and the Content-Type is {media[:100]!r}; send the body with `Content-Type: application/json`"
    )


async def idempotency_key(key: Annotated[str, Header(alias="Idempotency-Key", max_length=MAX_KEY_LENGTH)] = "") -> str:
    if not (key.isascii() and key.isprintable()):
        raise InvalidRequest(
            "the Idempotency-Key cannot be used",
            fields=(FieldError("Idempotency-Key", "send printable ASCII characters only, for example a UUID"),),
        )
    return key


IfMatchHeader = Annotated[
    str | None,
    Header(alias="If-Match", max_length=1000, description="ETag of what is to be changed; 412 if it has changed since"),
]


async def _versions(tags: IfMatchHeader = None) -> frozenset[int] | None:
    return None if tags is None or tags.strip() == "*" else versions_of(tags)


async def _peer_address(request: Request) -> str:
    return "" if request.client is None else request.client.host


async def trace_context(request: Request) -> TraceContext | None:
    """The span that a request belongs to, by its header `traceparent`. One that is not valid, or not the only one, is
    ignored."""
    found = request.headers.getlist("traceparent")
    return parse_traceparent(found[0]) if len(found) == 1 else None


async def wants_text(request: Request) -> bool:
    """Whether the Accept header puts text/plain before JSON."""
    accept = request.headers.get("accept", "")
    kinds = [part.partition(";")[0].strip().lower() for part in accept.split(",")]
    return next((kind == "text/plain" for kind in kinds if kind in ("text/plain", "application/json")), False)


Caller = Annotated[Principal, Depends(principal)]
Admin = Annotated[Principal, Depends(_holder_of(Scope.ADMIN))]
Node = Annotated[Principal, Depends(_holder_of(Scope.NODE))]
Joining = Annotated[Principal, Depends(_holder_of(Scope.JOIN))]
JobId = Annotated[str, Depends(job_id)]
BundleId = Annotated[str, Depends(_bundle_id)]
OtherJobId = Annotated[str, Depends(_other_job_id)]
Body = Annotated[bytes, Depends(body)]
#: Those that a job may have which is to be changed; None: any.
Versions = Annotated[frozenset[int] | None, Depends(_versions)]
IdempotencyKey = Annotated[str, Depends(idempotency_key)]
PeerAddress = Annotated[str, Depends(_peer_address)]
CallersTrace = Annotated[TraceContext | None, Depends(trace_context)]
WantsText = Annotated[bool, Depends(wants_text)]
#: Streams of a log; `api.data.log_streams` reads it, and words the refusal of what the pattern leaves out.
LogStreamNames = Annotated[
    str,
    Query(
        max_length=100,
        description="all, or some of stdout, stderr, shard, service, comma-separated; left out: all for a "
        "recipe, all but shard for a script",
        json_schema_extra={"pattern": f"^(|all|({'|'.join(STREAMS)})(,({'|'.join(STREAMS)}))*)$"},
    ),
]
