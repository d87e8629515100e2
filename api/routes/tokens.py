"""Bearer tokens: for administrators."""

from fastapi import APIRouter, Response

from api import answers
from api.deps import Admin, Backend, Body

router = APIRouter(tags=["tokens"])


@router.get("/v1/tokens")
async def list_tokens(who: Admin, service: Backend) -> Response:
    return answers.json(await service.list_tokens(who))


@router.post("/v1/tokens", status_code=201)
async def create(who: Admin, service: Backend, body: Body) -> Response:
    return answers.json(await service.create_token(who, body), 201, {"Cache-Control": "no-store"})


@router.delete("/v1/tokens/{token}", status_code=204)
async def revoke(who: Admin, service: Backend, token: str) -> Response:
    await service.revoke_token(who, token)
    return Response(status_code=204)
