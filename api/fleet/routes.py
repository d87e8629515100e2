"""Pools, nodes, and what they can run."""

from typing import Annotated

from fastapi import APIRouter, Path, Response

from api.http import responses
from api.http.deps import Admin, Body, Caller, FleetService
from api.jobs import plan_service

router = APIRouter(tags=["fleet"])

Device = Annotated[int, Path(ge=0, lt=65_536, description="its index on the node, as `GET /v1/nodes` has it")]


@router.get("/v1/pools")
async def pools(fleet: FleetService) -> Response:
    return responses.json(await fleet.pools())


@router.get("/v1/nodes")
async def nodes(who: Caller, fleet: FleetService) -> Response:
    return responses.json(await fleet.nodes(who))


@router.post("/v1/nodes/{node}/drain")
async def drain(who: Admin, fleet: FleetService, node: str, body: Body) -> Response:
    """The node gets no new work, also after it has come back; what runs there goes on. With a deadline in the body,
    what still runs there then goes to other nodes, from its last checkpoint where it has one."""
    return responses.json(await fleet.drain(who, node, body))


@router.delete("/v1/nodes/{node}/drain")
async def undrain(who: Admin, fleet: FleetService, node: str) -> Response:
    """The node gets work again."""
    return responses.json(await fleet.undrain(who, node))


@router.post("/v1/nodes/{node}/devices/{device}/quarantine")
async def quarantine(who: Admin, fleet: FleetService, node: str, device: Device, body: Body) -> Response:
    """The device is given to nobody until it is brought back; what runs on it goes on."""
    return responses.json(await fleet.quarantine(who, node, device, body))


@router.delete("/v1/nodes/{node}/devices/{device}/quarantine")
async def unquarantine(who: Admin, fleet: FleetService, node: str, device: Device) -> Response:
    """The device may be used again, whatever put it into quarantine."""
    return responses.json(await fleet.unquarantine(who, node, device))


@router.delete("/v1/nodes/{node}", status_code=204)
async def forget(who: Admin, fleet: FleetService, node: str) -> Response:
    """For a node that is down for good: what it held is given up, and its quarantine with it."""
    await fleet.forget(who, node)
    return Response(status_code=204)


@router.get("/v1/recipes")
async def recipes() -> Response:
    return responses.json(plan_service.recipes())
