"""Policies of pools: set by the operator, and read with the fleet."""

import msgspec

from jobs.model.pool_policy import DEFAULT_POLICY, PoolPolicy
from jobs.model.records import Fields
from jobs.store.call import Call, call_function, ignore_reply


def set_policy(pool: str, policy: PoolPolicy) -> Call[None]:
    """Set the policy of a pool, which need not have a node yet. It counts for what is dispatched from then on."""
    stored = b"" if policy == DEFAULT_POLICY else msgspec.json.encode(policy)
    return call_function("set_policy", ignore_reply, pool=pool, policy=stored)


def decode_policies(found: Fields) -> dict[str, PoolPolicy]:
    """Policies by pool, from the hash that has them."""
    return {pool.decode(): msgspec.json.decode(policy, type=PoolPolicy) for pool, policy in sorted(found.items())}
