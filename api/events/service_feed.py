"""The feed of the whole service: reads changes of jobs and nodes once for all its readers in this process."""

import asyncio
import re
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import msgspec
import structlog

from api.data.fleet_cache import FleetCache
from api.events.broadcast_cache import BroadcastCache, BroadcastChunk, BroadcastKey, encode_events
from api.events.event_id import StreamEvent, nonzero_checksum
from api.events.job_feed import TICK_SECONDS
from api.schemas import views
from api.schemas.fleet_facts import FleetFacts
from jobs import store
from jobs.model.records import JobRecord
from jobs.store import FleetRecords
from jobs.store.client import AsyncRedisStore
from shardyard.contract import stream_events
from shardyard.contract.errors import Unavailable
from shardyard.contract.stream_events import EventName

log = structlog.get_logger(__name__)

POLL_SECONDS = 0.2
FLEET_SECONDS = 2.0
RETRY_SECONDS = 1.0
#: Changes that are read at once, and that are kept for readers.
POLL_CHANGES = 500
KEPT_CHANGES = 5_000
#: A reader that reconnects is sent the changes since then, if there are at most so many, of at most so many jobs.
MISSED_CHANGES = 5_000
MISSED_JOBS = 500
#: Versions of jobs that were sent; a job that changed twice before it was read is sent once.
KEPT_VERSIONS = 10_000

#: What is made ready for one reader at once.
READY_CHANGES = 200

RESYNC_MESSAGES = {
    "unknown_id": "some changes since the last event are no longer known: list the jobs again",
}
_ID = re.compile(r"(\d{1,15}-\d{1,15})\.([0-9a-f]{1,8})")

ChangeId = tuple[int, int]
START: ChangeId = (0, 0)


@dataclass(frozen=True, slots=True)
class JobChange:
    """A job as it stood when an entry of the list of changes was read."""

    id: ChangeId
    tenant: str
    name: EventName
    data: str


