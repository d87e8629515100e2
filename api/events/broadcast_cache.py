"""Steps of readers who are at the same place: made once, and sent to all of them as the same bytes."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from api.events.event_id import StreamEvent

#: Steps of one job that are kept, by their size: a reader who is further behind makes its own.
CACHED_BYTES = 1024 * 1024


class BroadcastKey(NamedTuple):
    """Where a reader is: behind the event with this id, of a stream with the lines of these devices."""

    id: str
    devices: tuple[int, ...]
    live_data: bool  # whether it was last told that the telemetry Redis answers


@dataclass(frozen=True, slots=True)
class BroadcastChunk:
    """What readers at one place are told next, and the place behind it. `met`: of which devices they have had the
    newest by then. `shared`: whether it is meant for all readers at that place."""

    data: bytes
    place: BroadcastKey
    met: frozenset[int]
    over: bool
    shared: bool


class BroadcastCache:
    """The newest steps of a job's readers, by the place where each begins."""

    def __init__(self) -> None:
        self._kept: dict[BroadcastKey, BroadcastChunk] = {}
        self._size = 0
        self._making: dict[BroadcastKey, asyncio.Event] = {}

    async def next_chunk(
        self, place: BroadcastKey, make: Callable[[], Awaitable[BroadcastChunk | None]]
    ) -> BroadcastChunk | None:
        """The next step: one that is known, or the one that somebody makes now, else the caller's own."""
        step = self._kept.get(place)
        if step is None and place in self._making:
            await self._making[place].wait()
            step = self._kept.get(place)
        if step is not None or place in self._making:
            return step or await make()
        made = self._making[place] = asyncio.Event()
        try:
            step = await make()
            if step is not None and step.shared:
                self._cache_chunk(place, step)
            return step
        finally:
            del self._making[place]
            made.set()

    def _cache_chunk(self, place: BroadcastKey, step: BroadcastChunk) -> None:
        self._kept[place] = step
        self._size += len(step.data)
        while self._size > CACHED_BYTES and len(self._kept) > 1:
            oldest = next(iter(self._kept))
            self._size -= len(self._kept.pop(oldest).data)


def encode_events(told: Iterable[StreamEvent]) -> bytes:
    """Events as they are sent."""
    return "".join(f"event: {event.name}\ndata: {event.data}\nid: {event.id}\n\n" for event in told).encode()
