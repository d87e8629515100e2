"""Pools, nodes, and what they can run."""

from fastapi import APIRouter, Response

from api import answers
from api.deps import Backend, Caller

router = APIRouter(tags=["fleet"])


@router.get("/v1/pools")
async def pools(service: Backend) -> Response:
    return answers.json(await service.pools())


@router.get("/v1/nodes")
async def nodes(who: Caller, service: Backend) -> Response:
    return answers.json(await service.nodes(who))


@router.get("/v1/recipes")
async def recipes(service: Backend) -> Response:
    return answers.json(service.recipes())
