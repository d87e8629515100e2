"""Jobs wherever they are: in the control Redis, or archived in storage."""

from functools import partial

from api.data import archive
from api.data.archive import ArchivedJob
from api.data.file_threads import AttemptStorage
from jobs import store
from jobs.model.records import AttemptRecord
from jobs.store import JobFilter, JobRowPage, JobView
from jobs.store.client import AsyncRedisStore
from shardyard.contract.errors import NotFound


class JobRepository:
    """Reads jobs. Redis is asked first: a job that is in both places is about to be archived, and counts there."""

    def __init__(self, control: AsyncRedisStore, storage: AttemptStorage) -> None:
        self._store = control
        self._storage = storage

    async def read_view(self, tenant: str, job: str, known: JobView | None = None) -> JobView:
        """`known` itself where nothing of it has changed. Raises NotFound, UnreadableSpec."""
        try:
            return await self._store.run(store.read_job(tenant, job, known))
        except NotFound:
            found = await self.read_archived(tenant, job)
            if found is None:
                raise
            return found.to_view()

    async def read_attempts(self, tenant: str, job: str) -> tuple[AttemptRecord, ...]:
        """All of them, oldest first. Raises NotFound."""
        try:
            return await self._store.run(store.list_attempts(tenant, job))
        except NotFound:
            found = await self.read_archived(tenant, job)
            if found is None:
                raise
            return found.attempts

    async def read_page(
        self,
        tenant: str,
        chosen: JobFilter,
        *,
        after: str,
        limit: int,
        archived: bool,
        max_queues: int,
        oldest_first: bool = False,
    ) -> JobRowPage:
        """A page of the jobs in Redis, or of archived ones, which are always newest first. `max_queues` and
        `oldest_first` as for `store.list_jobs`."""
        if not archived:
            call = store.list_jobs(
                tenant, chosen, after=after, limit=limit, max_queues=max_queues, oldest_first=oldest_first
            )
            return await self._store.run(call)
        storage = self._storage
        read = partial(archive.read_page, storage.root, tenant, chosen, after=after, limit=limit, files=storage.files)
        return await storage.fetch_in_thread(read)

    async def read_archived(self, tenant: str, job: str) -> ArchivedJob | None:
        """Raises NotFound for one that cannot be read."""
        storage = self._storage
        return await storage.fetch_in_thread(partial(archive.read_job, storage.root, tenant, job, storage.files))
