"""Routes of jobs: submit, plan, list, show, cancel, delete."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.routing import APIRoute

from api.http import deps, responses
from api.http.deps import Body, Caller, CallersTrace, IdempotencyKey, JobId, Versions, WantsText, service_of
from api.http.operation_docs import TEXT, describe, json_body
from api.jobs import plan_service
from api.jobs.job_choice import Archived, ChosenJobs, Search
from api.jobs.list_order import NEWEST, Order
from api.jobs.service import MAX_WAIT_SECONDS, JobService, SubmittedJob
from api.schemas import examples
from api.schemas.job_requests import parse_spec
from shardyard.contract.responses import AttemptList, CancelledJobs, JobList, JobStatus, Plan

_job_service = service_of(JobService)
ServiceDep = Annotated[JobService, Depends(_job_service)]
router = APIRouter(tags=["jobs"])

_SPEC = json_body("JobSpec", examples.SPECS)
_REFUSED = (
    *("unknown_bundle", "unknown_secret", "unknown_pool", "too_large_for_pool"),
    *("idempotency_conflict", "storage_low", "store_full", "over_quota", "quota_exceeded"),
)
#: Of changes that a job may be past.
_UNCHANGED = ("job_finished", "unreadable_spec", "precondition_failed")


@router.post(
    "/v1/jobs",
    status_code=201,
    **describe("Submit a job", JobStatus, statuses=(201, 200), refuses=_REFUSED, body=_SPEC),
)
async def submit(request: Request, key: IdempotencyKey) -> Response:
    # It calls the other dependencies itself: the framework takes as long for them as for the spec.
    who, jobs, body = await deps.principal(request), await _job_service(request), await deps.body(request)
    return _submitted(await jobs.submit(who, body, key, await deps.trace_context(request)))


@router.post(
    "/v1/plan",
    **describe(
        "Predict the split of a job spec",
        Plan,
        also=(TEXT,),
        refuses=("not_found", "unreadable_spec", "too_many_reads"),
        body=_SPEC,
    ),
)
async def plan(
    who: Caller,
    jobs: ServiceDep,
    body: Body,
    as_text: WantsText,
    against: Annotated[str, Query(max_length=64, description="a job whose steps are compared with those planned")] = "",
) -> Response:
    """The predicted split, as JSON or as text. Nothing is created, and the pool's devices are not checked."""
    other = await jobs.read_spec(who, await deps.job_id(against)) if against else None
    wanted = await jobs.compute(partial(parse_spec, body))
    history = await jobs.read_row_times(who, wanted)
    if as_text:
        return responses.text_response(await jobs.compute(partial(plan_service.plan_job_text, wanted, other, history)))
    return responses.json_response(await jobs.compute(partial(plan_service.plan_job, wanted, other, history)))


@router.get("/v1/jobs", **describe("List jobs", JobList, without_body=(304,), refuses=("malformed_cursor",)))
async def list_jobs(
    request: Request,
    who: Caller,
    jobs: ServiceDep,
    chosen: ChosenJobs,
    search: Search = "",
    archived: Archived = False,
    sort: Annotated[
        Order,
        Query(
            description="what to sort by; a leading - puts the largest first. Lists by creation time have no limit; by "
            "anything else the newest 1,000 jobs that match are sorted, and those without the value come last"
        ),
    ] = NEWEST,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: str = "",
) -> Response:
    page = await jobs.list_jobs(who, chosen, cursor, limit, archived=archived, search=search, order=sort)
    return responses.page_response(request, page, page.next)


@router.post(
    "/v1/jobs/cancel", **describe("Cancel many jobs", CancelledJobs, body=json_body("CancelRequest", examples.CANCELS))
)
async def cancel_many(who: Caller, jobs: ServiceDep, body: Body) -> Response:
    """Cancels every job that matches all fields of the body. Jobs that are submitted meanwhile are not affected."""
    return responses.json_response(await jobs.cancel_many(who, body))


