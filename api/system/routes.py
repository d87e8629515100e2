"""The service itself: is it up, is it ready, what does it count."""

from fastapi import APIRouter, Request, Response

from api.http import responses
from api.http.deps import Caller, SystemService
from api.http.problems import RETRY_AFTER_SECONDS
from api.http.prometheus import Monitoring
from api.system.openapi import document

router = APIRouter(tags=["system"])


@router.get("/healthz")
async def healthz() -> Response:
    """This process answers. It says nothing about Redis or the workers."""
    return responses.json({"status": "ok"})


@router.get("/readyz")
async def readyz(system: SystemService) -> Response:
    """A job that is submitted now would be stored, and could start."""
    readiness = await system.readiness()
    if readiness.ready:
        return responses.json(readiness)
    return responses.json(readiness, 503, {"Retry-After": str(RETRY_AFTER_SECONDS)})


@router.get("/metrics")
async def metrics(request: Request, who: Caller, system: SystemService) -> Response:
    """For Prometheus. Jobs are those of the token's tenant."""
    monitoring: Monitoring = request.app.state.monitoring
    body = monitoring.render(await system.census(who))
    return Response(body, media_type=monitoring.media_type)


@router.get("/openapi.json")
async def openapi(request: Request) -> Response:
    return responses.json(document(request.app))
