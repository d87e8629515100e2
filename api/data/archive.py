"""Finished jobs on disk, when the control Redis no longer has them: one JSON file for each, in `layout.archive_file`.

A file has the fields of the job and its attempts as Redis had them, and the spec, so that nothing is lost that a later
version may want, and so that the same code reads both. Logs, metrics, reports and artifacts are files anyway, and
stay where they are.
"""

import contextlib
import itertools
import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from api.data.service_files import MOUNTED, ServiceFiles
from jobs import store
from jobs.files import paths
from jobs.model.records import AttemptRecord, Fields, JobRecord
from jobs.store import JobFilter, JobRowPage, JobView, Snapshot
from jobs.support import failpoints
from jobs.support.fs import sync_directory
from shardyard.contract.errors import NotFound

log = structlog.get_logger(__name__)

#: Of the files. A reader refuses one that it does not know.
FORMAT = 1
#: Files that are read for one page at most, when a filter matches rarely.
MAX_SCANNED = 2_000
#: Names of files that are looked through for an id.
MAX_SEARCHED = 20_000
_SUFFIX = ".json"


class _ArchiveFile(msgspec.Struct):
    format: int
    job: dict[str, str]
    attempts: list[dict[str, str]]
    spec: msgspec.Raw


@dataclass(frozen=True, slots=True)
class ArchivedJob:
    """One archived job, as it was when it ended."""

    record: JobRecord
    attempts: tuple[AttemptRecord, ...]
    spec: bytes  # JSON
    key: str  # the Idempotency-Key that made it; empty where there was none

    def to_view(self) -> JobView:
        """Raises UnreadableSpec."""
        return JobView(self.record, store.decode_spec_json(self.spec), None)


def write_job(storage: Path, tenant: str, job: str, found: Snapshot, files: ServiceFiles = MOUNTED) -> None:
    """Put a job on disk: whole or not at all, safe from a power cut, and read back before this returns.

    Raises:
        OSError: the disk refuses, or gives back other bytes than it was given.
        StorageUnavailable: the bucket does not take it.
        ValueError: a field of the job is no text.
    """
    file = _ArchiveFile(
        FORMAT,
        _decode_fields(found.job),
        [_decode_fields(fields) for fields in found.attempts],
        msgspec.Raw(found.spec),
    )
    body = msgspec.json.encode(file)
    path = paths.archive_file(storage, tenant, job)
    _make_directory(path.parent, storage)
    draft = path.with_name(f".{job}.{uuid.uuid4().hex}.part")
    try:
        _write_synced(draft, body)
        failpoints.reach("archive.written")
        draft.rename(path)
    finally:
        draft.unlink(missing_ok=True)
    sync_directory(path.parent)
    if path.read_bytes() != body:
        raise OSError(f"{path} does not hold what was written to it")
    files.publish(path)


def read_job(storage: Path, tenant: str, job: str, files: ServiceFiles = MOUNTED) -> ArchivedJob | None:
    """An archived job, or None.

    Raises:
        NotFound: there is one, but its file cannot be read.
        OSError: the disk refuses.
        StorageUnavailable: the bucket does not answer.
    """
    path = paths.archive_file(storage, tenant, job)
    files.bring(path)
    try:
        body = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return _decode_job(tenant, job, body)
    except (ValueError, KeyError) as error:
        raise NotFound(
            f"job {job} was archived, and its record cannot be read; it is damaged, or was written by a newer "
            f"version: {error}"
        ) from error


def read_page(
    storage: Path, tenant: str, chosen: JobFilter, *, after: str = "", limit: int = 50, files: ServiceFiles = MOUNTED
) -> JobRowPage:
    """A page of archived jobs, newest first, as `store.list_jobs` gives of the others. Raises OSError, and
    StorageUnavailable."""
    found: list[JobRecord] = []
    last = ""
    for scanned, job in enumerate(_job_ids(storage, tenant, after, limit, files)):
        if len(found) == limit or scanned == MAX_SCANNED:
            return JobRowPage(tuple(found), last)
        last = job
        try:
            archived = read_job(storage, tenant, job, files)
        except NotFound as error:
            log.warning("archive_not_read", job=job, tenant=tenant, error=error.message)
            continue
        if archived is not None and _matches_filter(archived.record, chosen):
            found.append(archived.record)
    return JobRowPage(tuple(found), None)


