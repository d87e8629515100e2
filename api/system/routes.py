"""Routes of health, readiness, metrics and the OpenAPI document."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from api.http import responses
from api.http.deps import Caller, service_of
from api.http.problems import RETRY_AFTER_SECONDS
from api.http.prometheus import ProcessMetrics
from api.system.openapi import document
from api.system.service import SystemService

ServiceDep = Annotated[SystemService, Depends(service_of(SystemService))]
router = APIRouter(tags=["system"])


@router.get("/healthz")
async def healthz() -> Response:
    """This process answers. It says nothing about Redis or the workers."""
    return responses.json_response({"status": "ok"})


@router.get("/readyz")
async def readyz(system: ServiceDep) -> Response:
    """A job that is submitted now would be stored, and could start."""
    readiness = await system.check_readiness()
    if readiness.ready:
        return responses.json_response(readiness)
    return responses.json_response(readiness, 503, {"Retry-After": str(RETRY_AFTER_SECONDS)})


@router.get("/metrics")
async def metrics(request: Request, who: Caller, system: ServiceDep) -> Response:
    """For Prometheus. Jobs are those of the token's tenant."""
    monitoring: ProcessMetrics = request.app.state.monitoring
    body = monitoring.render(await system.read_gauges(who))
    return Response(body, media_type=monitoring.media_type)


@router.get("/openapi.json")
async def openapi(request: Request) -> Response:
    return responses.json_response(document(request.app))
