"""Routes of bearer tokens, for administrators."""

from typing import Annotated

from fastapi import APIRouter, Depends, Response

from api.accounts.tokens_service import TokenService
from api.http import responses
from api.http.deps import Admin, Body, service_of
from api.http.operation_docs import describe, json_body
from api.schemas import examples
from shardyard.contract.responses import NewToken, TokenList

ServiceDep = Annotated[TokenService, Depends(service_of(TokenService))]
router = APIRouter(tags=["tokens"])


@router.get("/v1/tokens", **describe("List tokens", TokenList))
async def list_tokens(who: Admin, tokens: ServiceDep) -> Response:
    return responses.json_response(await tokens.list_tokens(who))


@router.post(
    "/v1/tokens",
    status_code=201,
    **describe(
        "Create a token",
        NewToken,
        statuses=(201,),
        refuses=("unboxed_nodes",),
        body=json_body("NewTokenRequest", examples.TOKENS),
    ),
)
async def create(who: Admin, tokens: ServiceDep, body: Body) -> Response:
    return responses.json_response(await tokens.create_token(who, body), 201, {"Cache-Control": "no-store"})


@router.delete("/v1/tokens/{token}", status_code=204, **describe("Revoke a token"))
async def revoke(who: Admin, tokens: ServiceDep, token: str) -> Response:
    await tokens.revoke_token(who, token)
    return Response(status_code=204)
