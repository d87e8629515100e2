"""Jobs: submit, look, cancel, delete."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from api import answers
from api.deps import Backend, Body, Caller, IdempotencyKey, JobId
from jobs.errors import FieldError, InvalidRequest
from jobs.state import State
from jobs.store import JobFilter

router = APIRouter(tags=["jobs"])


@router.post("/v1/jobs", status_code=201)
async def submit(who: Caller, service: Backend, body: Body, key: IdempotencyKey) -> Response:
    submitted = await service.submit(who, body, key)
    location = {"Location": submitted.status.links["self"]}
    return answers.json(submitted.status, 201 if submitted.created else 200, location)


@router.post("/v1/plan")
async def plan(service: Backend, body: Body) -> Response:
    return answers.json(service.plan(body))


@router.get("/v1/jobs")
async def list_jobs(
    who: Caller,
    service: Backend,
    state: State | None = None,
    pool: Annotated[str, Query(max_length=63)] = "",
    label: Annotated[str, Query(max_length=320, description="key=value")] = "",
    name: Annotated[str, Query(max_length=200)] = "",
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: str = "",
) -> Response:
    chosen = JobFilter(state, pool, _label(label), name)
    return answers.json(await service.list_jobs(who, chosen, cursor, limit))


@router.get("/v1/jobs/{job}")
async def show(request: Request, who: Caller, service: Backend, job: JobId) -> Response:
    return answers.tagged(request, await service.status(who, job))


@router.post("/v1/jobs/{job}/cancel", status_code=202)
async def cancel(who: Caller, service: Backend, job: JobId) -> Response:
    return answers.json(await service.cancel(who, job), 202)


@router.delete("/v1/jobs/{job}", status_code=204)
async def delete(who: Caller, service: Backend, job: JobId) -> Response:
    await service.delete(who, job)
    return Response(status_code=204)


@router.get("/v1/jobs/{job}/attempts")
async def attempts(who: Caller, service: Backend, job: JobId) -> Response:
    return answers.json(await service.attempts(who, job))


def _label(text: str) -> tuple[str, str] | None:
    if not text:
        return None
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise InvalidRequest("`label` cannot be used", fields=(FieldError("label", "write it as key=value"),))
    return key, value
