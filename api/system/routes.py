"""Routes of health, readiness, metrics and the OpenAPI document."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from api.http import responses
from api.http.deps import Caller, service_of
from api.http.operation_docs import JSON, TEXT, content_of, describe
from api.http.problems import RETRY_AFTER_SECONDS
from api.http.prometheus import ProcessMetrics
from api.system.openapi import document
from api.system.service import SystemService
from shardyard.contract.responses import Readiness

ServiceDep = Annotated[SystemService, Depends(service_of(SystemService))]
router = APIRouter(tags=["system"])


@router.get("/healthz", **describe("Check that this process answers", content_of(JSON, {"type": "object"})))
async def healthz() -> Response:
    """200 if this process answers; it does not check Redis or workers."""
    return responses.json_response({"status": "ok"})


@router.get("/readyz", **describe("Check that a job could start", Readiness, statuses=(200, 503)))
async def readyz(system: ServiceDep) -> Response:
    """200 if a job that is submitted now would be stored and could start."""
    readiness = await system.check_readiness()
    if readiness.ready:
        return responses.json_response(readiness)
    return responses.json_response(readiness, 503, {"Retry-After": str(RETRY_AFTER_SECONDS)})


@router.get(
    "/metrics", response_class=Response, **describe("Metrics for Prometheus", content_of(TEXT, {"type": "string"}))
)
async def metrics(request: Request, who: Caller, system: ServiceDep) -> Response:
    """Metrics in the format of Prometheus, with the jobs of the token's tenant."""
    monitoring: ProcessMetrics = request.app.state.monitoring
    body = monitoring.render(await system.read_gauges(who))
    return Response(body, media_type=monitoring.media_type)


@router.get("/openapi.json", **describe("This document", content_of(JSON, {"type": "object"})))
async def openapi(request: Request) -> Response:
    return responses.json_response(document(request.app))
