"""The shapes of answers about who starts when. Fields have defaults, as in `shardyard.contract.responses`."""

import msgspec

from shardyard.contract.responses import Answer


class PoolShareView(Answer, frozen=True, kw_only=True):
    """What a tenant has used of a pool: `device_seconds`, of which those of a day ago count half, and the `devices`
    that it has now. `used_part` is its part of what all tenants have used there, `due_part` that of its weight."""

    pool: str
    device_seconds: float = 0.0
    devices: int = 0
    used_part: float = 0.0
    due_part: float = 0.0


class ShareView(Answer, frozen=True, kw_only=True):
    """The share of a tenant: one of twice the weight may use twice as much before others of its priority go first."""

    tenant: str
    weight: float = 1.0
    pools: list[PoolShareView] = msgspec.field(default_factory=list)


class ShareList(Answer, frozen=True):
    shares: list[ShareView]
