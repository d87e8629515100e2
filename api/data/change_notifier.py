"""Notifies requests that wait for a job to change: one task listens to the list of changes for all of them.

However many clients wait, this holds one connection while any does, and costs a call for each change of a job that
is waited for. Every `COMPARE_SECONDS` all jobs are compared as well: a lost connection, or a list that was lost, needs
no care beyond that.
"""

import asyncio
import time
from collections.abc import Collection
from typing import Any

from redis.exceptions import RedisError

from jobs import store
from jobs.protocol.names import CHANGES, split_ref
from jobs.store.client import AsyncRedisStore
from shardyard.contract.errors import Unavailable

#: How late a change is noticed that is missing in the list.
COMPARE_SECONDS = 1.0
#: Between two reads while much changes, so that changes are read in batches.
THROTTLE_SECONDS = 0.01
RETRY_SECONDS = 0.1
#: Entries that are read at once.
MAX_ENTRIES = 1_000
#: Requests that may wait in one process.
MAX_WAITING = 2_000

JobKey = tuple[str, str]  # tenant, id


class ChangeNotifier:
    """Notifies waiting requests when the version of their job is no longer the one they know."""

    def __init__(self, control: AsyncRedisStore, *, most: int = MAX_WAITING) -> None:
        self._store = control
        self._most = most
        self._waiting: dict[JobKey, dict[asyncio.Future[None], int]] = {}  # which version each of them knows
        self._count = 0
        self._new: set[JobKey] = set()  # of requests that came while the task was listening: not compared yet
        self._listener: asyncio.Task[None] | None = None
        self._comparer: asyncio.Task[None] | None = None
        self._closed = False

    async def wait_for_change(self, tenant: str, job: str, version: int, seconds: float) -> None:
        """Return when the job's version is not `version`, or it is deleted; at the latest after `seconds`, or when
        the process is about to end.

        Raises:
            Unavailable: too many requests wait here already.
        """
        if self._closed:
            return
        if self._count >= self._most:
            raise Unavailable(f"{self._most} requests are already waiting; send this one without `wait`, or try again")
        changed = asyncio.get_running_loop().create_future()
        others = self._waiting.setdefault((tenant, job), {})
        others[changed] = version
        self._count += 1
        self._watch_job((tenant, job))
        try:
            async with asyncio.timeout(seconds):
                await changed
        except TimeoutError:
            return
        finally:
            self._count -= 1
            del others[changed]
            if not others:
                del self._waiting[tenant, job]

    def release_all(self) -> None:
        """Let all requests go, and hold no further ones: the process is about to end."""
        self._closed = True
        for others in self._waiting.values():
            _notify_waiting(others)
        if self._listener is not None:
            self._listener.cancel()

    @property
    def waiting_count(self) -> int:
        """Requests that wait now."""
        return self._count

    def _watch_job(self, job: JobKey) -> None:
        """Begin to listen; or, where that goes on already, see whether the job has changed before it was waited for."""
        if self._listener is None or self._listener.done():
            self._listener = asyncio.create_task(self._listen_for_changes())
            return
        self._new.add(job)
        if self._comparer is None or self._comparer.done():
            self._comparer = asyncio.create_task(self._compare_new_jobs())

    async def _listen_for_changes(self) -> None:
        while self._waiting:
            try:
                last = await self._newest_entry_id()  # what was before is found by comparing
                await self._compare_versions(self._waiting)
                compare_at = time.monotonic() + COMPARE_SECONDS
                while self._waiting and time.monotonic() < compare_at and (found := await self._read_changes(last)):
                    last, changed = found
                    await self._compare_versions(changed & self._waiting.keys())
                    await asyncio.sleep(THROTTLE_SECONDS)
            except (Unavailable, RedisError):
                await asyncio.sleep(RETRY_SECONDS)

    async def _newest_entry_id(self) -> str:
        entries: Any = await self._store.client.xrevrange(CHANGES, count=1)
        return entries[0][0].decode() if entries else "0-0"

    async def _read_changes(self, last: str) -> tuple[str, set[JobKey]] | None:
        """The id of the newest change behind `last`, and whose they are, as soon as there is one."""
        found: Any = await self._store.client.xread({CHANGES: last}, MAX_ENTRIES, round(COMPARE_SECONDS * 1000))
        if not found:
            return None
        ((_, entries),) = found
        return entries[-1][0].decode(), {split_ref(fields[b"job"]) for _, fields in entries}

    async def _compare_new_jobs(self) -> None:
        while self._new:
            jobs, self._new = self._new, set()
            try:
                await self._compare_versions(jobs)
            except Unavailable:
                return  # the listener compares all when it is back

    async def _compare_versions(self, jobs: Collection[JobKey]) -> None:
        """Notify the requests that know an older version of these jobs."""
        if not jobs:
            return
        listed = list(jobs)
        versions = await self._store.run(store.read_versions(listed))
        for job, current in zip(listed, versions, strict=True):
            others = self._waiting.get(job, {})
            _notify_waiting([changed for changed, version in others.items() if version != current])


def _notify_waiting(waiting: Collection[asyncio.Future[None]]) -> None:
    for changed in waiting:
        if not changed.done():
            changed.set_result(None)