@router.get(
    "/v1/jobs/{job}",
    **describe("Show a job", JobStatus, without_body=(304,), refuses=("unreadable_spec", "too_many_reads")),
)
async def show(
    request: Request,
    who: Caller,
    jobs: ServiceDep,
    job: JobId,
    wait: Annotated[
        float,
        Query(
            ge=0,
            le=MAX_WAIT_SECONDS,
            description="hold the answer until the status changes, for at most this many seconds",
        ),
    ] = 0,
) -> Response:
    """With `wait` and If-None-Match, the answer waits only while the job has not changed since the client's last
    answer."""
    if not wait:
        return responses.conditional_response(request, await jobs.read_tagged_status(who, job))
    changed = jobs.wait_for_status(who, job, wait, responses.known_versions(request))
    found = await responses.wait_while_connected(request, changed)
    return Response(status_code=204) if found is None else responses.conditional_response(request, found)


@router.post(
    "/v1/jobs/{job}/resubmit",
    status_code=201,
    **describe(
        "Submit a job's spec again",
        JobStatus,
        statuses=(201, 200),
        refuses=("invalid_spec", "unreadable_spec", *_REFUSED),
    ),
)
async def resubmit(
    who: Caller, jobs: ServiceDep, job: JobId, body: Body, key: IdempotencyKey, trace: CallersTrace
) -> Response:
    """Submits a new job with the same spec, and with this job as its `parent_id`; what that depended on is left out. It
    takes no body."""
    return _submitted(await jobs.resubmit(who, job, body, key, trace))


@router.post(
    "/v1/jobs/{job}/cancel",
    status_code=202,
    **describe("Cancel a job", JobStatus, statuses=(202,), refuses=_UNCHANGED),
)
async def cancel(who: Caller, jobs: ServiceDep, job: JobId, versions: Versions) -> Response:
    return responses.json_response(await jobs.cancel(who, job, versions), 202)


@router.post(
    "/v1/jobs/{job}/suspend",
    status_code=202,
    **describe("Suspend a job", JobStatus, statuses=(202,), refuses=_UNCHANGED),
)
async def suspend(who: Caller, jobs: ServiceDep, job: JobId, versions: Versions) -> Response:
    """A queued job leaves the queue and keeps its place; a running one saves a checkpoint, if it saves any, and leaves
    its devices. It costs no retry."""
    return responses.json_response(await jobs.suspend(who, job, versions), 202)


@router.post(
    "/v1/jobs/{job}/resume",
    status_code=202,
    **describe(
        "Resume a suspended job",
        JobStatus,
        statuses=(202,),
        refuses=_UNCHANGED,
    ),
)
async def resume(who: Caller, jobs: ServiceDep, job: JobId, versions: Versions) -> Response:
    """It is back at its place in the queue. A job that is not suspended stays as it is."""
    return responses.json_response(await jobs.resume(who, job, versions), 202)


@router.delete(
    "/v1/jobs/{job}",
    status_code=204,
    **describe("Delete a finished job", refuses=("job_not_finished", "precondition_failed")),
)
async def delete(who: Caller, jobs: ServiceDep, job: JobId, versions: Versions) -> Response:
    await jobs.delete(who, job, versions)
    return Response(status_code=204)


@router.get("/v1/jobs/{job}/attempts", **describe("List a job's attempts", AttemptList))
async def attempts(who: Caller, jobs: ServiceDep, job: JobId) -> Response:
    return responses.json_response(await jobs.attempts(who, job))


def _submitted(submitted: SubmittedJob) -> Response:
    location = {"Location": submitted.status.links["self"]}
    return responses.json_response(submitted.status, 201 if submitted.created else 200, location)


def find_status_route() -> tuple[APIRoute, Callable[[Request], Awaitable[JobService]]]:
    """The route of a status poll and its service dependency, for `StatusPollMiddleware`."""
    route = next(route for route in router.routes if isinstance(route, APIRoute) and route.endpoint is show)
    return route, _job_service
