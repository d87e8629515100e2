"""The reconciler: leases devices to queued jobs, sends hints, and ends attempts that have died.

Every API process and every node runs one. All it does is atomic in Redis, so any number may run at
once. To spare Redis, reaping is left to one of them at a time, which leads; and so is the rest where
no API process is there that hears at once when something was queued or freed.
"""

import threading
import uuid
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from time import monotonic
from typing import Generic, TypeVar

import structlog
from redis.exceptions import RedisError

from jobs import store
from jobs.model.settings import Settings
from jobs.model.state import StateReason
from jobs.protocol.names import WAKE_CHANNEL
from jobs.scheduling.backoff import backoff_seconds
from jobs.scheduling.hints import HintSender
from jobs.store import shares
from jobs.store.client import RedisStore
from jobs.support.outage_log import CONTROL_REDIS
from shardyard.contract.errors import Unavailable

log = structlog.get_logger(__name__)

K = TypeVar("K", bound=Hashable)
#: How often whoever leads settles the accounts of tenants: little against what a share is counted over.
SETTLE_SECONDS = 10.0


class LivenessTracker(Generic[K]):
    """Finds counters that have stood still for `patience` seconds of watched time.

    Watched time is what this process has itself seen, by a monotonic clock: `look` adds at most
    `longest_gap` for one pair of looks, and `forget` (Redis was away) starts over. So neither an
    outage, nor a suspended process, nor a jumping clock reads as a death.
    """

    def __init__(self, patience: float, longest_gap: float, clock: Callable[[], float] = monotonic) -> None:
        self._patience = patience
        self._longest_gap = longest_gap
        self._clock = clock
        self._last_check: float | None = None
        self._seen: dict[K, tuple[int, float]] = {}  # key -> counter, seconds it was seen unchanged

    def find_silent(self, counters: Mapping[K, int]) -> Iterable[tuple[K, int]]:
        now = self._clock()
        passed = 0.0 if self._last_check is None else min(now - self._last_check, self._longest_gap)
        self._last_check = now
        still: dict[K, tuple[int, float]] = {}
        for key, counter in counters.items():
            before, seconds = self._seen.get(key, (counter, -passed))
            still[key] = (counter, seconds + passed if counter == before else 0.0)
        self._seen = still
        return [(key, counter) for key, (counter, seconds) in still.items() if seconds >= self._patience]

    def reset(self) -> None:
        self._last_check = None
        self._seen = {}


def _unclaimed_parts(leases: Mapping[store.PartId, int]) -> dict[store.PartId, int]:
    """The parts that nobody has claimed of attempts on several nodes, where those that were claimed wait for them. The
    first heartbeat of a part is its claim."""
    waiting = {part: beats for part, beats in leases.items() if beats == 0}
    if not waiting:
        return {}
    parts = Counter(part.attempt for part in leases)
    return {part: beats for part, beats in waiting.items() if parts[part.attempt] > 1}


