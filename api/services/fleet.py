"""Pools and nodes."""

from api import audit, views
from api.auth import Principal
from api.fleet import FleetCache
from api.schemas import NodeList, NodeView, PoolList
from jobs import store
from jobs.errors import Forbidden, NotFound
from jobs.redis_store import AsyncRedisStore
from jobs.wire import DEFAULT_TENANT


class Fleet:
    def __init__(self, control: AsyncRedisStore, fleet: FleetCache) -> None:
        self._store = control
        self._fleet = fleet

    async def pools(self) -> PoolList:
        return PoolList(views.pools(await self._fleet.read(max_age=0)))

    async def nodes(self, who: Principal) -> NodeList:
        fleet = await self._fleet.read(max_age=0)
        return NodeList([views.node(node, who.tenant, fleet.queued.get(node.pool, 0)) for node in fleet.nodes])

    async def drain(self, who: Principal, node: str, *, drain: bool) -> NodeView:
        """Give a node no new work, or (`drain` false) some again. What runs there goes on.

        Raises:
            NotFound: there is no such node.
            Forbidden: the caller is not the operator.
        """
        _require_operator(who)
        await self._store.run(store.drain_node(node, drain=drain))
        audit.note(who, "node_drained" if drain else "node_undrained", node=node)
        return next(found for found in (await self.nodes(who)).nodes if found.id == node)

    async def forget(self, who: Principal, node: str) -> None:
        """Drop a node that is down for good, with what it held and its quarantine.

        Raises:
            NotFound: there is no such node.
            NodeInUse: it is alive, or a lease on it has not expired.
            Forbidden: the caller is not the operator.
        """
        _require_operator(who)
        known = any(found.id == node for found in (await self._fleet.read(max_age=0)).nodes)
        try:
            await self._store.run(store.forget_node(node))
        except NotFound:
            if not known:  # else it went by this very call, whose first reply was lost
                raise
        audit.note(who, "node_forgotten", node=node)


def _require_operator(who: Principal) -> None:
    """Nodes belong to everybody, so one tenant's administrator must not stop them for the others.

    Raises:
        Forbidden: `who` is of another tenant than the operator's.
    """
    if who.tenant != DEFAULT_TENANT:
        raise Forbidden("only the operator handles nodes")
