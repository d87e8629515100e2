"""The service of quotas: what tenants and their tokens may use, and what they do use."""

from datetime import UTC, datetime

from api.http import audit
from api.http.auth import Principal
from api.schemas.account_requests import parse_quota
from jobs.model.quota import DEFAULT_WINDOW_HOURS, LIMITS, OF_TENANTS
from jobs.protocol.names import DEFAULT_TENANT
from jobs.store.accounts import quotas, tokens
from jobs.store.accounts.quotas import QuotaUsage
from jobs.store.client import AsyncRedisStore
from shardyard.contract.errors import Forbidden, NotFound
from shardyard.contract.quotas import QuotaLimit, QuotaList, QuotaView


class QuotaService:
    def __init__(self, control: AsyncRedisStore) -> None:
        self._store = control

    async def read_own(self, who: Principal) -> QuotaList:
        """Those of the caller: the tenant's, and the token's."""
        return _quota_list(await self._store.run(quotas.read_quotas(who.tenant, who.token)))

    async def read_quota(self, who: Principal, tenant: str, token: str) -> QuotaView:
        """That of a tenant, or, unless it is "", of one of its tokens.

        Raises:
            Forbidden: it is another tenant's, and the caller is not the operator.
            NotFound: the tenant has no such token.
        """
        if who.tenant not in (tenant, DEFAULT_TENANT):
            raise Forbidden("only operators may read the quotas of another tenant")
        await self._check_token(tenant, token)
        return _quota_list(await self._store.run(quotas.read_quotas(tenant, token))).quotas[-1]

    async def set_quota(self, who: Principal, tenant: str, token: str, body: bytes) -> QuotaView:
        """Set it. What runs goes on, even where that is more now than may be.

        Raises:
            MalformedJson, InvalidRequest: the body is not a quota.
            Forbidden: it is not the caller's to set.
            NotFound: the tenant has no such token.
        """
        _require_setter(who, tenant, token)
        wanted = parse_quota(body, of_token=bool(token))
        await self._check_token(tenant, token)
        await self._store.run(quotas.set_quota(tenant, token, wanted))
        audit.log_audit_event(who, "quota_set", for_tenant=tenant, for_token=token)
        return await self.read_quota(who, tenant, token)

    async def remove_quota(self, who: Principal, tenant: str, token: str) -> None:
        """Raises:
        Forbidden: it is not the caller's to set.
        """
        _require_setter(who, tenant, token)
        await self._store.run(quotas.set_quota(tenant, token, None))
        audit.log_audit_event(who, "quota_removed", for_tenant=tenant, for_token=token)

    async def _check_token(self, tenant: str, token: str) -> None:
        if token and all(known.id != token for known in await self._store.run(tokens.list_tokens(tenant))):
            raise NotFound(f"tenant {tenant!r} has no token {token!r}; `shardyard token list` shows the ids")


def _require_setter(who: Principal, tenant: str, token: str) -> None:
    """The operator sets all quotas; a tenant's administrator those of its tokens."""
    if who.tenant != DEFAULT_TENANT and not (token and who.tenant == tenant):
        raise Forbidden("only operators may set the quota of a tenant")


def _quota_list(found: tuple[QuotaUsage, ...]) -> QuotaList:
    return QuotaList([_quota_view(usage) for usage in found], len(found))


def _quota_view(usage: QuotaUsage) -> QuotaView:
    window = DEFAULT_WINDOW_HOURS if usage.quota is None else usage.quota.window_hours
    limits = [
        QuotaLimit(
            name=name,
            used=usage.used[name],
            allowed=getattr(usage.quota, name, None),
            free_at=_time_of(usage.hours_free_at) if name == "device_hours" else None,
        )
        for name in LIMITS
        if usage.token is None or name not in OF_TENANTS
    ]
    return QuotaView(tenant=usage.tenant, token=usage.token, window_hours=window, limits=limits)


def _time_of(milliseconds: int | None) -> datetime | None:
    return None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, UTC)
