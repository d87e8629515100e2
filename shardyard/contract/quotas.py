"""The shapes of answers about quotas. Fields have defaults, as in `shardyard.contract.responses`."""

from datetime import datetime

import msgspec

from shardyard.contract.responses import Answer


class QuotaLimit(Answer, frozen=True, kw_only=True):
    """One limit: what is used of it, and what may be used (null: as much as there is). `used` is null where it is not
    counted, because the tenant or the token has no quota. `free_at` is when device-hours are below their limit again,
    if nothing more is used."""

    name: str  # jobs | running | devices | device_hours | spec_bytes | bundle_bytes | file_bytes
    used: float | None = None
    allowed: float | None = None
    free_at: datetime | None = None


class QuotaView(Answer, frozen=True, kw_only=True):
    """What a tenant, or (`token`) one of its tokens, may use. Device-hours are those of the last `window_hours`."""

    tenant: str
    token: str | None = None
    window_hours: int = 24
    limits: list[QuotaLimit] = msgspec.field(default_factory=list)


class QuotaList(Answer, frozen=True):
    quotas: list[QuotaView]
    total: int | None = None
