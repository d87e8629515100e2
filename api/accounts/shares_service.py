"""The service of shares: sets the weights of tenants, and shows what they have used."""

from api.http import audit
from api.http.auth import Principal
from api.schemas.account_requests import parse_share
from jobs.protocol.names import DEFAULT_TENANT
from jobs.store import shares as share_calls
from jobs.store.client import AsyncRedisStore
from jobs.store.shares import PoolUsage, ShareRecords
from shardyard.contract.errors import Forbidden
from shardyard.contract.scheduling import PoolShareView, ShareList, ShareView


class ShareService:
    def __init__(self, control: AsyncRedisStore) -> None:
        self._store = control

    async def list_shares(self, who: Principal) -> ShareList:
        """Raises Forbidden."""
        _require_operator(who)
        records = await self._store.run(share_calls.read_shares())
        tenants = sorted({usage.tenant for usage in records.usage} | records.weights.keys())
        return ShareList([share_view(records, tenant) for tenant in tenants], len(tenants))

    async def read_share(self, who: Principal, tenant: str) -> ShareView:
        """Raises Forbidden: it is another tenant's, and the caller is not the operator."""
        if tenant != who.tenant:
            _require_operator(who)
        return share_view(await self._store.run(share_calls.read_shares()), tenant)

    async def set_share(self, who: Principal, tenant: str, body: bytes) -> ShareView:
        """Set the weight of a tenant, for what starts from then on.

        Raises:
            MalformedJson, InvalidRequest: the body is no weight.
            Forbidden: the caller is not the operator.
        """
        _require_operator(who)
        weight = parse_share(body)
        await self._store.run(share_calls.set_share(tenant, None if weight == share_calls.DEFAULT_WEIGHT else weight))
        audit.log_audit_event(who, "share_set", of_tenant=tenant, weight=weight)
        return share_view(await self._store.run(share_calls.read_shares()), tenant)


def share_view(records: ShareRecords, tenant: str) -> ShareView:
    pools = sorted({usage.pool for usage in records.usage if usage.tenant == tenant})
    views = [pool_share_view(records, tenant, pool) for pool in pools]
    return ShareView(tenant=tenant, weight=records.weight(tenant), pools=views)


def pool_share_view(records: ShareRecords, tenant: str, pool: str) -> PoolShareView:
    """The share of a tenant in a pool, of which it may have used nothing. Of other tenants it says sums alone."""
    there = {usage.tenant: usage for usage in records.usage if usage.pool == pool}
    mine = there.get(tenant, PoolUsage(pool, tenant, 0.0, 0))
    everybody = sum(usage.device_seconds for usage in there.values())
    weights = sum(map(records.weight, there.keys() | {tenant}))
    return PoolShareView(
        pool=pool,
        device_seconds=mine.device_seconds,
        devices=mine.devices,
        used_part=round(mine.device_seconds / everybody, 4) if everybody else 0.0,
        due_part=round(records.weight(tenant) / weights, 4),
    )


def _require_operator(who: Principal) -> None:
    """Raises Forbidden: shares are the operator's to give."""
    if who.tenant != DEFAULT_TENANT:
        raise Forbidden("only operators may read or change the shares of other tenants")
