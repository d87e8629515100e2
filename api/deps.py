"""What routes ask for: who is calling, the service behind them, and the parts of a request that need a check."""

import uuid
from typing import Annotated

from fastapi import Depends, Header, Path, Query, Request

from api.auth import PUBLIC, SAFE, Authenticator, Principal
from api.service import Service
from jobs.errors import FieldError, InvalidRequest, NotFound
from jobs.tokens import Scope


async def authenticate(request: Request) -> None:
    """Dependency of the whole application: no route is reached without passing here."""
    if request.scope["path"] in PUBLIC:
        return
    authenticator: Authenticator = request.app.state.authenticator
    principal = await authenticator.principal(request.headers.get("authorization"))
    principal.need(Scope.READ if request.method in SAFE else Scope.SUBMIT)
    request.state.principal = principal


def _principal(request: Request) -> Principal:
    principal: Principal = request.state.principal
    return principal


def _admin(request: Request) -> Principal:
    principal = _principal(request)
    principal.need(Scope.ADMIN)
    return principal


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def _job_id(job: Annotated[str, Path(description="id of a job")]) -> str:
    return _checked_id(job)


def _other_job_id(against: Annotated[str, Query(description="id of the other job")]) -> str:
    return _checked_id(against)


def _checked_id(job: str) -> str:
    """An id that is not one of ours is simply not found, and never reaches a key or a path."""
    try:
        given = uuid.UUID(job)
    except ValueError:
        given = None
    if given is None or str(given) != job:
        raise NotFound(f"there is no job {job[:64]!r}")
    return job


async def _body(request: Request) -> bytes:
    return await request.body()


def _idempotency_key(key: Annotated[str, Header(alias="Idempotency-Key", max_length=255)] = "") -> str:
    if not (key.isascii() and key.isprintable()):
        raise InvalidRequest(
            "the Idempotency-Key cannot be used",
            fields=(FieldError("Idempotency-Key", "send printable ASCII characters only, for example a UUID"),),
        )
    return key


def wants_text(request: Request) -> bool:
    """Whether the Accept header puts text/plain before JSON."""
    accept = request.headers.get("accept", "")
    kinds = [part.partition(";")[0].strip().lower() for part in accept.split(",")]
    return next((kind == "text/plain" for kind in kinds if kind in ("text/plain", "application/json")), False)


Caller = Annotated[Principal, Depends(_principal)]
Admin = Annotated[Principal, Depends(_admin)]
Backend = Annotated[Service, Depends(_service)]
JobId = Annotated[str, Depends(_job_id)]
OtherJobId = Annotated[str, Depends(_other_job_id)]
Body = Annotated[bytes, Depends(_body)]
IdempotencyKey = Annotated[str, Depends(_idempotency_key)]
WantsText = Annotated[bool, Depends(wants_text)]
