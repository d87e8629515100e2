"""The nodes of the fleet, cached for a moment: every status needs the names of its devices."""

import asyncio
import time

from api.schemas.fleet_facts import FleetFacts
from jobs import store
from jobs.store import FleetRecords
from jobs.store.client import AsyncRedisStore

CACHE_SECONDS = 2.0


class FleetCache:
    """Reads the fleet once for all requests of the same moment."""

    def __init__(self, control: AsyncRedisStore) -> None:
        self._store = control
        self._lock = asyncio.Lock()
        self._fleet: FleetRecords | None = None
        self._read_at = 0.0
        self.last_facts = FleetFacts()  # those of the last time that the fleet was read

    async def read_fleet(self, max_age: float = CACHE_SECONDS) -> FleetRecords:
        """Raises:
        Unavailable: Redis does not answer.
        """
        async with self._lock:
            if self._fleet is None or time.monotonic() - self._read_at > max_age:
                self._fleet = await self._store.run(store.read_fleet())
                self._read_at = time.monotonic()
                facts = FleetFacts.from_records(self._fleet)
                self.last_facts = self.last_facts if facts == self.last_facts else facts
            return self._fleet

    async def read_facts(self) -> FleetFacts:
        """What answers about jobs say of the fleet: the same object as long as it is the same."""
        await self.read_fleet()
        return self.last_facts
