"""Keeps the nodes of one pool: asks the engine for blocks when jobs wait, and releases those that nobody needs.

The record of a block is in the control Redis, and is written before the engine is asked, with a name of its own alone.
So a provider that dies at any moment finds what it has asked for by that name, and asks for nothing twice.

    submitting   noted; the engine is being asked, or has not been heard to answer
    pending      the engine has it
    starting     it runs, and no node of it has joined
    running      nodes of it have joined
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Protocol

import structlog
from msgspec.structs import replace

from jobs.model.provided_pool import MAX_WORDS, Block, PoolOffer
from jobs.scheduling.backoff import backoff_seconds
from jobs.scheduling.node_demand import NodeLimits, NodePlan, plan_nodes
from jobs.store.client import RedisStore
from jobs.store.pools import PoolDemand, drop_pool, end_block, keep_pool, note_block, read_demand
from jobs.support import failpoints
from workers.provider.batch_script import BlockRequest
from workers.provider.slurm import EngineError, EngineJob

log = structlog.get_logger(__name__)

#: A provider that was not heard of for so long has lost its pools to any other that wants them.
KEEP_SECONDS = 300.0
#: A block whose submission was not heard to succeed, and that the engine does not list for so long, was never made.
SETTLE_SECONDS = 60.0
#: Pauses after a refusal, or after a block that ended before a node of it joined, grow from the first to the second.
PAUSE_SECONDS = (10.0, 600.0)
MAX_DOUBLINGS = 10


#: A block whose nodes have left ends within seconds; for so long the engine is asked at once.
EMPTY_SECONDS = 30.0
_CANCELLED = frozenset({"CANCELLED", "PREEMPTED"})


class Engine(Protocol):
    """What a pool keeper asks of an engine."""

    def submit_block(self, request: BlockRequest) -> str:
        """The engine's id of a new block. Raises EngineError."""

    def cancel_pending(self, blocks: Sequence[str]) -> None:
        """Cancel blocks that have not begun. Raises EngineError."""


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """What a pool may have. `gres` is what the engine is asked for with each node."""

    nodes: NodeLimits
    max_pending: int
    gres: str = ""


@dataclass(slots=True)
class _Pause:
    """No block is asked for until a time, since something has failed."""

    failures: int = 0
    until: float = 0.0
    why: str = ""

    def begin(self, why: str) -> None:
        shortest, longest = PAUSE_SECONDS
        self.until = monotonic() + min(longest, shortest * 2 ** min(self.failures, MAX_DOUBLINGS))
        self.failures += 1
        self.why = why[:MAX_WORDS]

    def end(self) -> None:
        self.failures, self.until, self.why = 0, 0.0, ""

    @property
    def lasts(self) -> bool:
        return monotonic() < self.until


@dataclass(slots=True)
class _Memory:
    """What a keeper remembers from look to look, by the names of blocks. Losing it costs time, and nothing else."""

    missing_since: dict[str, float] = field(default_factory=dict)  # submitted, and not listed
    empty_since: dict[str, float] = field(default_factory=dict)  # their nodes have joined, and are gone
    idle_once: frozenset[str] = frozenset()  # not needed when it was last looked


