"""Routes of shares: how much of the pools each tenant may use before others go first."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Response

from api.accounts.shares_service import ShareService
from api.http import responses
from api.http.deps import Admin, Body, Caller, IfMatchHeader, service_of
from api.http.operation_docs import describe, json_body
from api.schemas import examples
from api.schemas.account_requests import TENANT_PATTERN
from shardyard.contract.scheduling import ShareList, ShareView

ServiceDep = Annotated[ShareService, Depends(service_of(ShareService))]
TenantName = Annotated[str, Path(pattern=TENANT_PATTERN, description="name of a tenant")]
router = APIRouter(tags=["shares"])


@router.get("/v1/shares", **describe("List shares", ShareList))
async def list_shares(who: Admin, shares: ServiceDep) -> Response:
    """Those of tenants that have used something lately, or have a weight of their own."""
    return responses.json_response(await shares.list_shares(who))


@router.get("/v1/shares/{tenant}", **describe("Get the share of a tenant", ShareView))
async def get(who: Caller, shares: ServiceDep, tenant: TenantName) -> Response:
    """Its weight, and what it has used of each pool. Only operators see those of other tenants."""
    return responses.json_response(await shares.read_share(who, tenant))


@router.put(
    "/v1/shares/{tenant}",
    **describe(
        "Set the weight of a tenant",
        ShareView,
        refuses=("precondition_failed",),
        body=json_body("ShareRequest", examples.SHARES),
    ),
)
async def put(who: Admin, shares: ServiceDep, tenant: TenantName, body: Body, tags: IfMatchHeader = None) -> Response:
    """It applies to what starts from now on. A tenant without one has the weight 1. The tenant need not exist
    yet."""
    if tags is not None:
        responses.require_match(tags, await shares.read_share(who, tenant))
    return responses.json_response(await shares.set_share(who, tenant, body))
