"""Requests that wait for a job to change: one task asks Redis about all their jobs at once.

However many clients wait, this costs one call on one pooled connection every `LOOK_SECONDS`, and
nothing while nobody waits. A lost connection needs no care: the next look sees what was missed.
"""

import asyncio

from jobs import store
from jobs.errors import Unavailable
from jobs.redis_store import AsyncRedisStore

LOOK_SECONDS = 0.1
#: Requests that may wait in one process.
MAX_WAITING = 2_000

Job = tuple[str, str]  # tenant, id


class Changes:
    """Tells waiting requests when the version of their job is no longer the one they know."""

    def __init__(
        self, control: AsyncRedisStore, *, look_seconds: float = LOOK_SECONDS, most: int = MAX_WAITING
    ) -> None:
        self._store = control
        self._look_seconds = look_seconds
        self._most = most
        self._waiting: dict[asyncio.Future[None], tuple[Job, int]] = {}
        self._watch: asyncio.Task[None] | None = None
        self._closed = False

    async def wait(self, tenant: str, job: str, version: int, seconds: float) -> None:
        """Return when the job's version is not `version`, or it is gone; at the latest after `seconds`, or when
        the process is about to end.

        Raises:
            Unavailable: too many requests wait here already.
        """
        if self._closed:
            return
        if len(self._waiting) >= self._most:
            raise Unavailable(f"{self._most} requests wait here already; ask without `wait`, or try again")
        changed = asyncio.get_running_loop().create_future()
        self._waiting[changed] = ((tenant, job), version)
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._look())
        try:
            async with asyncio.timeout(seconds):
                await changed
        except TimeoutError:
            return
        finally:
            del self._waiting[changed]

    def release(self) -> None:
        """Let all requests go, and hold no further ones: the process is about to end."""
        self._closed = True
        for changed in self._waiting:
            _tell(changed)

    @property
    def count(self) -> int:
        """Requests that wait now."""
        return len(self._waiting)

    async def _look(self) -> None:
        while self._waiting:
            await asyncio.sleep(self._look_seconds)
            jobs = list({job for job, _ in self._waiting.values()})
            try:
                versions = await self._store.run(store.versions(jobs))
            except Unavailable:
                continue
            current = dict(zip(jobs, versions, strict=True))
            for changed, (job, version) in self._waiting.items():
                if job in current and current[job] != version:
                    _tell(changed)


def _tell(changed: asyncio.Future[None]) -> None:
    if not changed.done():
        changed.set_result(None)
