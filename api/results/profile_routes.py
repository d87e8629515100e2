"""Routes of profiles: record a few steps of a running job, list what was recorded."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from api.http import responses
from api.http.deps import Body, Caller, JobId, service_of
from api.http.operation_docs import describe, json_body
from api.results.profile_service import ProfileService
from api.schemas import examples
from shardyard.contract.responses import ProfileList, ProfileView

ServiceDep = Annotated[ProfileService, Depends(service_of(ProfileService))]
router = APIRouter(tags=["profiles"])


@router.post(
    "/v1/jobs/{job}/profile",
    status_code=202,
    **describe(
        "Profile the next steps of a running job",
        ProfileView,
        statuses=(202,),
        refuses=("job_not_running", "profile_running", "conflict"),
        body=json_body("ProfileRequestBody", examples.PROFILES, required=False),
    ),
)
async def request_profile(who: Caller, profiles: ServiceDep, job: JobId, body: Body) -> Response:
    """Every rank records a trace of the next steps with torch.profiler, and continues. The list of profiles says when
    the traces are ready; they are among the job's files. One profile of a job at a time."""
    return responses.json_response(await profiles.request_profile(who, job, body), 202)


@router.get("/v1/jobs/{job}/profiles", **describe("List a job's profiles", ProfileList))
async def list_profiles(
    who: Caller,
    profiles: ServiceDep,
    job: JobId,
    attempt: Annotated[int | None, Query(ge=1, description="default: the newest")] = None,
) -> Response:
    return responses.json_response(await profiles.list_profiles(who, job, attempt))
