"""The route that explains why a job is in its state."""

from typing import Annotated

from fastapi import APIRouter, Depends, Response

from api.http import responses
from api.http.deps import Caller, JobId, service_of
from api.http.operation_docs import describe
from api.jobs.explain_service import ExplainService
from shardyard.contract.scheduling import JobExplanation

ServiceDep = Annotated[ExplainService, Depends(service_of(ExplainService))]
router = APIRouter(tags=["jobs"])


@router.get(
    "/v1/jobs/{job}/explain", **describe("Explain what a job waits for", JobExplanation, refuses=("unreadable_spec",))
)
async def explain(who: Caller, service: ServiceDep, job: JobId) -> Response:
    """Its tenant's share, the jobs that come before it, in numbers, what is free and what is kept, and an estimate of
    its start."""
    return responses.json_response(await service.explain(who, job))
