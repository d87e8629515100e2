"""Pools, nodes, and what they can run."""

from fastapi import APIRouter, Response

from api import answers
from api.deps import Admin, Caller, FleetService
from api.services import plans

router = APIRouter(tags=["fleet"])


@router.get("/v1/pools")
async def pools(fleet: FleetService) -> Response:
    return answers.json(await fleet.pools())


@router.get("/v1/nodes")
async def nodes(who: Caller, fleet: FleetService) -> Response:
    return answers.json(await fleet.nodes(who))


@router.post("/v1/nodes/{node}/drain")
async def drain(who: Admin, fleet: FleetService, node: str) -> Response:
    """The node gets no new work, also after it has come back; what runs there goes on."""
    return answers.json(await fleet.drain(who, node, drain=True))


@router.delete("/v1/nodes/{node}/drain")
async def undrain(who: Admin, fleet: FleetService, node: str) -> Response:
    """The node gets work again."""
    return answers.json(await fleet.drain(who, node, drain=False))


@router.delete("/v1/nodes/{node}", status_code=204)
async def forget(who: Admin, fleet: FleetService, node: str) -> Response:
    """For a node that is down for good: what it held is given up, and its quarantine with it."""
    await fleet.forget(who, node)
    return Response(status_code=204)


@router.get("/v1/recipes")
async def recipes() -> Response:
    return answers.json(plans.recipes())
