"""The route of gates: check a job's report against limits."""

from typing import Annotated

from fastapi import APIRouter, Depends, Response

from api.http import responses
from api.http.deps import Body, Caller, JobId, service_of
from api.http.operation_docs import describe, json_body
from api.results.gate_service import GateService
from api.schemas import examples
from shardyard.contract.gate import GateVerdict

ServiceDep = Annotated[GateService, Depends(service_of(GateService))]
router = APIRouter(tags=["splits"])


@router.post(
    "/v1/jobs/{job}/gate",
    **describe(
        "Judge a job by its report",
        GateVerdict,
        refuses=("job_not_finished", "not_comparable"),
        body=json_body("GateRequest", examples.GATES),
    ),
)
async def judge_job(who: Caller, gates: ServiceDep, job: JobId, body: Body) -> Response:
    """Whether a job that has ended keeps all limits. Times are judged by how they varied during the run: what cannot
    be told from noise is `unclear`. It changes nothing, and needs the scope to read."""
    return responses.json_response(await gates.judge_job(who, job, body))
