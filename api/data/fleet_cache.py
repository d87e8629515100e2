"""The nodes of the fleet, cached for a moment: every status needs the names of its devices."""

import asyncio
import time
from collections.abc import Callable, Sequence

from api.schemas.views import DeviceLabels
from jobs import store
from jobs.store import FleetRecords
from jobs.store.client import AsyncRedisStore

CACHE_SECONDS = 2.0

#: Of devices, by node and index.
DeviceNames = dict[str, dict[int, str]]


class FleetCache:
    """Reads the fleet once for all requests of the same moment."""

    def __init__(self, control: AsyncRedisStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = control
        self._clock = clock
        self._lock = asyncio.Lock()
        self._fleet: FleetRecords | None = None
        self._read_at = 0.0
        self._names: DeviceNames = {}
        self._labels = labels_from_names(self._names)

    async def read_fleet(self, max_age: float = CACHE_SECONDS) -> FleetRecords:
        """Raises:
        Unavailable: Redis does not answer.
        """
        async with self._lock:
            if self._fleet is None or self._clock() - self._read_at > max_age:
                self._fleet = await self._store.run(store.read_fleet())
                self._read_at = self._clock()
                self._update_names(device_names(self._fleet))
            return self._fleet

    def _update_names(self, names: DeviceNames) -> None:
        if names != self._names:
            self._names, self._labels = names, labels_from_names(names)

    async def read_labels(self) -> DeviceLabels:
        """Names of devices for people, the same function as long as they are the same. A device of a node that is
        unknown now keeps its index."""
        await self.read_fleet()
        return self._labels


def device_names(fleet: FleetRecords) -> DeviceNames:
    return {node.id: {device.index: device.label for device in node.info.devices} for node in fleet.nodes}


def labels_from_names(known: DeviceNames) -> DeviceLabels:
    def labels(node: str, indexes: Sequence[int]) -> list[str]:
        names = known.get(node, {})
        return [names.get(index, f"device:{index}") for index in indexes]

    return labels