def find_ids(storage: Path, tenant: str, text: str, limit: int, files: ServiceFiles = MOUNTED) -> list[str]:
    """Ids of archived jobs that begin or end with a text, newest first, at most so many, and of the newest
    `MAX_SEARCHED` jobs. Raises OSError, StorageUnavailable."""
    ids = itertools.islice(itertools.chain.from_iterable(_list_ids(storage, tenant, "", files)), MAX_SEARCHED)
    return list(itertools.islice((job for job in ids if job.startswith(text) or job.endswith(text)), limit))


def oldest_jobs(storage: Path, before: float, files: ServiceFiles = MOUNTED) -> Iterator[tuple[str, str, Path]]:
    """Archived jobs of all tenants, as (tenant, id, file), oldest directories first. None that was made after `before`
    (seconds since the epoch) is among them, and some that were made shortly before it may be missing."""
    last = f"{max(0, int(before * 1000)):012x}"  # ids begin with the time in milliseconds
    for tenant in sorted(files.list_names(paths.archive_dir(storage))):
        root = paths.tenant_archive(storage, tenant)
        for directory in sorted(files.list_names(root)):
            if directory >= paths.archive_file(storage, tenant, last).parent.name:
                break
            jobs = (
                name.removesuffix(_SUFFIX) for name in sorted(files.list_names(root / directory)) if _is_record(name)
            )
            yield from ((tenant, job, paths.archive_file(storage, tenant, job)) for job in jobs)


def remove_job(storage: Path, tenant: str, job: str, files: ServiceFiles = MOUNTED) -> None:
    """Remove the record of a job. Raises OSError, StorageUnavailable; one that is not there is no error."""
    files.remove(paths.archive_file(storage, tenant, job))


def _decode_job(tenant: str, job: str, body: bytes) -> ArchivedJob:
    """Raises ValueError or KeyError for what is none of ours."""
    file = msgspec.json.decode(body, type=_ArchiveFile)
    if file.format != FORMAT:
        raise ValueError(f"it has format {file.format}, and this version knows {FORMAT}")
    fields = _encode_fields(file.job)
    return ArchivedJob(
        record=JobRecord.from_fields(tenant, job, fields, archived=True),
        attempts=tuple(
            AttemptRecord.from_fields(n, _encode_fields(attempt)) for n, attempt in enumerate(file.attempts, start=1)
        ),
        spec=bytes(file.spec),
        key=file.job.get("idem", ""),
    )


def _job_ids(storage: Path, tenant: str, after: str, limit: int, files: ServiceFiles) -> Iterator[str]:
    """Ids of archived jobs, newest first, below `after` where that is given. Their files are brought so many at a time:
    each takes a bucket as long as all of them."""
    for found in _list_ids(storage, tenant, after, files):
        for start in range(0, len(found), max(1, limit)):
            part = found[start : start + max(1, limit)]
            files.bring_all([paths.archive_file(storage, tenant, job) for job in part])
            yield from part


def _list_ids(storage: Path, tenant: str, after: str, files: ServiceFiles) -> Iterator[list[str]]:
    """Ids of archived jobs by their directories, newest first, below `after` where that is given."""
    root = paths.tenant_archive(storage, tenant)
    first = paths.archive_file(storage, tenant, after).parent.name
    for directory in sorted(files.list_names(root), reverse=True):
        if after and directory > first:
            continue
        ids = (name.removesuffix(_SUFFIX) for name in files.list_names(root / directory) if _is_record(name))
        yield sorted((job for job in ids if not after or job < after), reverse=True)


def _is_record(name: str) -> bool:
    return name.endswith(_SUFFIX) and not name.startswith(".")


def _matches_filter(job: JobRecord, chosen: JobFilter) -> bool:
    key, value = chosen.label or ("", "")
    return (
        chosen.state in (None, job.state)
        and chosen.pool in ("", job.pool)
        and chosen.name in ("", job.name)
        and (chosen.label is None or job.labels.get(key) == value)
    )


def _decode_fields(fields: Fields) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in fields.items()}


def _encode_fields(texts: Mapping[str, str]) -> dict[bytes, bytes]:
    return {name.encode(): value.encode() for name, value in texts.items()}


def _write_synced(path: Path, body: bytes) -> None:
    with path.open("xb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())


def _make_directory(directory: Path, storage: Path) -> None:
    """Make it with those above it, up to the storage, so that all their names are on disk."""
    missing = [directory, *(parent for parent in directory.parents if parent.is_relative_to(storage))]
    for path in reversed(missing):
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            sync_directory(path.parent)
