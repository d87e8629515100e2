"""Nodes: registered, alive, drained, gone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

import msgspec

from jobs.model.pool_policy import DEFAULT_POLICY, PoolPolicy
from jobs.model.provided_pool import ProvidedPools
from jobs.model.records import Fields, LowDisk, NodeInfo, NodeRecord
from jobs.model.state import AttemptState
from jobs.store.attempts import AttemptId, PartId
from jobs.store.call import Call, call_function, is_ok, raise_if_missing, read_hash
from jobs.store.pools import decode_policies, read_provided
from shardyard.contract.errors import FormatMismatch, NodeInUse, NotFound

#: Of the keys as a whole. It changes when a version of the service could not work beside the one before it; what is
#: added, keys and fields of hashes, changes nothing here: whoever does not know it leaves it alone.
FORMAT = "1"


class Registration(StrEnum):
    OK = "ok"
    TAKEN = "taken"  # another worker, with another state directory, serves this node now
    STRANDED = "stranded"  # the node holds devices of attempts whose traces are in another state directory
    OVER = "over"  # the block that it belongs to has ended


def register_node(
    node: str,
    instance: str,
    pool: str,
    address: str,
    info: NodeInfo,
    *,
    home: str,
    reach: str = "",
    topology: str = "",
    block: str = "",
) -> Call[Registration]:
    """Announce a node. `home` is the nonce of the state directory that keeps the traces of its attempts. Nodes of the
    same `reach` can run one job together (empty: it can with none), and those of the same `topology` do so first. A
    node of a `block` is forgotten with that."""
    return call_function(
        "register_node",
        lambda reply: Registration(reply.decode()),
        *(device.name_in_fleet(node) for device in info.devices),
        node=node,
        instance=instance,
        pool=pool,
        address=address,
        info=msgspec.json.encode(info),
        count=len(info.devices),
        home=home,
        box=info.box_level,
        box_network="1" if info.has_right("network") else "",
        reach=reach,
        topology=topology,
        block=block,
    )


def forget_node(node: str) -> Call[None]:
    """Drop a node that is gone for good, and what it held.

    Raises (on execution):
        NotFound: there is no such node.
        NodeInUse: it is alive, or a lease on it has not expired yet.
    """

    def decode(reply: bytes) -> None:
        if reply == b"missing":
            raise NotFound(f"there is no node {node!r}")
        if reply == b"alive":
            raise NodeInUse(f"node {node} is alive; stop its worker first")
        if reply == b"leased":
            raise NodeInUse(f"an attempt on node {node} still holds its lease; try again when it has expired")

    return call_function("forget_node", decode, node=node)


class NodeStanding(StrEnum):
    OK = "ok"
    REPLACED = "replaced"  # another worker registered under the same node id
    UNKNOWN = "unknown"  # the control Redis has lost this node; register again


@dataclass(frozen=True, slots=True)
class DrainDeadline:
    """When what runs on a node that drains is to move. `drain` is the number of the drain that set it."""

    drain: int
    seconds_left: float


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    standing: NodeStanding
    holding: dict[AttemptId, AttemptState]
    deadline: DrainDeadline | None = None  # None: there is none, or it is over and told


def renew_node(
    node: str, instance: str, deadline: DrainDeadline | None = None, low: LowDisk | None = None
) -> Call[HeartbeatReply]:
    """Beat as a node; learns which attempts hold devices here, in which state they are, and how long they may stay.
    `deadline` is what the node knows of that; the rest of it is kept for a worker that comes back. While a disk is
    `low`, the node gets no work."""

    def decode(reply: Sequence[bytes]) -> HeartbeatReply:
        status, *rest = (part.decode() for part in reply)
        if not rest:
            return HeartbeatReply(NodeStanding(status), {})
        drain, left, *attempts = rest
        pairs = zip(attempts[::2], attempts[1::2], strict=True)
        holding = {AttemptId.parse(ref): AttemptState(state) for ref, state in pairs}
        return HeartbeatReply(NodeStanding(status), holding, DrainDeadline(int(drain), float(left)) if left else None)

    drain, left = (deadline.drain, f"{deadline.seconds_left:.3f}") if deadline is not None else ("", "")
    return call_function(
        "renew_node",
        decode,
        node=node,
        instance=instance,
        known_drain=drain,
        known_left=left,
        low=b"" if low is None else msgspec.json.encode(low),
    )


def take_down_node(node: str, heartbeat: int | None) -> Call[bool]:
    """Take a node out of scheduling: its beat stood still, or (`heartbeat` None) it says so itself."""
    return call_function("take_down_node", is_ok, node=node, heartbeat="" if heartbeat is None else heartbeat)


def leave_block(node: str, instance: str) -> Call[bool]:
    """Take a node of a block out of the service for good. False: something still holds its devices, so it is forgotten
    with its block."""
    return call_function("leave_block", is_ok, node=node, instance=instance)


def leave_idle_node(node: str) -> Call[bool]:
    """Give a node no more work because it has been idle. False: it has just got some."""
    return call_function("leave_idle_node", is_ok, node=node)


def stop_node(node: str) -> Call[int]:
    """Tell the supervisors of a node to end their attempts, which go back to queued. Returns how many are live;
    those that nobody had claimed have ended with this call."""
    return call_function("stop_node", int, node=node)


def drain_node(node: str, *, deadline_seconds: float | None = None) -> Call[None]:
    """Give a node no new work. After the deadline, where there is one, what still runs there goes to other nodes.
    Asking again replaces the deadline. Raises NotFound on execution."""
    return _set_drain(node, "draining", enabled=True, deadline_seconds=deadline_seconds)


def undrain_node(node: str) -> Call[None]:
    """Give a node work again. Raises NotFound on execution."""
    return _set_drain(node, "draining", enabled=False)


def leave_node(node: str, *, deadline_seconds: float | None = None) -> Call[None]:
    """A drain that the node's own worker asks for, before it leaves; it ends when another worker registers the node.
    Raises NotFound on execution."""
    return _set_drain(node, "leaving", enabled=True, deadline_seconds=deadline_seconds)


def _set_drain(
    node: str, mode: Literal["draining", "leaving"], *, enabled: bool, deadline_seconds: float | None = None
) -> Call[None]:
    seconds = "" if deadline_seconds is None else f"{deadline_seconds:.3f}"
    decode = raise_if_missing(NotFound(f"there is no node {node!r}"))
    return call_function("drain_node", decode, node=node, mode=mode, enabled="1" if enabled else "", seconds=seconds)


def evict_node(node: str, drain: int) -> Call[bool]:
    """Send what runs on a node to other nodes: the deadline of its drain, the one of that number, is over. False: it
    drains no longer, or has another deadline by now."""
    return call_function("evict_node", is_ok, node=node, drain=drain)


def relieve_node(node: str, instance: str, low: LowDisk) -> Call[int]:
    """Have all attempts of a node save what they have done and go back to queued, at no cost: a disk there, `low`, is
    nearly full. The node gets no work from then on, until a heartbeat says that there is room. Returns how many were
    asked for the first time; nothing happens where `instance` is not the node's worker any more."""
    return call_function("relieve_node", int, node=node, instance=instance, low=msgspec.json.encode(low))


