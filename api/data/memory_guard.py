"""The memory of the control Redis: what brings new data is refused while less than a reserve is left below its
`maxmemory`. At that limit the server itself refuses whatever may be refused; the reserve is for what may not, such as
the hints of Celery. Reading, cancelling, deleting and attempts that run go on in any case."""

import time
from collections.abc import Mapping
from typing import Any

from redis.exceptions import ResponseError

from jobs.store.call import Call
from jobs.store.client import AsyncRedisStore
from shardyard.contract.errors import StoreFull

#: How old an answer of the server may be: nothing is asked while nothing is stored.
LOOK_SECONDS = 0.5
#: Of the server's limit.
RESERVE_PARTS = 8
RETRY_SECONDS = 30


class MemoryGuard:
    """A server without `maxmemory` has no limit that could be kept."""

    def __init__(self, control: AsyncRedisStore) -> None:
        self._control = control
        self._looked_at = -LOOK_SECONDS
        self._used, self._limit = 0, 0

    async def require_room(self) -> None:
        """Raises:
        StoreFull: the control Redis has used up all but its reserve.
        Unavailable: it does not answer.
        """
        if time.monotonic() - self._looked_at >= LOOK_SECONDS:
            self._looked_at = time.monotonic()
            await self._look()
        if self._limit and self._used > self._limit - self._limit // RESERVE_PARTS:
            raise StoreFull(
                f"the control Redis has used {self._used >> 20} of its {self._limit >> 20} MiB, and keeps the rest for "
                "running jobs; delete jobs that are no longer needed, and try again",
                retry_after=RETRY_SECONDS,
            )

    async def _look(self) -> None:
        try:
            found = await self._control.run(Call(("INFO", "memory"), _read_memory))
        except ResponseError:  # its account may not ask
            found = {}
        self._used, self._limit = found.get("used_memory", 0), found.get("maxmemory", 0)


def _read_memory(reply: Any) -> Mapping[str, int]:
    lines = (line.partition(":") for line in bytes(reply).decode().splitlines())
    return {name: int(value) for name, _, value in lines if name in ("used_memory", "maxmemory")}
