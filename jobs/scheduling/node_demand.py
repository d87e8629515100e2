"""How many nodes a pool should have: for the jobs that wait, on top of what it already has.

Jobs are packed into what is free and what is coming, the largest first; what does not fit wants new nodes. The time
that takes grows with the nodes of the pool and its classes of jobs, and not with the length of its queue.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from jobs.store.pools import ClassDemand, PoolDemand

#: Gangs of one class that are looked at: more cannot run side by side in any pool that is kept by one provider.
MAX_GANGS = 256


@dataclass(frozen=True, slots=True)
class NodeLimits:
    """What one new node has, and how many nodes there may be and must be at least. `devices` 0: not known."""

    devices: int
    max_nodes: int
    min_nodes: int = 0


@dataclass(frozen=True, slots=True)
class NodePlan:
    """`wanted` nodes are those that work, those that what waits needs, and the least number. `new_blocks` are the sizes
    of blocks to ask for, `idle_blocks` the names of those that are coming and that nothing needs."""

    wanted: int
    new_blocks: tuple[int, ...] = ()
    idle_blocks: frozenset[str] = frozenset()


@dataclass(slots=True)
class _Bin:
    """A node: what is free of it, and the block that it will come with, "" where it is there."""

    free: int
    block: str = ""
    used: bool = False

    def take(self, devices: int) -> None:
        self.free -= devices
        self.used = True


@dataclass(slots=True)
class _Packing:
    limits: NodeLimits
    bins: list[_Bin]
    count: int  # nodes that there are and will be, with those that take no work
    new_blocks: list[int] = field(default_factory=list)

    @property
    def room(self) -> int:
        """Nodes that may still be asked for."""
        return max(0, self.limits.max_nodes - self.count)

    def add_block(self, nodes: int) -> list[_Bin]:
        added = [_Bin(self.limits.devices, "new") for _ in range(nodes)]
        self.bins += added
        self.count += nodes
        self.new_blocks.append(nodes)
        return added

    def pack_singles(self, wanted: ClassDemand) -> None:
        left = wanted.count
        for node in self.bins:
            fitting = min(left, node.free // wanted.devices)
            if fitting > 0:
                node.take(fitting * wanted.devices)
                left -= fitting
        each = self.limits.devices // wanted.devices
        while left > 0 and each > 0 and self.room > 0:
            fitting = min(left, each)
            self.add_block(1)[0].take(fitting * wanted.devices)
            left -= fitting

    def pack_gangs(self, wanted: ClassDemand) -> None:
        for _ in range(min(wanted.count, MAX_GANGS)):
            if not self._pack_gang(wanted):
                return

    def _pack_gang(self, wanted: ClassDemand) -> bool:
        fitting = [node for node in self.bins if node.free >= wanted.devices][: wanted.nodes]
        missing = wanted.nodes - len(fitting)
        if missing and self.limits.devices < wanted.devices:
            return False
        if missing and self.room >= wanted.nodes:
            fitting = self.add_block(wanted.nodes)  # of one block, whose nodes stand together
        elif missing and self.room >= missing:
            fitting += self.add_block(missing)
        elif missing:
            return False
        for node in fitting:
            node.take(wanted.devices)
        return True


def plan_nodes(demand: PoolDemand, limits: NodeLimits) -> NodePlan:
    """What a pool should have. Blocks of the demand are those that its provider knows."""
    packing = _Packing(limits, _bins_of(demand, limits), _count_nodes(demand))
    busy = sum(node.held > 0 for node in demand.nodes)
    for wanted in _by_size(demand.classes):
        (packing.pack_gangs if wanted.nodes > 1 else packing.pack_singles)(wanted)
    needed = _idle_nodes_that_are_used(demand, packing) + busy
    while packing.count < min(limits.min_nodes, limits.max_nodes):
        packing.add_block(1)
    used = {node.block for node in packing.bins if node.used}
    idle = frozenset(block.name for block in demand.blocks if block.coming and block.name not in used)
    return NodePlan(max(needed, min(limits.min_nodes, limits.max_nodes)), tuple(packing.new_blocks), idle)


def _bins_of(demand: PoolDemand, limits: NodeLimits) -> list[_Bin]:
    """The nodes that take work, those with the least room first, then those that are coming."""
    there = [_Bin(node.free) for node in sorted(demand.nodes, key=lambda node: node.free) if node.takes_work]
    coming = (block.name for block in demand.blocks for _ in range(block.coming))
    return there + [_Bin(limits.devices, name) for name in coming]


def _count_nodes(demand: PoolDemand) -> int:
    """Nodes that there are, or that the engine will give or still gives: one that has left its block has not left the
    engine's."""
    known = {block.id for block in demand.blocks if block.id}
    others = sum(node.block not in known for node in demand.nodes)
    return others + sum(block.nodes for block in demand.blocks)


def _idle_nodes_that_are_used(demand: PoolDemand, packing: _Packing) -> int:
    """Nodes that nothing runs on yet, and that the plan needs."""
    free = sorted((node for node in demand.nodes if node.takes_work), key=lambda node: node.free)
    there = sum(bin_.used and not node.held for node, bin_ in zip(free, packing.bins, strict=False))
    return there + sum(bin_.used for bin_ in packing.bins[len(free) :])


def _by_size(classes: Iterable[ClassDemand]) -> Sequence[ClassDemand]:
    """Gangs first, the largest first: small jobs fit into what they leave."""
    return sorted(classes, key=lambda one: (one.nodes, one.devices), reverse=True)
