"""The storage of attempts: where their files are, and the threads that fetch, read and remove them."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.to_thread

from api.bucket.bucket_files import BucketFiles
from api.data import artifacts, bucket_artifacts
from api.data.artifacts import ArtifactListing, OpenArtifact
from api.data.service_files import MOUNTED, ServiceFiles
from api.http.tenant_slots import current_tenant
from jobs.files import paths
from shardyard.contract.errors import TooManyReads

T = TypeVar("T")

FILE_THREADS = 8
#: Of them, those that work for one tenant at a time; and how much of its work may wait for them.
THREADS_OF_TENANT, MAX_WAITING = 4, 512
#: The same of threads that wait for a bucket, however slow it is: what is here already is read meanwhile.
FETCH_THREADS, FETCH_THREADS_OF_TENANT = 24, 8


class AttemptStorage:
    """Work of one tenant has its own queue for the threads: it never has all of them. `bucket`: where the files are, if
    no directory has them; `root` has copies then, and is to be read after a `bring`."""

    def __init__(self, root: Path, bucket: BucketFiles | None = None, redirect_bytes: int = 0) -> None:
        """`redirect_bytes`: artifacts of more are fetched from the bucket itself; 0: none."""
        self.root = root.resolve()
        self.bucket = bucket
        self._redirect_bytes = redirect_bytes
        self.files: ServiceFiles = MOUNTED if bucket is None else bucket
        self._readers = _TenantThreads(FILE_THREADS, THREADS_OF_TENANT)
        self._fetchers = _TenantThreads(FETCH_THREADS, FETCH_THREADS_OF_TENANT)

    def attempt_dir(self, tenant: str, job: str, attempt: int) -> Path:
        return paths.attempt_dir(self.root, tenant, job, attempt)

    def job_dir(self, tenant: str, job: str) -> Path:
        return paths.job_dir(self.root, tenant, job)

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        """What `work` returns, called in a thread, so that others are served meanwhile.

        Raises:
            TooManyReads: too much work of the caller's tenant waits already.
        """
        return await self._readers.run(work)

    async def fetch_in_thread(self, work: Callable[[], T]) -> T:
        """The same for work that waits for the bucket, if there is one."""
        return await (self._readers if self.bucket is None else self._fetchers).run(work)

    async def bring_file(self, path: Path) -> None:
        """Have a file here that is whole, if there is one. Raises StorageUnavailable, TooManyReads, OSError."""
        if self.bucket is not None and not self.bucket.room.touch(path):
            await self._fetchers.run(partial(self.bucket.bring, path))

    async def bring_logs(self, attempt: Path, devices: Sequence[int], *, is_over: bool) -> None:
        """Have the logs of an attempt here, as they are now. Raises as `bring_file` does."""
        if self.bucket is not None:
            await self._fetchers.run(partial(self.bucket.bring_logs, attempt, devices, is_over=is_over))

    async def bring_metrics(self, attempt: Path, *, is_over: bool) -> None:
        """Have the metrics of an attempt here, as they are now. Raises as `bring_file` does."""
        if self.bucket is not None:
            await self._fetchers.run(partial(self.bucket.bring_metrics, attempt, is_over=is_over))

    async def list_artifacts(self, attempt: Path) -> ArtifactListing:
        """The files of an attempt. Raises as `bring_file` does."""
        if self.bucket is None:
            return await self._readers.run(partial(artifacts.list_artifacts, attempt))
        return await self._fetchers.run(partial(bucket_artifacts.list_artifacts, self.bucket, attempt))

    async def open_artifact(self, attempt: Path, path: str) -> OpenArtifact:
        """One of them, open, or where it is to be fetched; the caller closes it. Raises NotFound, and as `bring_file`
        does."""
        if self.bucket is None:
            return await self._readers.run(partial(artifacts.open_file, attempt, path))
        opening = partial(bucket_artifacts.open_file, self.bucket, attempt, path, self._redirect_bytes)
        return await self._fetchers.run(opening)

    async def bring_profiles(self, attempt: Path) -> None:
        """Have the records of an attempt's profiles here. Raises as `bring_file` does."""
        if self.bucket is not None:
            await self._fetchers.run(partial(self.bucket.bring_profiles, attempt))


class _TenantThreads:
    """So many threads, and so many of them for one tenant."""

    def __init__(self, threads: int, of_tenant: int) -> None:
        self._threads = anyio.CapacityLimiter(threads)
        self._of_tenant = of_tenant
        self._of_tenants: dict[str, anyio.CapacityLimiter] = {}

    async def run(self, work: Callable[[], T]) -> T:
        tenant = current_tenant.get()
        if not tenant:
            return await anyio.to_thread.run_sync(work, limiter=self._threads)
        limiter = self._of_tenants.setdefault(tenant, anyio.CapacityLimiter(self._of_tenant))
        if limiter.statistics().tasks_waiting >= MAX_WAITING:
            raise TooManyReads("too many large answers for your tenant are being prepared; try again in a moment")
        try:
            async with limiter:
                return await anyio.to_thread.run_sync(work, limiter=self._threads)
        finally:
            if not limiter.borrowed_tokens and not limiter.statistics().tasks_waiting:
                self._of_tenants.pop(tenant, None)
