"""Routes of pools, nodes and recipes."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from api.fleet.service import FleetService
from api.http import responses
from api.http.deps import Admin, Body, Caller, Versions, service_of
from api.http.operation_docs import JSON, content_of, describe, json_body
from api.jobs import plan_service
from api.schemas import examples
from jobs import store
from jobs.model.pool_policy import MAX_POOL_LENGTH, POOL_PATTERN
from jobs.model.settings import NODE_PATTERN
from shardyard.contract.fleet import DeviceHistory, DeviceUseList, NodeList, NodeView, PoolList, PoolView

ServiceDep = Annotated[FleetService, Depends(service_of(FleetService))]
router = APIRouter(tags=["fleet"])

Device = Annotated[int, Path(ge=0, lt=65_536, description="its index on the node, as `GET /v1/nodes` shows it")]

PoolName = Annotated[str, Path(max_length=MAX_POOL_LENGTH, pattern=POOL_PATTERN)]
BlockId = Annotated[str, Path(max_length=63, pattern=NODE_PATTERN)]
DeviceId = Annotated[
    str, Path(alias="id", max_length=200, description="`name_in_fleet` of `GET /v1/nodes`, or the node and the label")
]
HistoryLimit = Annotated[int, Query(ge=1, le=store.MAX_HISTORY_LINES)]


@router.get("/v1/pools", **describe("List pools", PoolList))
async def pools(fleet: ServiceDep) -> Response:
    return responses.json_response(await fleet.list_pools())


@router.get("/v1/pools/{pool}", **describe("Show a pool", PoolView, without_body=(304,)))
async def show_pool(request: Request, fleet: ServiceDep, pool: PoolName) -> Response:
    """The ETag also serves for If-Match, where it covers the policy alone."""
    return responses.conditional_response(request, await fleet.read_pool(pool))


@router.put(
    "/v1/pools/{pool}",
    **describe(
        "Set the policy of a pool",
        PoolView,
        refuses=("precondition_failed",),
        body=json_body("PoolPolicyRequest", examples.POLICIES),
    ),
)
async def set_policy(who: Admin, fleet: ServiceDep, pool: PoolName, body: Body, versions: Versions) -> Response:
    """Which box a node must have to take work, and which network jobs get. It applies to what starts from now on. A
    node that lacks the box stays visible, and takes no work. The pool need not have a node yet."""
    return responses.json_response(await fleet.set_policy(who, pool, body, versions))


@router.delete("/v1/pools/{pool}/blocks/{block}", status_code=204, **describe("Forget a block that is over"))
async def end_block(who: Admin, fleet: ServiceDep, pool: PoolName, block: BlockId) -> Response:
    """The engine has ended a block of nodes, so nothing in it runs any more: leases there end at once, and its nodes
    are forgotten with all that they held. No node of it can join again. For epilogues; may be repeated."""
    await fleet.end_block(who, pool, block)
    return Response(status_code=204)


@router.get("/v1/nodes", **describe("List nodes", NodeList))
async def nodes(who: Caller, fleet: ServiceDep) -> Response:
    return responses.json_response(await fleet.list_nodes(who))


@router.get("/v1/devices/use", **describe("List who had which device", DeviceUseList))
async def device_uses(
    who: Caller,
    fleet: ServiceDep,
    hours: Annotated[float, Query(gt=0, le=168, description="how far back")] = 24,
) -> Response:
    """Attempts that have ended, by the device that they had, the newest first."""
    return responses.json_response(await fleet.list_device_uses(who, hours))


@router.get(
    "/v1/devices/{id}/history",
    **describe("Get the history of a device", DeviceHistory, refuses=("malformed_cursor",)),
)
async def device_history(
    request: Request,
    who: Caller,
    fleet: ServiceDep,
    device: DeviceId,
    cursor: str = "",
    limit: HistoryLimit = store.MAX_HISTORY_LINES,
) -> Response:
    """What its attempts have recorded, the newest first. The history outlives the jobs."""
    page = await fleet.read_device_history(who, device, cursor, limit)
    return responses.page_response(request, page, page.next)


@router.post(
    "/v1/nodes/{node}/drain",
    **describe("Drain a node", NodeView, body=json_body("DrainRequest", examples.DRAINS, required=False)),
)
async def drain(who: Admin, fleet: ServiceDep, node: str, body: Body) -> Response:
    """The node gets no new work, also after a restart; running attempts continue. With a deadline in the body, attempts
    that still run then move to other nodes, and resume from their newest checkpoint if they have one."""
    return responses.json_response(await fleet.drain_node(who, node, body))


@router.delete("/v1/nodes/{node}/drain", **describe("Cancel the drain of a node", NodeView))
async def undrain(who: Admin, fleet: ServiceDep, node: str) -> Response:
    """The node gets work again."""
    return responses.json_response(await fleet.undrain_node(who, node))


@router.post(
    "/v1/nodes/{node}/devices/{device}/quarantine",
    **describe("Quarantine a device", NodeView, body=json_body("QuarantineRequest", examples.QUARANTINES)),
)
async def quarantine(who: Admin, fleet: ServiceDep, node: str, device: Device, body: Body) -> Response:
    """The device is not leased until it is released; a job that runs on it continues."""
    return responses.json_response(await fleet.quarantine_device(who, node, device, body))


@router.delete("/v1/nodes/{node}/devices/{device}/quarantine", **describe("Release a device from quarantine", NodeView))
async def unquarantine(who: Admin, fleet: ServiceDep, node: str, device: Device) -> Response:
    """The device may be leased again, whatever the reason of its quarantine was."""
    return responses.json_response(await fleet.unquarantine_device(who, node, device))


@router.delete("/v1/nodes/{node}", status_code=204, **describe("Forget a node that is gone", refuses=("node_in_use",)))
async def forget(who: Admin, fleet: ServiceDep, node: str) -> Response:
    """Removes a node that is down for good, with its leases and its quarantine."""
    await fleet.forget_node(who, node)
    return Response(status_code=204)


@router.get(
    "/v1/recipes", **describe("List models, data sets, losses and optimizers", content_of(JSON, {"type": "object"}))
)
async def recipes() -> Response:
    return responses.json_response(plan_service.list_recipes())