class PoolKeeper:
    """`prefix` is what the names of the pool's blocks begin with. `limits` None: the pool is kept no more, and is
    dropped once it has no blocks."""

    def __init__(
        self, pool: str, engine_name: str, prefix: str, provider: str, control: RedisStore, engine: Engine
    ) -> None:
        self._pool = pool
        self._engine_name = engine_name
        self.prefix = prefix
        self._provider = provider
        self._store = control
        self._engine = engine
        self.limits: PoolLimits | None = None
        self.is_dropped = False
        self._refused = _Pause()  # the engine has refused a block
        self._failed = _Pause()  # it gave one that came to nothing
        self._memory = _Memory()
        self._engine_error = ""
        #: Whether the engine should be asked soon what became of blocks.
        self.wants_listing = True

    def look(self, listing: Sequence[EngineJob] | None, engine_error: str = "") -> None:
        """One look at what waits and what there is. `listing`: the engine's jobs, if it was asked just now; what it
        said in place of an answer is `engine_error`, until it answers."""
        self._engine_error = engine_error
        if not self._announce():
            log.warning("pool_kept_elsewhere", pool=self._pool)
            return
        demand = self._store.run(read_demand(self._pool))
        if listing is not None:
            self.wants_listing = False
            self._compare(demand.blocks, {job.name: job for job in listing if job.name.startswith(self.prefix)})
            demand = self._store.run(read_demand(self._pool))
        demand = self._note_joined(demand)
        if self.limits is None:
            self._drop_when_empty(demand)
            return
        plan = plan_nodes(demand, self.limits.nodes)
        self._cancel_idle(demand, plan)
        if not engine_error:
            self._ask_for_blocks(demand, plan)

    # -- what the service is told ------------------------------------------------------------------------

    def _announce(self) -> bool:
        limits = self.limits.nodes if self.limits is not None else NodeLimits(0, 0)
        offer = PoolOffer(
            self._engine_name,
            self._provider,
            limits.devices,
            limits.max_nodes,
            limits.min_nodes,
            self._engine_error or self._refused.why or self._failed.why,
        )
        return self._store.run(keep_pool(self._pool, self._provider, KEEP_SECONDS, offer))

    def _note(self, block: Block) -> bool:
        return self._store.run(note_block(self._pool, self._provider, block))

    # -- what became of blocks ---------------------------------------------------------------------------

    def _compare(self, blocks: Sequence[Block], jobs: Mapping[str, EngineJob]) -> None:
        for block in blocks:
            job = jobs.get(block.name)
            if job is None:
                self._on_missing(block)
            elif job.has_ended:
                self._end(replace(block, id=job.id), job.state, job.why)
            else:
                self._update(block, job)
        known = {block.name for block in blocks}
        for name, job in jobs.items():
            if name not in known and not job.has_ended:
                log.warning("block_found", pool=self._pool, block=job.id, name=name)
                self._update(Block(name, job.nodes), job)

    def _update(self, block: Block, job: EngineJob) -> None:
        """A block that is found by its name is ours, whether or not we have heard its id."""
        self._memory.missing_since.pop(block.name, None)
        state = "pending" if job.is_pending else "running" if block.registered else "starting"
        updated = replace(block, id=job.id, state=state, why=job.why if job.is_pending else "", nodes=job.nodes)
        if updated != block:
            log.info("block_changed", pool=self._pool, block=job.id, state=state, why=updated.why)
            self._note(updated)

    def _on_missing(self, block: Block) -> None:
        """The engine does not list a block: it has ended long ago, or was never made, or is on its way there."""
        if block.id:
            self._end(block, "UNKNOWN")
            return
        since = self._memory.missing_since.setdefault(block.name, monotonic())
        self.wants_listing = True
        if monotonic() - since >= SETTLE_SECONDS:
            self._forget(block, "")

    def _end(self, block: Block, state: str, why: str = "") -> None:
        """One that ended by itself without a node is likely to do so again."""
        words = f"{state}, {why}" if why else state
        if not block.registered and state not in _CANCELLED:
            self._failed.begin(
                f"block {block.id} ended ({words}) before a node of it joined; `output` in the pools file says where "
                "its output is"
            )
        self._forget(block, words)

    def _forget(self, block: Block, why: str) -> None:
        message = f"block {block.id} is over: {why}"
        self._memory.missing_since.pop(block.name, None)
        nodes = self._store.run(
            end_block(self._pool, block.id, message, backoff_seconds=backoff_seconds(), name=block.name)
        )
        log.info("block_over", pool=self._pool, block=block.id, why=why, nodes_left=nodes)

    def _note_joined(self, demand: PoolDemand) -> PoolDemand:
        """Note how many nodes of each block have joined. One that has none any more ends about now."""
        present: dict[str, int] = {}
        for node in demand.nodes:
            present[node.block] = present.get(node.block, 0) + 1
        blocks, empty = [], {}
        for block in demand.blocks:
            joined = present.get(block.id, 0) if block.id else 0
            if joined > block.registered:
                self._failed.end()
                block = replace(block, registered=joined, state="running", why="")
                self._note(block)
            elif block.registered and not joined:
                empty[block.name] = self._memory.empty_since.get(block.name, monotonic())
            blocks.append(block)
        self._memory.empty_since = empty
        self.wants_listing |= any(monotonic() - since < EMPTY_SECONDS for since in empty.values())
        return PoolDemand(demand.classes, demand.nodes, tuple(blocks))

    def _drop_when_empty(self, demand: PoolDemand) -> None:
        pending = [block.id for block in demand.blocks if block.state == "pending"]
        if pending:
            self._cancel(pending)
        if not demand.blocks:
            self.is_dropped = self._store.run(drop_pool(self._pool, self._provider))

    # -- what is asked of the engine ---------------------------------------------------------------------

    def _cancel_idle(self, demand: PoolDemand, plan: NodePlan) -> None:
        """Cancel what waits for the engine and was not needed in two looks: a job may be between two attempts."""
        idle = frozenset(
            block.name
            for block in demand.blocks
            if block.name in plan.idle_blocks and block.state == "pending" and not block.kept
        )
        twice = [block.id for block in demand.blocks if block.name in idle & self._memory.idle_once]
        self._memory.idle_once = idle
        if twice:
            self._cancel(twice)

    def _cancel(self, blocks: Sequence[str]) -> None:
        log.info("blocks_cancelled", pool=self._pool, blocks=list(blocks))
        self.wants_listing = True
        try:
            self._engine.cancel_pending(blocks)
        except EngineError as error:
            log.warning("blocks_not_cancelled", pool=self._pool, blocks=list(blocks), error=str(error))

    def _ask_for_blocks(self, demand: PoolDemand, plan: NodePlan) -> None:
        assert self.limits is not None
        waiting = sum(block.state in ("submitting", "pending") for block in demand.blocks)
        kept = sum(block.nodes for block in demand.blocks if block.kept)
        for nodes in plan.new_blocks:
            if self._refused.lasts or self._failed.lasts or waiting >= self.limits.max_pending:
                return
            is_kept = kept + nodes <= self.limits.nodes.min_nodes
            if not self._ask_for(nodes, is_kept=is_kept):
                return
            waiting += 1
            kept += nodes if is_kept else 0

    def _ask_for(self, nodes: int, *, is_kept: bool) -> bool:
        """Ask for a block, which is noted first. Whether there may be one now."""
        assert self.limits is not None
        block = Block(f"{self.prefix}{uuid.uuid4().hex[:12]}", nodes, kept=is_kept)
        if not self._note(block):
            return False
        self.wants_listing = True
        failpoints.reach("block_noted")
        try:
            request = BlockRequest(self._pool, block.name, nodes, self.limits.gres, is_kept)
            found = self._engine.submit_block(request)
        except EngineError as error:
            log.warning("block_refused", pool=self._pool, name=block.name, error=str(error))
            self._refused.begin(str(error))
            if not error.unclear:
                self._forget(block, "")
            return False
        failpoints.reach("block_submitted")
        log.info("block_submitted", pool=self._pool, block=found, nodes=nodes)
        self._refused.end()
        self._note(replace(block, id=found, state="pending"))
        return True
