"""The storage of attempts: where their files are, and the threads that read and remove them."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.to_thread

from api.http.tenant_slots import current_tenant
from jobs.files import paths
from shardyard.contract.errors import TooManyReads

T = TypeVar("T")

FILE_THREADS = 8
#: Of them, those that work for one tenant at a time; and how much of its work may wait for them.
THREADS_OF_TENANT, MAX_WAITING = 4, 512


class AttemptStorage:
    """Work of one tenant has its own queue for the threads: it never has all of them."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._threads = anyio.CapacityLimiter(FILE_THREADS)
        self._of_tenants: dict[str, anyio.CapacityLimiter] = {}

    def attempt_dir(self, tenant: str, job: str, attempt: int) -> Path:
        return paths.attempt_dir(self.root, tenant, job, attempt)

    def job_dir(self, tenant: str, job: str) -> Path:
        return paths.job_dir(self.root, tenant, job)

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        """What `work` returns, called in a thread, so that others are served meanwhile.

        Raises:
            TooManyReads: too much work of the caller's tenant waits already.
        """
        tenant = current_tenant.get()
        if not tenant:
            return await anyio.to_thread.run_sync(work, limiter=self._threads)
        limiter = self._of_tenants.setdefault(tenant, anyio.CapacityLimiter(THREADS_OF_TENANT))
        if limiter.statistics().tasks_waiting >= MAX_WAITING:
            raise TooManyReads("too many large answers for your tenant are being made; try again in a moment")
        try:
            async with limiter:
                return await anyio.to_thread.run_sync(work, limiter=self._threads)
        finally:
            if not limiter.borrowed_tokens and not limiter.statistics().tasks_waiting:
                self._of_tenants.pop(tenant, None)
