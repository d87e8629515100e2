"""What the audit needs from time to time: old days go, and what was counted instead of written is written."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from jobs.files import audit_files

log = structlog.get_logger(__name__)

COUNT_SECONDS = 5.0


def sweep_audit(directory: Path, days: float) -> None:
    """Remove the entries of days that are over for longer than `days`; 0: none. Raises OSError."""
    if days:
        removed = audit_files.remove_old_days(directory, days, time.time_ns() // 1000)
        if removed:
            log.info("audit_days_removed", days=removed)


async def count_repeats(write: Callable[[], None]) -> None:
    """Write, for as long as the process lives, how often what has no entry of its own came."""
    while True:
        await asyncio.sleep(COUNT_SECONDS)
        write()
