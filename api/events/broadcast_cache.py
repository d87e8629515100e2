"""Chunks of events for readers at the same position: built once, and sent to all of them as the same bytes."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from api.data.log_streams import LogStreams
from api.events.event_id import StreamEvent

#: Chunks of one job that are cached, by their size: a reader who is further behind builds its own.
CACHED_BYTES = 1024 * 1024


class BroadcastKey(NamedTuple):
    """The position of a reader: after the event with this id, of a stream with these lines of these devices."""

    id: str
    devices: tuple[int, ...]
    live_data: bool  # what the reader was last sent about the telemetry Redis
    streams: LogStreams = frozenset()


@dataclass(frozen=True, slots=True)
class BroadcastChunk:
    """What readers at one position are sent next. `key` is the position after it; `caught_up` has the devices whose
    newest lines they have been sent by then; `shared`: whether it is meant for all readers at that position."""

    data: bytes
    key: BroadcastKey
    caught_up: frozenset[int]
    is_last: bool
    shared: bool


BuildChunk = Callable[[], Awaitable[BroadcastChunk | None]]


class BroadcastCache:
    """The newest chunks for a job's readers, by the position where each begins."""

    def __init__(self) -> None:
        self._cached: dict[BroadcastKey, BroadcastChunk] = {}
        self._size = 0
        self._building: dict[BroadcastKey, asyncio.Event] = {}

    async def next_chunk(self, key: BroadcastKey | None, build: BuildChunk) -> BroadcastChunk | None:
        """The next chunk: a cached one, or the one that another reader builds now, else the caller's own. A reader that
        was sent nothing yet has no `key`, and always builds its own."""
        if key is None:
            return await build()
        chunk = self._cached.get(key)
        if chunk is None and key in self._building:
            await self._building[key].wait()
            chunk = self._cached.get(key)
        if chunk is not None or key in self._building:
            return chunk or await build()
        built = self._building[key] = asyncio.Event()
        try:
            chunk = await build()
            if chunk is not None and chunk.shared:
                self._cache_chunk(key, chunk)
            return chunk
        finally:
            del self._building[key]
            built.set()

    def _cache_chunk(self, key: BroadcastKey, chunk: BroadcastChunk) -> None:
        self._cached[key] = chunk
        self._size += len(chunk.data)
        while self._size > CACHED_BYTES and len(self._cached) > 1:
            oldest = next(iter(self._cached))
            self._size -= len(self._cached.pop(oldest).data)


def encode_events(events: Iterable[StreamEvent]) -> bytes:
    """Events as server-sent events."""
    return "".join(f"event: {event.name}\ndata: {event.data}\nid: {event.id}\n\n" for event in events).encode()
