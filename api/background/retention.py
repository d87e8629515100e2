"""Keeps the control Redis small: finished jobs move to disk when they are old enough, and, if the operator wants
that, are deleted there later.

The file of a job is on disk, and read back, before Redis forgets the job, and Redis forgets it only if it is still what
was written: so a job is always in one of the two, and a process that is killed in between leaves it in both, where
Redis counts. One process at a time does this, for as long as it holds a lock in the storage directory, so a job that
is missing afterwards was deleted by a user, and its file goes again.
"""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from api.data import archive
from api.data.service_files import MOUNTED, ServiceFiles
from jobs import store
from jobs.files import paths
from jobs.store import ArchiveOutcome
from jobs.store.client import RedisStore
from jobs.support import failpoints, fs
from shardyard.contract.errors import NotFound

log = structlog.get_logger(__name__)

#: Jobs that are looked up at a time.
CHUNK = 100
#: One sweep ends after this long; a process that is about to end waits for it.
BUSY_SECONDS = 3.0


def sweep_finished_jobs(
    control: RedisStore,
    storage: Path,
    retention_seconds: float,
    archive_seconds: float,
    now: Callable[[], float] = time.time,
    files: ServiceFiles = MOUNTED,
) -> bool:
    """Archive jobs that ended so long ago, and remove those that were archived so long ago; 0 means never.

    Returns whether there is more to do at once.

    Raises:
        Unavailable: the control Redis does not answer.
        OSError: the disk refuses; the jobs stay where they are.
    """
    deadline = time.monotonic() + BUSY_SECONDS
    with fs.hold_directory(paths.archive_dir(storage)) as alone:
        if not alone:
            return False
        # What frees space comes first: a full disk refuses the rest.
        more = bool(archive_seconds) and _delete_expired(control, storage, now() - archive_seconds, deadline, files)
        if retention_seconds:
            more |= _archive_due(control, storage, retention_seconds, deadline, files)
        return more


def delete_archived_job(
    control: RedisStore, storage: Path, tenant: str, job: str, files: ServiceFiles = MOUNTED
) -> None:
    """Remove an archived job with its files; its record last, so that what was cut off is done again.

    Raises:
        Unavailable: the control Redis does not answer.
        OSError: a file cannot be removed.
    """
    with contextlib.suppress(NotFound):  # damaged: it names no key
        found = archive.read_job(storage, tenant, job, files)
        if found is not None and found.key:
            control.run(store.free_idempotency_key(tenant, found.key, job))
    files.remove(paths.job_dir(storage, tenant, job))
    archive.remove_job(storage, tenant, job, files)


def _archive_due(control: RedisStore, storage: Path, age_seconds: float, deadline: float, files: ServiceFiles) -> bool:
    """Archive what is due until the deadline; whether there is more."""
    due = control.run(store.list_finished(age_seconds, CHUNK))
    done = 0
    for tenant, job in due:
        if time.monotonic() > deadline:
            return True
        done += _archive_job(control, storage, tenant, job, files)
    return len(due) == CHUNK and done > 0


def _archive_job(control: RedisStore, storage: Path, tenant: str, job: str, files: ServiceFiles) -> bool:
    found = control.run(store.snapshot(tenant, job))
    if found is None:
        return False  # deleted since it was found
    try:
        archive.write_job(storage, tenant, job, found, files)
    except ValueError as error:
        log.error("job_not_archived", job=job, tenant=tenant, error=str(error))
        return False
    failpoints.reach("archive.synced")
    outcome = control.run(store.archive_job(tenant, job, found.version))
    if outcome is ArchiveOutcome.MISSING:
        archive.remove_job(storage, tenant, job, files)
    if outcome is ArchiveOutcome.DONE:
        log.info("job_archived", job=job, tenant=tenant)
    return outcome is ArchiveOutcome.DONE


def _delete_expired(control: RedisStore, storage: Path, before: float, deadline: float, files: ServiceFiles) -> bool:
    """Remove jobs that were archived before `before` (seconds since the epoch); whether there is more."""
    removed = 0
    for tenant, job, path in archive.oldest_jobs(storage, before, files):
        if time.monotonic() > deadline:
            return removed > 0
        written = files.modified_at(path)  # None: a user has just deleted it
        if written is not None and written < before:
            delete_archived_job(control, storage, tenant, job, files)
            removed += 1
            log.info("archived_job_removed", job=job, tenant=tenant)
    return False