@dataclass(frozen=True, slots=True)
class Heartbeats:
    """Everything that the reaper watches, each with its counter."""

    leases: dict[PartId, int]
    nodes: dict[str, int]  # those that count as alive


def read_heartbeats() -> Call[Heartbeats]:
    def decode(reply: Sequence[Any]) -> Heartbeats:
        leases, nodes = reply
        return Heartbeats(
            {PartId(AttemptId.parse(ref.decode()), node.decode()): int(heartbeat) for ref, heartbeat, node in leases},
            {node.decode(): int(heartbeat) for node, heartbeat in nodes},
        )

    return call_function("read_heartbeats", decode)


def identify_storage(proposed: str) -> Call[str]:
    """The nonce of the service's storage directory; `proposed` becomes it when there is none yet.

    Raises (on execution):
        FormatMismatch: another version of the service keeps its keys in another way there.
    """

    def decode(reply: Sequence[bytes]) -> str:
        nonce, found = (part.decode() for part in reply)
        if found != FORMAT:
            raise FormatMismatch(
                f"the control Redis has keys of format {found}, and this version of the service knows {FORMAT}; "
                "install the version that the rest of the service has"
            )
        return nonce

    return call_function("identify_storage", decode, proposed_nonce=proposed, format=FORMAT)


def acquire_lead(candidate: str, ttl_seconds: float) -> Call[float]:
    """0 while `candidate` leads; it must ask again within `ttl_seconds`. Otherwise the seconds until the lead may be
    free."""
    return call_function(
        "acquire_lead", lambda milliseconds: milliseconds / 1000, candidate=candidate, ttl_ms=int(ttl_seconds * 1000)
    )


@dataclass(frozen=True, slots=True)
class FleetRecords:
    nodes: tuple[NodeRecord, ...]
    queued: dict[str, int]  # pool -> jobs that wait in it
    policies: Mapping[str, PoolPolicy] = field(default_factory=dict)  # by pool, of those that have one
    provided: ProvidedPools = field(default_factory=dict)  # by pool, of those that a provider keeps


def read_fleet() -> Call[FleetRecords]:
    """Every node, pool and policy."""

    def decode(reply: Sequence[Any]) -> FleetRecords:
        nodes, pools, found, provided = reply
        policies = decode_policies(read_hash(found))
        records = (
            _read_node(node.decode(), [read_hash(reply) for reply in hashes], policies) for node, *hashes in nodes
        )
        return FleetRecords(
            tuple(sorted(records, key=lambda node: node.id)),
            {pool.decode(): int(n) for pool, n in sorted(pools)},
            policies,
            read_provided(provided),
        )

    return call_function("read_fleet", decode)


def _read_node(node: str, hashes: Sequence[Fields], policies: Mapping[str, PoolPolicy]) -> NodeRecord:
    fields, held, quarantine, suspects = hashes
    policy = policies.get(fields[b"pool"].decode(), DEFAULT_POLICY)
    return NodeRecord.from_fields(node, fields, held, quarantine, suspects, policy)