class ServiceFeed:
    """`changed` is set, and replaced, whenever readers have something to compare."""

    def __init__(self, control: AsyncRedisStore, fleet: FleetCache) -> None:
        self.changed = asyncio.Event()
        self.is_closed = False
        self.fleet = 0  # checksum of the nodes, once they are known
        self.broadcast = BroadcastCache()
        self._store = control
        self._fleet = fleet
        self._readers: Counter[str] = Counter()  # of each tenant
        self._begun = False
        self._last = START  # all changes up to here were read
        self._covered_from: dict[
            str, ChangeId
        ] = {}  # all changes of a tenant's jobs after this, up to `_last`, are in `_changes`
        self._changes: deque[JobChange] = deque()
        self._sent_versions: dict[tuple[str, str], int] = {}
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def join(self, tenant: str) -> Iterator[None]:
        """Read the changes of a tenant while it has a reader."""
        self._readers[tenant] += 1
        if self._task is None:
            self._task = asyncio.create_task(self._run_tasks())
        try:
            yield
        finally:
            self._readers[tenant] -= 1
            if not self._readers[tenant]:
                del self._readers[tenant]
                self._covered_from.pop(tenant, None)
            if not self._readers:
                self._stop_polling()

    def close(self) -> None:
        """Let all readers go: the process is about to end."""
        self.is_closed = True
        self._notify_readers()

    def covers_position(self, position: ChangeId, tenant: str) -> bool:
        """Whether all changes of a tenant's jobs behind a position are here."""
        return tenant in self._covered_from and position >= self._covered_from[tenant]

    def after(self, position: ChangeId, tenant: str) -> list[JobChange]:
        """The changes behind a position that is covered."""
        if position >= self._last:
            return []
        kept = list(self._changes)
        behind = kept[bisect_right(kept, position, key=lambda change: change.id) :]
        return [change for change in behind if change.tenant == tenant]

    async def read_missed(self, position: ChangeId, tenant: str) -> tuple[list[JobChange], ChangeId] | None:
        """The changes behind a position that is not covered, and the position behind them. None when they are not all
        known any more, or too many.

        Raises:
            Unavailable: Redis does not answer.
        """
        found = await self._store.run(store.read_changes(format_id(position), MISSED_CHANGES))
        whole = found.known or position == START  # in an empty list there is no entry to know
        ids = {(whose, job): parse_id(name) for name, whose, job in found.entries if whose == tenant}
        if not whole or len(found.entries) == MISSED_CHANGES or len(ids) > MISSED_JOBS:
            return None
        reached = parse_id(found.entries[-1][0]) if found.entries else position
        return await self._read_jobs(ids, {}), reached

    async def newest_position(self) -> ChangeId:
        """The position behind all changes. Raises Unavailable."""
        return parse_id((await self._store.run(store.read_changes("0-0", 1))).newest)

    def _stop_polling(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._task = None
        self._begun = False
        self._reset_to(START)

    def _reset_to(self, last: ChangeId) -> None:
        """Begin anew behind a position: what was read before it is no longer known here."""
        self._changes.clear()
        self._sent_versions.clear()
        self._covered_from.clear()
        self.broadcast = BroadcastCache()
        self._last = last

    def _notify_readers(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    async def _run_tasks(self) -> None:
        while True:
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._follow_jobs())
                    group.create_task(self._follow_fleet())
                    group.create_task(self._notify_periodically())
            except* Exception as errors:
                log.error("service_feed_failed", exc_info=errors.exceptions[0])
            await asyncio.sleep(RETRY_SECONDS)

    async def _notify_periodically(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._notify_readers()

    async def _follow_jobs(self) -> None:
        while True:
            try:
                full = await self._poll_changes()
            except Unavailable:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            await asyncio.sleep(0 if full else POLL_SECONDS)

    async def _poll_changes(self) -> bool:
        """Read the changes since the last poll; True when there may be more."""
        found = await self._store.run(store.read_changes(format_id(self._last), POLL_CHANGES))
        if not self._begun or (not found.known and self._last != START):
            # Nothing was read yet; or Redis has begun anew, or trimmed so much that changes are missing.
            self._begun = True
            self._reset_to(parse_id(found.newest))
            self._notify_readers()
            return False
        before, followed = self._last, list(self._readers)
        if found.entries:
            ids = {(tenant, job): parse_id(name) for name, tenant, job in found.entries if tenant in self._readers}
            self._changes += await self._read_jobs(ids, self._sent_versions)
            self._last = parse_id(found.entries[-1][0])
        for tenant in followed:
            self._covered_from.setdefault(tenant, before)
        while len(self._changes) > KEPT_CHANGES:
            dropped = self._changes.popleft()
            if dropped.tenant in self._covered_from:
                self._covered_from[dropped.tenant] = dropped.id
        while len(self._sent_versions) > KEPT_VERSIONS:
            del self._sent_versions[next(iter(self._sent_versions))]
        if found.entries:
            self._notify_readers()
        return len(found.entries) == POLL_CHANGES

    async def _read_jobs(
        self, ids: dict[tuple[str, str], ChangeId], sent: dict[tuple[str, str], int]
    ) -> list[JobChange]:
        """Jobs as they are now, by the order of their changes, without those whose version was sent."""
        if not ids:
            return []
        found = await self._store.run(store.read_records(list(ids)))
        fleet = await self._fleet.read_facts()
        changes: list[JobChange] = []
        for (key, changed), record in zip(ids.items(), found, strict=True):
            version = -1 if record is None else record.version
            if sent.pop(key, None) != version:
                changes.append(_job_change(key, changed, record, fleet))
            sent[key] = version
        return sorted(changes, key=lambda change: change.id)

    async def _follow_fleet(self) -> None:
        while True:
            try:
                fleet = await self._fleet.read_fleet(max_age=FLEET_SECONDS / 2)
            except Unavailable:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            tag = nonzero_checksum(_fleet_digest(fleet))
            if tag != self.fleet:
                self.fleet = tag
                self._notify_readers()
            await asyncio.sleep(FLEET_SECONDS)


def _job_change(key: tuple[str, str], changed: ChangeId, record: JobRecord | None, fleet: FleetFacts) -> JobChange:
    tenant, job = key
    if record is None:
        return JobChange(changed, tenant, EventName.GONE, stream_events.data(stream_events.JobGone(job_id=job)))
    return JobChange(changed, tenant, EventName.JOB, stream_events.data(views.job_summary(record, fleet)))


def _fleet_digest(fleet: FleetRecords) -> bytes:
    """Everything about nodes that changes when something happens to them: not their beats."""
    nodes = sorted((replace(node, heartbeat=0) for node in fleet.nodes), key=lambda node: node.id)
    return msgspec.json.encode(msgspec.to_builtins(nodes, str_keys=True), order="sorted")


def parse_id(text: str) -> ChangeId:
    milliseconds, _, count = text.partition("-")
    return int(milliseconds), int(count)


def format_id(position: ChangeId) -> str:
    return f"{position[0]}-{position[1]}"


class ServiceReader:
    """One reader of the service: where it is in the list of changes, and which nodes it knows of. Readers of a tenant
    at the same position are sent the same (`api.events.broadcast_cache`)."""

    def __init__(self, feed: ServiceFeed, tenant: str, last_id: str) -> None:
        self.over = False
        self._feed = feed
        self._tenant = tenant
        self._fleet = 0
        self._position: ChangeId | None = None
        self._key: BroadcastKey | None = None  # once it was sent something
        self._resync = "unknown_id" if last_id and not self._move_to(last_id) else ""

    @property
    def changed(self) -> asyncio.Event:
        return self._feed.changed

    async def pending(self) -> bytes:
        """The next events; empty when there is nothing to send now, or Redis does not answer."""
        if self._feed.is_closed:
            self.over = True
            return b""
        try:
            chunk = await self._feed.broadcast.next_chunk(self._key, self._build_chunk)
        except Unavailable:
            await asyncio.sleep(RETRY_SECONDS)
            return b""
        if chunk is None:
            return b""
        if chunk.key is not self._key:  # another reader has made it
            self._key = chunk.key
            self._move_to(chunk.key.id.rpartition(" ")[2])
        return chunk.data

    async def _build_chunk(self) -> BroadcastChunk | None:
        """The next chunk from here; the reader's position is then after it."""
        ready = await self._next_events()
        if not ready:
            return None
        self._key = BroadcastKey(f"{self._tenant} {ready[-1].id}", (), live_data=True)
        shared = all(event.name is not EventName.RESYNC for event in ready)
        return BroadcastChunk(encode_events(ready), self._key, frozenset(), is_last=False, shared=shared)

    def _move_to(self, text: str) -> bool:
        """Be behind the event with this id; False for one that is none of ours."""
        found = _ID.fullmatch(text)
        if found is not None:
            self._position, self._fleet = parse_id(found[1]), int(found[2], 16)
        return found is not None

    async def _next_events(self) -> list[StreamEvent]:
        if self._position is None:
            self._position = await self._feed.newest_position()
        changes = await self._changes(self._position)
        ready = []
        if self._resync:
            missed = stream_events.Resync(reason=self._resync, message=RESYNC_MESSAGES[self._resync])
            ready.append(self._make_event(EventName.RESYNC, stream_events.data(missed)))
            self._resync = ""
        if self._feed.fleet and self._fleet != self._feed.fleet:
            self._fleet = self._feed.fleet
            changed = stream_events.FleetChanged(etag=f"{self._fleet:08x}")
            ready.append(self._make_event(EventName.FLEET, stream_events.data(changed)))
        for change in changes:
            self._position = change.id
            ready.append(self._make_event(change.name, change.data))
        return ready

    async def _changes(self, position: ChangeId) -> list[JobChange]:
        if self._feed.covers_position(position, self._tenant):
            return self._feed.after(position, self._tenant)[:READY_CHANGES]
        found = await self._feed.read_missed(position, self._tenant)
        if found is None:
            self._resync = "unknown_id"
            self._position = await self._feed.newest_position()
            return []
        changes, reached = found
        if not changes:
            self._position = reached
        return changes

    def _make_event(self, name: EventName, data: str) -> StreamEvent:
        assert self._position is not None
        return StreamEvent(name, data, f"{format_id(self._position)}.{self._fleet:x}")
