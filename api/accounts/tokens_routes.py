"""Bearer tokens: for administrators."""

from fastapi import APIRouter, Response

from api.http import responses
from api.http.deps import Admin, Body, TokensService

router = APIRouter(tags=["tokens"])


@router.get("/v1/tokens")
async def list_tokens(who: Admin, tokens: TokensService) -> Response:
    return responses.json(await tokens.listing(who))


@router.post("/v1/tokens", status_code=201)
async def create(who: Admin, tokens: TokensService, body: Body) -> Response:
    return responses.json(await tokens.create(who, body), 201, {"Cache-Control": "no-store"})


@router.delete("/v1/tokens/{token}", status_code=204)
async def revoke(who: Admin, tokens: TokensService, token: str) -> Response:
    await tokens.revoke(who, token)
    return Response(status_code=204)
