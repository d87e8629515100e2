"""Pools: their policies, which the operator sets, and the blocks of those that a provider keeps."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from jobs.model.pool_policy import DEFAULT_POLICY, PoolPolicy
from jobs.model.provided_pool import SILENT_SECONDS, Block, PoolOffer, ProvidedPool
from jobs.model.records import Fields
from jobs.store.attempts import MAX_LOSSES
from jobs.store.call import Call, call_function, ignore_reply, is_ok, read_hash

#: For so long no node of a block that is over may register.
REMEMBERED_SECONDS = 86_400


def set_policy(pool: str, policy: PoolPolicy) -> Call[None]:
    """Set the policy of a pool, which need not have a node yet. It counts for what is dispatched from then on."""
    stored = b"" if policy == DEFAULT_POLICY else msgspec.json.encode(policy)
    return call_function("set_policy", ignore_reply, pool=pool, policy=stored)


def decode_policies(found: Fields) -> dict[str, PoolPolicy]:
    """Policies by pool, from the hash that has them."""
    return {pool.decode(): msgspec.json.decode(policy, type=PoolPolicy) for pool, policy in sorted(found.items())}


def keep_pool(pool: str, provider: str, ttl_seconds: float, offer: PoolOffer) -> Call[bool]:
    """Say that `provider` keeps a pool, for `ttl_seconds`. False: another one does."""
    return call_function(
        "keep_pool",
        is_ok,
        pool=pool,
        provider=provider,
        ttl_ms=int(ttl_seconds * 1000),
        offer=msgspec.json.encode(offer),
    )


def note_block(pool: str, provider: str, block: Block) -> Call[bool]:
    """Note a block, before the engine is asked for it and whenever something of it changes. False: another provider
    keeps the pool, so the engine must not be asked."""
    return call_function(
        "note_block",
        is_ok,
        pool=pool,
        provider=provider,
        name=block.name,
        block=block.id,
        record=msgspec.json.encode(block),
    )


def end_block(pool: str, block: str, message: str, *, backoff_seconds: float, name: str = "") -> Call[int]:
    """Forget a block that is over, with its nodes: all of its processes are dead, and what they held is free. Attempts
    there end as `node_lost`, with that message. `name` is the provider's. Returns how many nodes it still had."""
    return call_function(
        "end_block",
        int,
        pool=pool,
        name=name,
        block=block,
        message=message,
        backoff_us=int(backoff_seconds * 1e6),
        max_losses=MAX_LOSSES,
        remembered_seconds=REMEMBERED_SECONDS,
    )


def drop_pool(pool: str, provider: str) -> Call[bool]:
    """Keep a pool no more, which has no blocks left. False: another provider keeps it."""
    return call_function("drop_pool", is_ok, pool=pool, provider=provider)


def list_offers() -> Call[dict[str, PoolOffer]]:
    """What providers have said, by pool."""

    def decode(reply: Sequence[bytes]) -> dict[str, PoolOffer]:
        pairs = zip(reply[::2], reply[1::2], strict=True)
        return {pool.decode(): msgspec.json.decode(offer, type=PoolOffer) for pool, offer in pairs}

    return call_function("list_offers", decode)


@dataclass(frozen=True, slots=True)
class ClassDemand:
    """So many jobs wait that want as many `devices` of each of as many `nodes`."""

    devices: int
    nodes: int
    count: int


@dataclass(frozen=True, slots=True)
class NodeSupply:
    """A node of a pool: of what it has, what is not in quarantine, what is free, and what attempts hold."""

    node: str
    block: str
    takes_work: bool
    devices: int
    free: int
    held: int


@dataclass(frozen=True, slots=True)
class PoolDemand:
    classes: tuple[ClassDemand, ...] = ()
    nodes: tuple[NodeSupply, ...] = ()
    blocks: tuple[Block, ...] = ()


def read_demand(pool: str) -> Call[PoolDemand]:
    """What waits in a pool and what there is for it, in a time that does not depend on the length of its queue."""

    def decode(reply: Sequence[Any]) -> PoolDemand:
        classes, nodes, blocks = reply
        return PoolDemand(
            tuple(_read_class(name.decode(), count) for name, count in _chunks(classes, 2)),
            tuple(
                NodeSupply(node.decode(), block.decode(), takes_work == b"1", int(devices), int(free), int(held))
                for node, block, takes_work, devices, free, held in _chunks(nodes, 6)
            ),
            _read_blocks(read_hash(blocks)),
        )

    return call_function("read_demand", decode, pool=pool)


def read_provided(found: Iterable[Any]) -> dict[str, ProvidedPool]:
    """Pools that providers keep, from what `read_fleet` says of them."""
    return {
        pool.decode(): ProvidedPool(
            msgspec.json.decode(offer, type=PoolOffer), int(age) > SILENT_SECONDS * 1e6, _read_blocks(read_hash(blocks))
        )
        for pool, offer, age, blocks in sorted(found)
    }


def _read_blocks(found: Fields) -> tuple[Block, ...]:
    return tuple(msgspec.json.decode(block, type=Block) for _, block in sorted(found.items()))


def _read_class(name: str, count: int) -> ClassDemand:
    devices, _, nodes = name.partition("x")
    return ClassDemand(int(devices), int(nodes or 1), int(count))


def _chunks(values: Sequence[Any], size: int) -> Iterable[Sequence[Any]]:
    return (values[start : start + size] for start in range(0, len(values), size))
