"""Routes of code bundles: upload, show, delete."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from api.bundles.service import BundleService
from api.http import responses
from api.http.deps import BundleId, Caller, service_of
from api.http.operation_docs import BYTES, content_of, describe
from shardyard.contract.responses import BundleContents, BundleView

ServiceDep = Annotated[BundleService, Depends(service_of(BundleService))]
router = APIRouter(tags=["bundles"])

_ZIP = {"required": True, "content": content_of("application/octet-stream", BYTES)}


@router.post(
    "/v1/bundles",
    status_code=201,
    **describe(
        "Upload a bundle of code",
        BundleView,
        statuses=(201, 200),
        refuses=("bad_bundle", "bundle_quota", "too_many_uploads", "storage_low"),
        body=_ZIP,
    ),
)
async def upload(request: Request, who: Caller, bundles: ServiceDep) -> Response:
    """The body is the zip itself. The same bytes have the same id, and are stored once."""
    uploaded = await bundles.upload(who, request.stream())
    location = {"Location": f"/v1/bundles/{uploaded.bundle.id}"}
    return responses.json_response(uploaded.bundle, 201 if uploaded.created else 200, location)


@router.delete("/v1/bundles/{bundle}", status_code=204, **describe("Delete a bundle", refuses=("bundle_needed",)))
async def delete(who: Caller, bundles: ServiceDep, bundle: BundleId) -> Response:
    """Only one that no job needs. Its bytes no longer count from then on."""
    await bundles.delete(who, bundle)
    return Response(status_code=204)


@router.get("/v1/bundles/{bundle}", **describe("Show a bundle's files", BundleContents))
async def show(who: Caller, bundles: ServiceDep, bundle: BundleId) -> Response:
    return responses.json_response(await bundles.read_contents(who, bundle))
