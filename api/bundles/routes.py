"""Bundles of code: upload, look."""

from fastapi import APIRouter, Request, Response

from api.http import responses
from api.http.deps import BundleId, BundlesService, Caller

router = APIRouter(tags=["bundles"])


@router.post("/v1/bundles", status_code=201)
async def upload(request: Request, who: Caller, bundles: BundlesService) -> Response:
    """The body is a zip, as it is. The same bytes have the same id, and are kept once."""
    uploaded = await bundles.upload(who, request.stream())
    location = {"Location": f"/v1/bundles/{uploaded.bundle.id}"}
    return responses.json(uploaded.bundle, 201 if uploaded.created else 200, location)


@router.get("/v1/bundles/{bundle}")
async def show(who: Caller, bundles: BundlesService, bundle: BundleId) -> Response:
    return responses.json(await bundles.show(who, bundle))
