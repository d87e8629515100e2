"""The service of pools and nodes."""

import time
from collections.abc import Collection
from hashlib import blake2b

import msgspec

from api.data.fleet_cache import FleetCache
from api.http import audit, cursors
from api.http.auth import Principal
from api.http.responses import TaggedJson, encode_json, tag_json
from api.schemas import views
from api.schemas.fleet_requests import parse_drain, parse_policy, parse_quarantine
from jobs import store
from jobs.model.pool_policy import DEFAULT_POLICY
from jobs.model.records import DeviceRecord, NodeRecord
from jobs.protocol.names import DEFAULT_TENANT
from jobs.scheduling.backoff import backoff_seconds
from jobs.store import FleetRecords
from jobs.store.client import AsyncRedisStore
from jobs.store.pools import end_block
from shardyard.contract.errors import Forbidden, NotFound, PreconditionFailed
from shardyard.contract.fleet import DeviceHistory, DeviceUseList, DeviceUses, NodeList, NodeView, PoolList, PoolView
from shardyard.contract.responses import at

#: Devices that a view of all of them has, and that one call on Redis reads.
MAX_LISTED_DEVICES = 1024
DEVICES_A_CALL = 64


class FleetService:
    def __init__(self, control: AsyncRedisStore, fleet: FleetCache) -> None:
        self._store = control
        self._fleet = fleet

    async def list_pools(self) -> PoolList:
        found = views.pool_views(await self._fleet.read_fleet(max_age=0))
        return PoolList(found, len(found))

    async def read_pool(self, pool: str) -> TaggedJson:
        """A pool; the version in its tag is that of its policy alone. Raises NotFound."""
        fleet = await self._fleet.read_fleet(max_age=0)
        if pool not in views.pool_names(fleet):
            raise NotFound(f"there is no pool {pool!r}; `GET /v1/pools` lists them")
        return tag_json(_policy_version(pool, fleet), encode_json(views.pool_view(pool, fleet)))

    async def set_policy(
        self, who: Principal, pool: str, body: bytes, versions: Collection[int] | None = None
    ) -> PoolView:
        """Set the policy of a pool, which may have no node yet. It counts for what is dispatched from then on.
        `versions`: those that its policy may have now; None: any.

        Raises:
            MalformedJson, InvalidRequest: the body is not a policy.
            Forbidden: the caller is not the operator.
            PreconditionFailed: its policy has another version.
        """
        _require_operator(who)
        policy = parse_policy(body)
        if versions is not None and _policy_version(pool, await self._fleet.read_fleet(max_age=0)) not in versions:
            raise PreconditionFailed(f"the policy of pool {pool} has changed meanwhile; read it again")
        await self._store.run(store.set_policy(pool, policy))
        audit.log_audit_event(who, "pool_policy_set", pool=pool, **msgspec.structs.asdict(policy))
        return views.pool_view(pool, await self._fleet.read_fleet(max_age=0))

    async def list_nodes(self, who: Principal) -> NodeList:
        fleet = await self._fleet.read_fleet(max_age=0)
        found = [views.node_view(node, who.tenant, fleet.queued.get(node.pool, 0)) for node in fleet.nodes]
        return NodeList(found, len(found))

    async def read_device_history(self, who: Principal, name: str, cursor: str, limit: int) -> DeviceHistory:
        """The history of the device `name`: its name in the fleet, its node and label, or an id that no other has.

        Raises:
            NotFound: there is no such device, and never was.
            MalformedCursor: the cursor is not one of ours.
        """
        before = cursors.decode_position(cursor) if cursor else None
        where = find_device(await self._fleet.read_fleet(max_age=0), name)
        device = name if where is None else where[1].name_in_fleet(where[0].id)
        page = await self._store.run(store.read_history(device, before=before, limit=limit))
        if where is None and not page.lines and before is None:
            raise NotFound(f"there is no device {name!r}; `GET /v1/nodes` lists them, each with its name_in_fleet")
        following = None if page.next is None else cursors.encode_position(page.next)
        return views.device_history(device, where, page, who.tenant, following)

    async def list_device_uses(self, who: Principal, hours: float) -> DeviceUseList:
        """Who had which device in the last `hours`."""
        since = time.time_ns() // 1000 - int(hours * 3_600_000_000)
        fleet = await self._fleet.read_fleet(max_age=0)
        known = [(node, device) for node in fleet.nodes for device in node.info.devices]
        places = known[:MAX_LISTED_DEVICES]
        uses: list[DeviceUses] = []
        for first in range(0, len(places), DEVICES_A_CALL):
            some = places[first : first + DEVICES_A_CALL]
            names = [device.name_in_fleet(node.id) for node, device in some]
            lines = await self._store.run(store.read_recent_history(names, since))
            uses += [views.device_uses(*place, found, who.tenant) for place, found in zip(some, lines, strict=True)]
        return DeviceUseList(since=at(since), devices=uses, total=len(known))

    async def drain_node(self, who: Principal, node: str, body: bytes) -> NodeView:
        """Give a node no new work. Running attempts continue, or move to other nodes at the deadline.

        Raises:
            MalformedJson, InvalidRequest: the body is not a drain request.
            NotFound: there is no such node.
            Forbidden: the caller is not the operator.
        """
        _require_operator(who)
        seconds = parse_drain(body).deadline_seconds
        await self._store.run(store.drain_node(node, deadline_seconds=seconds))
        audit.log_audit_event(who, "node_drained", node=node, deadline_seconds=seconds)
        return await self._read_node(who, node)

    async def undrain_node(self, who: Principal, node: str) -> NodeView:
        """Give a node work again. Raises NotFound, Forbidden."""
        _require_operator(who)
        await self._store.run(store.undrain_node(node))
        audit.log_audit_event(who, "node_undrained", node=node)
        return await self._read_node(who, node)

    async def quarantine_device(self, who: Principal, node: str, device: int, body: bytes) -> NodeView:
        """Quarantine a device until the operator releases it; a job that runs on it continues.

        Raises:
            MalformedJson, InvalidRequest: the body does not say why.
            NotFound: there is no such node, or it has no such device.
            Forbidden: the caller is not the operator.
        """
        _require_operator(who)
        reason = parse_quarantine(body).reason
        await self._store.run(store.quarantine_device(node, device, reason))
        audit.log_audit_event(who, "device_quarantined", node=node, device=device, reason=reason)
        return await self._read_node(who, node)

    async def unquarantine_device(self, who: Principal, node: str, device: int) -> NodeView:
        """Bring a device back from quarantine, whatever put it there. Raises NotFound, Forbidden."""
        _require_operator(who)
        await self._store.run(store.unquarantine(node, device))
        audit.log_audit_event(who, "device_unquarantined", node=node, device=device)
        return await self._read_node(who, node)

    async def _read_node(self, who: Principal, node: str) -> NodeView:
        """Raises NotFound: it was forgotten meanwhile."""
        found = next((found for found in (await self.list_nodes(who)).nodes if found.id == node), None)
        if found is None:
            raise NotFound(f"there is no node {node!r}")
        return found

    async def forget_node(self, who: Principal, node: str) -> None:
        """Drop a node that is down for good, with what it held and its quarantine.

        Raises:
            NotFound: there is no such node.
            NodeInUse: it is alive, or a lease on it has not expired.
            Forbidden: the caller is not the operator.
        """
        _require_operator(who)
        known = any(found.id == node for found in (await self._fleet.read_fleet(max_age=0)).nodes)
        try:
            await self._store.run(store.forget_node(node))
        except NotFound:
            if not known:  # else it went by this very call, whose first reply was lost
                raise
        audit.log_audit_event(who, "node_forgotten", node=node)

    async def end_block(self, who: Principal, pool: str, block: str) -> None:
        """Forget the nodes of a block that its engine has ended, which proves that nothing of it runs. Raises
        Forbidden."""
        _require_operator(who)
        message = f"block {block} is over: its engine says so"
        nodes = await self._store.run(end_block(pool, block, message, backoff_seconds=backoff_seconds()))
        audit.log_audit_event(who, "block_ended", pool=pool, block=block, nodes=nodes)


def find_device(fleet: FleetRecords, name: str) -> tuple[NodeRecord, DeviceRecord] | None:
    """The device of that name in the fleet, or of that node and label (`host-a:cuda:3`), or of that id, if only one has
    it."""
    every = [(node, device) for node in fleet.nodes for device in node.info.devices]
    known = [each for each in every if name in (each[1].name_in_fleet(each[0].id), f"{each[0].id}:{each[1].label}")]
    known = known or [each for each in every if name == each[1].id]
    return known[0] if len(known) == 1 else None


def _require_operator(who: Principal) -> None:
    """Nodes and pools belong to everybody, so one tenant's administrator must not change them for the others.

    Raises:
        Forbidden: `who` is of another tenant than the operator's.
    """
    if who.tenant != DEFAULT_TENANT:
        raise Forbidden("only operators may change nodes and pools")


def _policy_version(pool: str, fleet: FleetRecords) -> int:
    """A number that goes with the policy of a pool, as policies are not counted."""
    policy = fleet.policies.get(pool, DEFAULT_POLICY)
    return int.from_bytes(blake2b(encode_json(policy), digest_size=6).digest())
