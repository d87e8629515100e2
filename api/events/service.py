"""Streams of server-sent events: compares each reader's position with what the feed of its job has."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace

from api.data.job_repository import JobRepository
from api.data.log_streams import default_streams, parse_streams
from api.events import event_id
from api.events.job_feed import JobFeed, JobFeeds
from api.events.job_reader import JobReader, WantedLines
from api.events.service_feed import ServiceFeed, ServiceReader
from api.http.auth import Principal
from api.http.problems import StreamEnded
from api.http.tenant_slots import TenantSlots
from jobs.model.state import TERMINAL
from shardyard.contract.errors import (
    FieldError,
    Forbidden,
    InvalidRequest,
    NotFound,
    ShardyardError,
    Unauthenticated,
    Unavailable,
)

#: Streams of one process, of one token, and of one tenant.
MAX_STREAMS = 2_000
MAX_OF_TOKEN = 1_000
MAX_OF_TENANT = 1_500
#: Streams that each tenant has beside them, when others hold all, and how many those may be together.
OWN_STREAMS, RESERVED_STREAMS = 20, 400
#: How often a reader's token is checked again.
CHECK_SECONDS = 30.0
#: After this long a stream ends and its reader reconnects, so that no stream is open for ever and load can move.
MAX_STREAM_SECONDS = 3_600.0
#: How long a client waits before it reconnects, in milliseconds.
RETRY_MS = 1000
#: A ping is sent after this long without events, so that no proxy takes the stream for dead.
PING_SECONDS = 15.0
PING = b": ping\n\n"


class TooManyStreams(ShardyardError):
    """The token, or its tenant, has as many streams open as it may have."""

    code = "too_many_streams"


def parse_wanted(text: str, tail: int | None, stream: str = "") -> WantedLines:
    """The value of `logs`: empty, `all`, or devices as in `0,3`; and of `stream` (`api.data.log_streams`).

    Raises:
        InvalidRequest: it is something else.
    """
    streams = parse_streams(stream)
    if text in ("", "all"):
        return WantedLines(all_devices=text == "all", tail=tail, streams=streams)
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and len(part) <= 4 for part in parts):
        raise InvalidRequest(
            "`logs` is not valid",
            fields=(FieldError("logs", "write all, or the numbers of devices, for example 0,3"),),
        )
    return WantedLines(devices=frozenset(int(part) for part in parts), tail=tail, streams=streams)


class StreamSlots:
    """How many streams may be open at once. `own` are there for a tenant, whatever others hold."""

    def __init__(
        self,
        most: int = MAX_STREAMS,
        of_token: int = MAX_OF_TOKEN,
        of_tenant: int = MAX_OF_TENANT,
        own: int = OWN_STREAMS,
        reserve: int = RESERVED_STREAMS,
    ) -> None:
        self._most = most
        self._of_token = of_token
        self._of_tenant = of_tenant
        self._tokens: Counter[str] = Counter()
        self._tenants = TenantSlots(most, of_tenant, own, reserve)

    @property
    def open_count(self) -> int:
        return self._tenants.held_count

    @contextmanager
    def acquire(self, tenant: str, token: str) -> Iterator[None]:
        """Raises:
        Unavailable, TooManyStreams: none is free.
        """
        if self._tokens[token] >= self._of_token:
            raise TooManyStreams(f"this token has {self._of_token} streams open; close some")
        if self._tenants.is_tenant_full(tenant):
            raise TooManyStreams(f"tenant {tenant} has {self._of_tenant} streams open; close some")
        if not self._tenants.has_room(tenant):
            raise Unavailable(f"{self._most} streams are open here; close some, or try again")
        self._tokens[token] += 1
        try:
            with self._tenants.hold(tenant):
                yield
        finally:
            self._tokens[token] -= 1
            if not self._tokens[token]:
                del self._tokens[token]


class EventService:
    """All streams of this process."""

    def __init__(self, records: JobRepository, feeds: JobFeeds, service: ServiceFeed, slots: StreamSlots) -> None:
        self.slots = slots
        self._service = service
        self._records = records
        self._feeds = feeds
        self._closed = False

    def close(self) -> None:
        """End all streams, and open no others: the process is about to end."""
        self._closed = True
        self._feeds.close()
        self._service.close()

    @asynccontextmanager
    async def follow_job(
        self, who: Principal, job: str, last_id: str, wanted: WantedLines, check: Callable[[], Awaitable[None]]
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The events of a job from now on, or after the one with `last_id`. `check` raises when the reader may not read
        any more.

        Raises:
            NotFound: no such job, or no such device.
            NothingMore: `last_id` is that of the last event of a job that has ended.
            Unavailable, TooManyStreams: no stream is free.
        """
        with self._stream_slot(who):
            view = await self._records.read_view(who.tenant, job)
            record, wanted = view.record, replace(wanted, streams=wanted.streams or default_streams(view.spec))
            beyond = [device for device in wanted.devices if device >= record.all_devices]
            if beyond:
                raise NotFound(f"job {job} has {record.all_devices} devices, numbered from 0; there is no {beyond[0]}")
            position = event_id.decode_position(last_id) if last_id else None
            if position is not None and position.ended and record.state in TERMINAL:
                raise StreamEnded
            with (
                self._feeds.join(who.tenant, job) as feed,
                _registered_devices(feed, wanted.select_devices(record.all_devices)) as devices,
            ):
                reader = JobReader(feed, devices, wanted, position, known=not last_id or position is not None)
                yield _send_events(reader, check)

    @asynccontextmanager
    async def follow_all(
        self, who: Principal, last_id: str, check: Callable[[], Awaitable[None]]
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Changes of all jobs of the caller's tenant, and of the nodes; as `follow`.

        Raises:
            Unavailable, TooManyStreams: no stream is free.
        """
        with self._stream_slot(who), self._service.join(who.tenant):
            yield _send_events(ServiceReader(self._service, who.tenant, last_id), check)

    @contextmanager
    def _stream_slot(self, who: Principal) -> Iterator[None]:
        with self.slots.acquire(who.tenant, who.token):
            if self._closed:
                raise Unavailable("this process is shutting down; try again")
            yield


@contextmanager
def _registered_devices(feed: JobFeed, devices: frozenset[int]) -> Iterator[frozenset[int]]:
    """Makes the feed keep the newest lines of these devices."""
    counts = feed.windows.readers.devices
    for device in devices:
        counts[device] = counts.get(device, 0) + 1
    try:
        yield devices
    finally:
        for device in devices:
            counts[device] -= 1
            if not counts[device]:
                del counts[device]


async def _send_events(reader: JobReader | ServiceReader, check: Callable[[], Awaitable[None]]) -> AsyncIterator[bytes]:
    """Yield the reader's events as they come. Ends after the last event, after `MAX_STREAM_SECONDS`, when the token
    is no longer good, and when the process is about to end.

    There is no timer here: feeds have news every `TICK_SECONDS`, if only that there are none.
    """
    loop = asyncio.get_running_loop()
    end_after = loop.time() + MAX_STREAM_SECONDS
    check_after = loop.time() + CHECK_SECONDS
    silent_since, head = loop.time(), f"retry: {RETRY_MS}\n".encode()
    while not reader.over and (now := loop.time()) < end_after:
        changed = reader.changed
        if now >= check_after:
            check_after = now + CHECK_SECONDS
            try:
                await check()
            except (Unauthenticated, Forbidden):
                return
            except Unavailable:
                pass  # checked again in a while
        if found := await reader.pending():
            yield head + found
            silent_since, head = now, b""
        elif not reader.over:
            if now - silent_since >= PING_SECONDS:
                yield PING
                silent_since = now
            await changed.wait()
