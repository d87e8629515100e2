"""What answers about jobs say of the fleet: the names of devices, and why nodes that are up cannot run a job."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from jobs.model.provided_pool import ProvidedPools
from jobs.model.records import BOX_RIGHTS, NodeRecord
from jobs.store import FleetRecords
from shardyard.formatting import count_noun

#: Nodes that a message names; it counts the others.
MAX_NAMED = 3

#: Of devices, by node and index.
DeviceNames = Mapping[str, Mapping[int, str]]


@dataclass(frozen=True, slots=True)
class UnboxedNode:
    """A node that would take work, had it the box that its pool demands. `devices` are those that a job could get
    there, `lacks` says in words what it has not."""

    id: str
    devices: int
    lacks: str


@dataclass(frozen=True, slots=True)
class PoolBoxes:
    """The nodes of a pool that demands a box. `boxed_devices` is the most that one of those with the box could give to
    a job, however many are busy now."""

    demand: str
    boxed_devices: int
    unboxed: tuple[UnboxedNode, ...]


@dataclass(frozen=True, slots=True)
class NodeReach:
    """How a node that takes work reaches others: those of the same `reach` can run one job together, "" with none.
    `devices` are those that a job could get there."""

    id: str
    devices: int
    reach: str
    address: str


@dataclass(frozen=True, slots=True)
class FleetFacts:
    """`boxes` has the pools in which a node lacks the box, `reaches` those whose nodes do not all reach each other,
    `provided` those whose nodes a provider asks of an engine."""

    names: DeviceNames = field(default_factory=dict)
    boxes: Mapping[str, PoolBoxes] = field(default_factory=dict)
    reaches: Mapping[str, tuple[NodeReach, ...]] = field(default_factory=dict)
    provided: ProvidedPools = field(default_factory=dict)
    closed: frozenset[str] = frozenset()  # pools in which no job runs on several nodes

    @classmethod
    def from_records(cls, fleet: FleetRecords) -> "FleetFacts":
        names = {node.id: {device.index: device.label for device in node.info.devices} for node in fleet.nodes}
        return cls(names, dict(_pool_boxes(fleet)), dict(_pool_reaches(fleet)), fleet.provided, _closed_pools(fleet))

    def labels(self, node: str, indexes: Sequence[int]) -> list[str]:
        """Names of devices for people. A device of a node that is unknown now keeps its index."""
        names = self.names.get(node, {})
        return [names.get(index, f"device:{index}") for index in indexes]

    def missing_nodes(self, pool: str) -> str:
        """Why the nodes that a job waits for are not there yet; "" where no engine will give any."""
        provided = self.provided.get(pool)
        return "" if provided is None else provided.why_waiting

    def missing_box(self, pool: str, devices: int) -> str:
        """Why a job that wants so many devices of one node finds no box in its pool; "" where it may find one, or could
        not run without a box either."""
        boxes = self.boxes.get(pool)
        if boxes is None or boxes.boxed_devices >= devices:
            return ""
        nodes = [node for node in boxes.unboxed if node.devices >= devices]
        return f"which demands {_DEMANDS.get(boxes.demand, boxes.demand)}: {_list_nodes(nodes)}" if nodes else ""

    def missing_reach(self, pool: str, devices: int, nodes: int) -> str:
        """Why a job that wants so many devices of each of several nodes finds too few that reach each other, though so
        many nodes are large enough; "" where it may find them, and for a job of one node."""
        large = [node for node in self.reaches.get(pool, ()) if node.devices >= devices]
        together = Counter(node.reach for node in large if node.reach)
        if nodes == 1 or len(large) < nodes or max(together.values(), default=0) >= nodes:
            return ""
        words = [f"{node.id} listens on {node.address}" for node in large[:MAX_NAMED]]
        if len(large) > MAX_NAMED:
            words.append(f"and {count_noun(len(large) - MAX_NAMED, 'other node')}")
        most = max(together.values(), default=1)
        who = (
            f"of whose nodes no more than {most} reach each other"
            if most > 1
            else "whose nodes do not reach each other"
        )
        return f"{who}: {', '.join(words)}"


_DEMANDS = {"user": "a box around its jobs", "full": "a full box around its jobs"}


def _closed_pools(fleet: FleetRecords) -> frozenset[str]:
    return frozenset(pool for pool, policy in fleet.policies.items() if policy.network == "closed")


def _pool_boxes(fleet: FleetRecords) -> Iterator[tuple[str, PoolBoxes]]:
    for pool, policy in fleet.policies.items():
        nodes = [node for node in fleet.nodes if node.pool == pool and node.is_open]
        unboxed = tuple(UnboxedNode(node.id, node.usable, _describe_lack(node)) for node in nodes if node.unboxed)
        if unboxed:
            boxed_devices = max((node.usable for node in nodes if not node.unboxed), default=0)
            yield pool, PoolBoxes(policy.box, boxed_devices, unboxed)


def _pool_reaches(fleet: FleetRecords) -> Iterator[tuple[str, tuple[NodeReach, ...]]]:
    pools: dict[str, list[NodeReach]] = {}
    for node in fleet.nodes:
        if node.takes_work:
            pools.setdefault(node.pool, []).append(NodeReach(node.id, node.usable, node.reach, node.address))
    for pool, nodes in pools.items():
        if len(nodes) > 1 and ({node.reach for node in nodes} != {nodes[0].reach} or not nodes[0].reach):
            yield pool, tuple(nodes)


def _describe_lack(node: NodeRecord) -> str:
    if node.info.box is None:
        return "does not say that it has one"
    if node.info.box_level == "none":
        return "has none"
    lacks = [right for right in BOX_RIGHTS if not node.info.has_right(right)]
    return f"has the box that is made without root{', and lacks ' + ', '.join(lacks) if lacks else ''}"


def _list_nodes(nodes: Sequence[UnboxedNode]) -> str:
    words = [f"{node.id} {node.lacks}" for node in nodes[:MAX_NAMED]]
    if len(nodes) > MAX_NAMED:
        words.append(f"nor is there one on {count_noun(len(nodes) - MAX_NAMED, 'other node')}")
    return ", ".join(words)
