"""Routes of quotas: the caller's own for everybody, those of tenants and tokens for administrators."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Response

from api.accounts.quotas_service import QuotaService
from api.http import responses
from api.http.deps import Admin, Body, Caller, IfMatchHeader, service_of
from api.http.operation_docs import describe, json_body
from api.schemas import examples
from api.schemas.account_requests import TENANT_PATTERN
from jobs.model.error_words import pattern
from shardyard.contract.quotas import QuotaList, QuotaView

ServiceDep = Annotated[QuotaService, Depends(service_of(QuotaService))]
_TOKEN_ID = pattern(r"^[a-z0-9]{0,64}$", "the id of a token, lower-case letters and digits")
Tenant = Annotated[str, Path(pattern=TENANT_PATTERN, description="name of a tenant")]
TokenId = Annotated[str, Query(pattern=_TOKEN_ID, description="id of a token of the tenant, whose own quota is meant")]
router = APIRouter(tags=["quotas"])


@router.get("/v1/quota", **describe("Show what you may use, and use", QuotaList))
async def read_own(who: Caller, quotas: ServiceDep) -> Response:
    """The quota of the caller's tenant, and that of the token."""
    return responses.json_response(await quotas.read_own(who))


@router.get("/v1/quotas/{tenant}", **describe("Show a quota", QuotaView))
async def read_quota(who: Admin, quotas: ServiceDep, tenant: Tenant, token: TokenId = "") -> Response:
    return responses.json_response(await quotas.read_quota(who, tenant, token))


@router.put(
    "/v1/quotas/{tenant}",
    **describe(
        "Set a quota", QuotaView, refuses=("precondition_failed",), body=json_body("QuotaRequest", examples.QUOTAS)
    ),
)
async def set_quota(
    who: Admin, quotas: ServiceDep, tenant: Tenant, body: Body, token: TokenId = "", tags: IfMatchHeader = None
) -> Response:
    """What the body leaves out is not limited. Running jobs continue, even if they are more than may run now."""
    if tags is not None:
        responses.require_match(tags, await quotas.read_quota(who, tenant, token))
    return responses.json_response(await quotas.set_quota(who, tenant, token, body))


@router.delete("/v1/quotas/{tenant}", status_code=204, **describe("Remove a quota", refuses=("precondition_failed",)))
async def remove_quota(
    who: Admin, quotas: ServiceDep, tenant: Tenant, token: TokenId = "", tags: IfMatchHeader = None
) -> Response:
    if tags is not None:
        responses.require_match(tags, await quotas.read_quota(who, tenant, token))
    await quotas.remove_quota(who, tenant, token)
    return Response(status_code=204)
