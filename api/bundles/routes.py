"""Routes of code bundles: upload, show."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from api.bundles.service import BundleService
from api.http import responses
from api.http.deps import BundleId, Caller, service_of

ServiceDep = Annotated[BundleService, Depends(service_of(BundleService))]
router = APIRouter(tags=["bundles"])


@router.post("/v1/bundles", status_code=201)
async def upload(request: Request, who: Caller, bundles: ServiceDep) -> Response:
    """The body is a zip, as it is. The same bytes have the same id, and are kept once."""
    uploaded = await bundles.upload(who, request.stream())
    location = {"Location": f"/v1/bundles/{uploaded.bundle.id}"}
    return responses.json_response(uploaded.bundle, 201 if uploaded.created else 200, location)


@router.get("/v1/bundles/{bundle}")
async def show(who: Caller, bundles: ServiceDep, bundle: BundleId) -> Response:
    return responses.json_response(await bundles.read_contents(who, bundle))