class JobScheduler:
    """Runs `tick` in a thread every `reconcile_seconds`, and `deliver` at once when something is
    queued or freed (if `listen`; nodes do not, or a thousand of them would race for every job. A node
    that does not lead has nothing to do until the lead may be free)."""

    def __init__(self, control: RedisStore, hint_sender: HintSender, settings: Settings, *, listen: bool) -> None:
        self._store = control
        self._hint_sender = hint_sender
        self._settings = settings
        self._listen = listen
        self._name = uuid.uuid4().hex
        self._dispatch = store.dispatch(settings.hold_seconds, avoid_slow_from=settings.avoid_slow_from)
        gap = 3 * settings.reconcile_seconds
        self._leases: LivenessTracker[store.PartId] = LivenessTracker(settings.lease_seconds, gap)
        self._unclaimed: LivenessTracker[store.PartId] = LivenessTracker(settings.join_seconds, gap)
        self._nodes: LivenessTracker[str] = LivenessTracker(settings.node_seconds, gap)
        #: Less than a lease: a node and its attempts fall silent together, not all at the same moment.
        patience = min(settings.node_seconds, settings.lease_seconds / 2)
        self._silent_nodes: LivenessTracker[str] = LivenessTracker(patience, gap)
        self._settle_at = monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run_loop, name="scheduler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """End the thread; it finishes the tick it is in."""
        self._stop.set()
        if self._listen:
            with suppress(RedisError):  # away: nobody listens now
                self._store.client.publish(WAKE_CHANNEL, "")  # else it listens until the next tick is due
        self._thread.join(timeout)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def tick(self) -> float:
        """One round; the seconds until the next is due. Raises Unavailable while Redis is away."""
        seconds = self._settings.reconcile_seconds
        taken = self._store.run(store.acquire_lead(self._name, 3 * seconds))
        if self._listen or not taken:
            self.dispatch_jobs()
        if not taken:
            self._reap_silent()
            self._settle_shares()
            return seconds
        self._reset_trackers()
        return min(seconds, taken) if self._listen else taken

    def dispatch_jobs(self) -> None:
        """Lease what fits, then send every hint that is due."""
        while True:
            dispatched = self._store.run(self._dispatch)
            for hint in dispatched.hints:
                self._send_hint(hint)
            if len(dispatched.created) < store.MAX_DISPATCHED:
                return

    def _send_hint(self, hint: store.Hint) -> None:
        try:
            self._hint_sender.send(hint)
        except Exception as error:  # noqa: BLE001  (a carrier may raise anything; the hint stays due)
            log.warning("hint_not_sent", node=hint.node, attempt=str(hint.attempt), error=str(error))

    def _reap_silent(self) -> None:
        heartbeats = self._store.run(store.read_heartbeats())
        silent = dict(self._silent_nodes.find_silent(heartbeats.nodes))
        unclaimed = _unclaimed_parts(heartbeats.leases)
        for tracker, counters, seconds in (
            (self._leases, heartbeats.leases, self._settings.lease_seconds),
            (self._unclaimed, unclaimed, self._settings.join_seconds),
        ):
            for part, heartbeat in tracker.find_silent(counters):
                self._reap(part, heartbeat, silent.get(part.node), f"{seconds:g} s")
        for node, heartbeat in self._nodes.find_silent(heartbeats.nodes):
            if self._store.run(store.take_down_node(node, heartbeat)):
                log.warning("node_down", node=node, seconds=self._settings.node_seconds)

    def _settle_shares(self) -> None:
        if monotonic() >= self._settle_at:
            self._store.run(shares.settle_shares())
            self._settle_at = monotonic() + SETTLE_SECONDS

    def _reap(self, part: store.PartId, heartbeat: int, node_heartbeat: int | None, seconds: str) -> None:
        attempt, node = part
        lost = store.reap(
            attempt,
            StateReason.LEASE_EXPIRED,
            f"no heartbeat for {seconds}",
            heartbeat=heartbeat,
            backoff_seconds=backoff_seconds(),
            node=node,
            node_heartbeat=node_heartbeat,
            node_message=f"node {node} is lost: neither it nor the attempt sent a heartbeat for {seconds}",
        )
        if reason := self._store.run(lost):
            log.warning(str(reason), attempt=str(attempt), node=node)

    def _reset_trackers(self) -> None:
        for counters in (self._leases, self._unclaimed, self._nodes, self._silent_nodes):
            counters.reset()

    def _run_loop(self) -> None:
        pubsub = self._store.client.pubsub(ignore_subscribe_messages=True) if self._listen else None  # type: ignore[no-untyped-call]
        due = monotonic()
        while not self._stop.is_set():
            try:
                if monotonic() >= due:
                    due = monotonic() + self.tick()
                    CONTROL_REDIS.note_success()
                if pubsub is None:
                    self._stop.wait(max(0.0, due - monotonic()))
                    continue
                if not pubsub.subscribed:
                    pubsub.subscribe(WAKE_CHANNEL)
                    self.dispatch_jobs()  # what was published before we listened
                if pubsub.get_message(timeout=max(0.0, due - monotonic())) is not None:
                    while pubsub.get_message(timeout=0) is not None:
                        pass  # one look serves a burst
                    if not self._stop.is_set():
                        self.dispatch_jobs()
            except (Unavailable, RedisError) as error:
                CONTROL_REDIS.note_failure(error)
                self._reset_trackers()
                self._stop.wait(1.0)
            except Exception:
                log.exception("scheduler_tick_failed")
                self._reset_trackers()
                self._stop.wait(1.0)
        if pubsub is not None:
            pubsub.close()
