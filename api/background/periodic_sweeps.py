"""Runs the work that an API repeats for as long as it serves, and ends the process when it must not continue."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import structlog

from jobs.files.identity import StorageMismatch
from shardyard.contract.errors import FormatMismatch, Unavailable

log = structlog.get_logger(__name__)

WATCH_SECONDS = 1.0
#: How often bundles and finished jobs are swept: short against the hours and days for which they are kept.
SWEEP_SECONDS = 600.0


async def watch_scheduler(alive: Callable[[], bool], end: Callable[[], None], seconds: float = WATCH_SECONDS) -> None:
    """End the process when its scheduler has died: an API that never starts a job must not look healthy."""
    while alive():
        await asyncio.sleep(seconds)
    log.critical("scheduler_thread_died")
    end()


async def verify_storage(prove: Callable[[], None], end: Callable[[], None], seconds: float = WATCH_SECONDS) -> bool:
    """End the process when its storage is not the service's; while Redis does not answer, try again."""
    while True:
        try:
            await asyncio.to_thread(prove)
            return True
        except Unavailable:
            await asyncio.sleep(seconds)
        except (StorageMismatch, FormatMismatch, OSError) as error:
            log.critical("storage_refused", error=str(error))
            end()
            return False


@dataclass(frozen=True, slots=True)
class PeriodicSweep:
    """Work that is repeated every so many seconds; it returns true when there is more to do at once."""

    name: str
    work: Callable[[], bool | None]
    seconds: float


async def sweep_storage(
    prove: Callable[[], None],
    convert: Callable[[], Awaitable[None]],
    sweeps: Sequence[PeriodicSweep],
    end: Callable[[], None],
) -> None:
    """Verify the storage, then sweep it: never before, since the directory may be that of another service."""
    if await verify_storage(prove, end):
        await asyncio.gather(convert(), *(run_periodically(sweep) for sweep in sweeps))


async def convert_packed_jobs(
    convert: Callable[[], object],
    ready: Callable[[], None],
    end: Callable[[], None],
    retry_seconds: float = WATCH_SECONDS,
    pause_seconds: float = SWEEP_SECONDS,
) -> None:
    """Convert the jobs that earlier versions have packed, before the first request is served and every few minutes."""
    while True:
        try:
            await asyncio.to_thread(convert)
        except Unavailable:
            await asyncio.sleep(retry_seconds)
        except Exception:
            log.critical("packed_jobs_not_converted", exc_info=True)
            end()
            return
        else:
            ready()
            await asyncio.sleep(pause_seconds)


async def run_periodically(sweep: PeriodicSweep) -> None:
    """Work now and then every `seconds`; at once while there is more to do."""
    while True:
        more: bool | None = False
        try:
            more = await asyncio.to_thread(sweep.work)
        except (Unavailable, OSError) as error:
            log.warning(f"{sweep.name}_not_swept", error=str(error))
        await asyncio.sleep(0 if more else sweep.seconds)
