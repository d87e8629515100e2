"""Sends the node's heartbeat, and learns from the answer which attempts hold devices here."""

import math
from collections.abc import Callable
from time import monotonic

import structlog

from jobs import store
from jobs.files import identity
from jobs.model.records import LowDisk
from jobs.store.client import RedisStore
from workers.node.config import NodeConfig
from workers.node.drain import DrainTimer
from workers.node.held_attempts import HeldAttempts
from workers.node.registration import NodeTaken

log = structlog.get_logger(__name__)


class NodeHeartbeat:
    def __init__(
        self,
        config: NodeConfig,
        control: RedisStore,
        instance: str,
        held: HeldAttempts,
        low_disk: Callable[[], LowDisk | None],
    ) -> None:
        """`low_disk` returns the disk that has too little room for work, if there is one."""
        self._config = config
        self._store = control
        self.instance = instance
        self._held = held
        self._low_disk = low_disk
        self._sent_at = -math.inf  # by the monotonic clock
        self.count = 0
        self.drain = DrainTimer()

    @property
    def is_due(self) -> bool:
        return monotonic() - self._sent_at >= self._config.settings.beat_seconds

    def send_soon(self) -> None:
        """Have the next heartbeat sent as soon as the agent looks whether it is due."""
        self._sent_at = -math.inf

    def send(self) -> bool:
        """Send one heartbeat. False: the service does not know this node any more, so it must register again.

        Raises:
            NodeTaken: another worker has registered as this node.
            StorageMismatch: the storage directory is not that of the service.
        """
        self._sent_at = monotonic()
        identity.check_storage(self._config.storage)  # first: a node without its storage must take no work
        node = self._config.node_id
        reply = self._store.run(store.renew_node(node, self.instance, self.drain.remaining(), self._low_disk()))
        if reply.standing is store.NodeStanding.REPLACED:
            raise NodeTaken(f"another worker registered as node {node!r}")
        self._held.replace_all(reply.holding)
        self.drain.update(reply.deadline)
        self.count += 1
        return reply.standing is store.NodeStanding.OK

    def enforce_drain_deadline(self) -> None:
        """Move the attempts that still run here to other nodes once the time of a drain is over."""
        number = self.drain.expired_number()
        if number is not None:
            self._store.run(store.evict_node(self._config.node_id, number))
            log.info("drain_deadline_over", attempts=[str(attempt) for attempt in self._held.attempt_ids()])
            self.drain.clear()
