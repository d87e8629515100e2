"""Pools whose nodes an engine supplies, as their provider describes them to the service."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

#: A provider that has said nothing for so long is taken to be gone. It speaks every few seconds.
SILENT_SECONDS = 90.0
#: Of the name of a block, as of an engine's message, what is kept.
MAX_WORDS = 500


class PoolOffer(msgspec.Struct, frozen=True):
    """What a provider says of a pool: `devices` of each node that it would start, and at most how many `nodes`. `error`
    is why the engine gives none now, "" where it does. The layout grows at the end."""

    engine: str
    provider: str
    devices: int
    nodes: int
    min_nodes: int = 0
    error: str = ""


class Block(msgspec.Struct, frozen=True):
    """Nodes that an engine supplies together. `id` is the engine's, "" before it has answered. `state` is one of
    `submitting`, `pending`, `starting` and `running`; `why` is the engine's reason for a wait. `kept`: its nodes stay
    while they are idle. `registered`: how many of its nodes have ever joined the service. The layout grows at the end.
    """

    name: str
    nodes: int
    id: str = ""
    state: str = "submitting"
    why: str = ""
    kept: bool = False
    registered: int = 0

    @property
    def coming(self) -> int:
        """Nodes that have not joined yet."""
        return max(0, self.nodes - self.registered)

    def describe(self, engine: str) -> str:
        """What a job that waits for it is told."""
        name = engine.capitalize()
        if self.state == "submitting":
            return f"a block of {self.nodes} was requested from {name}"
        if self.state == "pending":
            return f"block {self.id} is pending in {name}: {self.why or 'no reason is given'}"
        if self.state == "starting":
            return f"block {self.id} has begun in {name}, and its nodes have not joined yet"
        return f"block {self.id} runs in {name}"


@dataclass(frozen=True, slots=True)
class ProvidedPool:
    """An offer with its blocks. `silent`: its provider has not been heard of lately."""

    offer: PoolOffer
    silent: bool = False
    blocks: tuple[Block, ...] = field(default_factory=tuple)

    @property
    def largest_node(self) -> int:
        """Devices of a node that it would start."""
        return self.offer.devices if self.offer.nodes else 0

    @property
    def why_waiting(self) -> str:
        """Why a job waits for nodes of it; "" where more will not come."""
        engine = self.offer.engine
        if self.silent:
            return f"the provider of this pool ({self.offer.provider}) sends nothing; start `shardyard provider` again"
        if awaited := next((block for block in self._in_order if block.coming), None):
            return awaited.describe(engine)
        if self.offer.error:
            return f"{engine.capitalize()} gives no block: {self.offer.error}"
        if sum(block.nodes for block in self.blocks) < self.offer.nodes:
            return f"a block will be requested from {engine.capitalize()}"
        return ""

    @property
    def _in_order(self) -> list[Block]:
        """Those that are closest to a node first."""
        order = ("starting", "running", "pending", "submitting")
        return sorted(self.blocks, key=lambda block: (order.index(block.state), block.id))


#: By the names of pools.
ProvidedPools = Mapping[str, ProvidedPool]
