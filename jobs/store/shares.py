"""Fair shares: the weights of tenants, and what each has used of a pool."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jobs.store.call import Call, call_function, ignore_reply, read_hash

#: Of a tenant for which the operator has set none.
DEFAULT_WEIGHT = 1.0
MIN_WEIGHT, MAX_WEIGHT = 0.001, 1000.0


@dataclass(frozen=True, slots=True)
class PoolUsage:
    """What a tenant has used of a pool: device-seconds, of which those of a day ago count half, and how many devices it
    has now."""

    pool: str
    tenant: str
    device_seconds: float
    devices: int


@dataclass(frozen=True, slots=True)
class ShareRecords:
    """`weights` are those that the operator has set."""

    weights: dict[str, float]
    usage: tuple[PoolUsage, ...]

    def weight(self, tenant: str) -> float:
        return self.weights.get(tenant, DEFAULT_WEIGHT)


def set_share(tenant: str, weight: float | None) -> Call[None]:
    """Set the weight of a tenant; None takes it back. It counts from the next dispatch on."""
    return call_function("set_share", ignore_reply, tenant=tenant, weight="" if weight is None else repr(weight))


def read_shares() -> Call[ShareRecords]:
    """The weights of tenants, and what each has used of every pool."""

    def decode(reply: Sequence[Any]) -> ShareRecords:
        weights, accounts = reply
        return ShareRecords(
            {tenant.decode(): float(weight) for tenant, weight in sorted(read_hash(weights).items())},
            tuple(
                sorted(
                    (
                        PoolUsage(pool.decode(), tenant.decode(), float(used), int(devices))
                        for pool, tenant, used, devices in accounts
                    ),
                    key=lambda usage: (usage.pool, usage.tenant),
                )
            ),
        )

    return call_function("read_shares", decode)


def settle_shares() -> Call[None]:
    """Bring what tenants have used up to now, and queue for them what an earlier version of the service has queued."""
    return call_function("settle_shares", ignore_reply)
