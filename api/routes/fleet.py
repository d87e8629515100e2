"""Pools, nodes, and what they can run."""

from fastapi import APIRouter, Response

from api import answers
from api.deps import Admin, Backend, Caller

router = APIRouter(tags=["fleet"])


@router.get("/v1/pools")
async def pools(service: Backend) -> Response:
    return answers.json(await service.pools())


@router.get("/v1/nodes")
async def nodes(who: Caller, service: Backend) -> Response:
    return answers.json(await service.nodes(who))


@router.post("/v1/nodes/{node}/drain")
async def drain(who: Admin, service: Backend, node: str) -> Response:
    """The node gets no new work, also after it has come back; what runs there goes on."""
    return answers.json(await service.drain(who, node, drain=True))


@router.delete("/v1/nodes/{node}/drain")
async def undrain(who: Admin, service: Backend, node: str) -> Response:
    """The node gets work again."""
    return answers.json(await service.drain(who, node, drain=False))


@router.delete("/v1/nodes/{node}", status_code=204)
async def forget(who: Admin, service: Backend, node: str) -> Response:
    """For a node that is down for good: what it held is given up, and its quarantine with it."""
    await service.forget_node(who, node)
    return Response(status_code=204)


@router.get("/v1/recipes")
async def recipes(service: Backend) -> Response:
    return answers.json(service.recipes())
