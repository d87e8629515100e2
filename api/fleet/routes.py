"""Routes of pools, nodes and recipes."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Response

from api.fleet.service import FleetService
from api.http import responses
from api.http.deps import Admin, Body, Caller, service_of
from api.http.operation_docs import JSON, content_of, describe, json_body
from api.jobs import plan_service
from api.schemas import examples
from shardyard.contract.responses import NodeList, NodeView, PoolList

ServiceDep = Annotated[FleetService, Depends(service_of(FleetService))]
router = APIRouter(tags=["fleet"])

Device = Annotated[int, Path(ge=0, lt=65_536, description="its index on the node, as `GET /v1/nodes` has it")]


@router.get("/v1/pools", **describe("List pools", PoolList))
async def pools(fleet: ServiceDep) -> Response:
    return responses.json_response(await fleet.list_pools())


@router.get("/v1/nodes", **describe("List nodes", NodeList))
async def nodes(who: Caller, fleet: ServiceDep) -> Response:
    return responses.json_response(await fleet.list_nodes(who))


@router.post(
    "/v1/nodes/{node}/drain",
    **describe("Give a node no new work", NodeView, body=json_body("DrainRequest", examples.DRAINS, required=False)),
)
async def drain(who: Admin, fleet: ServiceDep, node: str, body: Body) -> Response:
    """The node gets no new work, also after it has come back; what runs there goes on. With a deadline in the body,
    what still runs there then goes to other nodes, from its last checkpoint where it has one."""
    return responses.json_response(await fleet.drain_node(who, node, body))


@router.delete("/v1/nodes/{node}/drain", **describe("Give a node work again", NodeView))
async def undrain(who: Admin, fleet: ServiceDep, node: str) -> Response:
    """The node gets work again."""
    return responses.json_response(await fleet.undrain_node(who, node))


@router.post(
    "/v1/nodes/{node}/devices/{device}/quarantine",
    **describe("Give a device to nobody", NodeView, body=json_body("QuarantineRequest", examples.QUARANTINES)),
)
async def quarantine(who: Admin, fleet: ServiceDep, node: str, device: Device, body: Body) -> Response:
    """The device is given to nobody until it is brought back; what runs on it goes on."""
    return responses.json_response(await fleet.quarantine_device(who, node, device, body))


@router.delete(
    "/v1/nodes/{node}/devices/{device}/quarantine", **describe("Bring a device back from quarantine", NodeView)
)
async def unquarantine(who: Admin, fleet: ServiceDep, node: str, device: Device) -> Response:
    """The device may be used again, whatever put it into quarantine."""
    return responses.json_response(await fleet.unquarantine_device(who, node, device))


@router.delete("/v1/nodes/{node}", status_code=204, **describe("Forget a node that is gone", refuses=("node_in_use",)))
async def forget(who: Admin, fleet: ServiceDep, node: str) -> Response:
    """For a node that is down for good: what it held is given up, and its quarantine with it."""
    await fleet.forget_node(who, node)
    return Response(status_code=204)


@router.get(
    "/v1/recipes", **describe("List models, data sets, losses and optimizers", content_of(JSON, {"type": "object"}))
)
async def recipes() -> Response:
    return responses.json_response(plan_service.list_recipes())
