"""Routes for machines that join: what they need, and whether the service reaches them. For tokens to join with."""

from typing import Annotated

from fastapi import APIRouter, Depends, Response

from api.http import responses
from api.http.deps import JOINS, Body, Joining, PeerAddress, service_of
from api.http.operation_docs import describe, json_body
from api.joins.service import JoinService
from api.schemas import examples
from shardyard.contract.joins import NodeReachView, NodeSetup

ServiceDep = Annotated[JoinService, Depends(service_of(JoinService))]
router = APIRouter(tags=["joining"])


@router.post(
    JOINS,
    **describe("Join as a node", NodeSetup, refuses=("conflict",), body=json_body("JoinRequest", examples.JOINS)),
)
async def join(who: Joining, joins: ServiceDep, body: Body, address: PeerAddress) -> Response:
    """What the node needs; a token for its files as well, unless it has one that is good."""
    answer = await joins.join(who, body, address)
    return responses.json_response(answer, 200, {"Cache-Control": "no-store"})


@router.post(
    f"{JOINS}/reach",
    **describe("Try to reach a joining node", NodeReachView, body=json_body("ReachRequest", examples.REACHES)),
)
async def reach(who: Joining, joins: ServiceDep, body: Body, address: PeerAddress) -> Response:
    """Connects to a port of the address that this request comes from, and no other, and reads the nonce there."""
    return responses.json_response(await joins.reach(body, address))
