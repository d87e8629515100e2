"""What nodes there are, remembered for a moment: every status needs the names of its devices."""

import asyncio
import time
from collections.abc import Callable, Sequence

from api.schemas.views import Labels
from jobs import store
from jobs.store import Fleet
from jobs.store.client import AsyncRedisStore

CACHE_SECONDS = 2.0

#: Of devices, by node and index.
Names = dict[str, dict[int, str]]


class FleetCache:
    """Reads the fleet once for all who ask at the same time."""

    def __init__(self, control: AsyncRedisStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = control
        self._clock = clock
        self._lock = asyncio.Lock()
        self._fleet: Fleet | None = None
        self._read_at = 0.0
        self._names: Names = {}
        self._labels = labels_of(self._names)

    async def read(self, max_age: float = CACHE_SECONDS) -> Fleet:
        """Raises:
        Unavailable: Redis does not answer.
        """
        async with self._lock:
            if self._fleet is None or self._clock() - self._read_at > max_age:
                self._fleet = await self._store.run(store.fleet())
                self._read_at = self._clock()
                self._name(names_of(self._fleet))
            return self._fleet

    def _name(self, names: Names) -> None:
        if names != self._names:
            self._names, self._labels = names, labels_of(names)

    async def labels(self) -> Labels:
        """Names of devices for people, the same function as long as they are the same. A device of a node that is
        unknown now keeps its index."""
        await self.read()
        return self._labels


def names_of(fleet: Fleet) -> Names:
    return {node.id: {device.index: device.label for device in node.info.devices} for node in fleet.nodes}


def labels_of(known: Names) -> Labels:
    def labels(node: str, indexes: Sequence[int]) -> list[str]:
        names = known.get(node, {})
        return [names.get(index, f"device:{index}") for index in indexes]

    return labels
