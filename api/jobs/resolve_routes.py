"""The route that finds the job that people mean."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from api.http import responses
from api.http.deps import Caller, service_of
from api.http.operation_docs import describe
from api.jobs.resolve_service import ResolveService
from shardyard.contract.responses import ResolvedJob

ServiceDep = Annotated[ResolveService, Depends(service_of(ResolveService))]
router = APIRouter(tags=["jobs"])


@router.get(
    "/v1/jobs/resolve",
    **describe(
        "Find the job that a reference stands for",
        ResolvedJob,
        refuses=("not_found", "ambiguous_reference", "unreadable_spec", "too_many_reads"),
    ),
)
async def resolve(
    who: Caller,
    service: ServiceDep,
    ref: Annotated[
        str,
        Query(
            min_length=1,
            max_length=200,
            description="the id of a job; a beginning or an end of it that no other job has; its name, for the newest "
            "of that name; `@last` for the newest job, `@last~2` for the second before it",
        ),
    ],
) -> Response:
    """`@last` counts the jobs that the caller's token has submitted; where it has submitted none, those of the tenant.
    A beginning, an end and a name that fit different jobs are refused, with those jobs as `candidates`."""
    return responses.json_response(await service.resolve(who, ref))
