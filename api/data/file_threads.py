"""The storage of attempts: where their files are, and the threads that read and remove them."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.to_thread

from jobs.files import paths

T = TypeVar("T")

FILE_THREADS = 8


class AttemptStorage:
    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._threads = anyio.CapacityLimiter(FILE_THREADS)

    def attempt_dir(self, tenant: str, job: str, attempt: int) -> Path:
        return paths.attempt_dir(self.root, tenant, job, attempt)

    def job_dir(self, tenant: str, job: str) -> Path:
        return paths.job_dir(self.root, tenant, job)

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        """What `work` returns, called in a thread, so that others are served meanwhile."""
        return await anyio.to_thread.run_sync(work, limiter=self._threads)
