"""Periodic work on the audit: removes old days, and writes the entries that were counted instead of written."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from api.data.service_files import MOUNTED, ServiceFiles
from jobs.files import audit_files

log = structlog.get_logger(__name__)

COUNT_SECONDS = 5.0


def sweep_audit(directory: Path, days: float, files: ServiceFiles = MOUNTED, now: int | None = None) -> None:
    """Remove the entries of days that are over for longer than `days`; 0: none. `now`: in microseconds.

    Raises:
        OSError, StorageUnavailable: the storage does not answer.
    """
    if not days:
        return
    names = files.list_names(directory)
    old = audit_files.choose_old_days(names, days, time.time_ns() // 1000 if now is None else now)
    for day in old:
        files.remove(directory / day)
    if old:
        log.info("audit_days_removed", days=len(old))


async def count_repeats(write: Callable[[], None]) -> None:
    """Write, for as long as the process lives, how often what has no entry of its own came."""
    while True:
        await asyncio.sleep(COUNT_SECONDS)
        write()
