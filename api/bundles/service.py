"""The service of code bundles: receives and checks uploads, stores each once, and lists the files of one.

An upload is written to a draft, checked there, and given its final name before the store hears of it, so a bundle
that the store knows is always whole on disk. Two uploads of the same bytes have different files; the store keeps the
first, and the other is removed.
"""

import hashlib
import os
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeVar

import anyio
import anyio.to_thread

from api.data.disk_guard import DiskGuard
from api.data.memory_guard import MemoryGuard
from api.data.service_files import MOUNTED, ServiceFiles
from api.http import audit
from api.http.auth import Principal
from api.http.tenant_slots import TenantSlots
from jobs import store
from jobs.bundles import bundle as bundles
from jobs.bundles.bundle import BundleListing
from jobs.files import paths
from jobs.model.spec import JobSpec, ScriptProgram
from jobs.store import BundleRecord
from jobs.store.client import AsyncRedisStore
from jobs.support.fs import sync_directory
from shardyard.contract.errors import (
    BundleQuota,
    FieldError,
    InvalidSpec,
    NotFound,
    ShardyardError,
    StorageUnavailable,
)
from shardyard.contract.responses import BundleContents, BundleFileView, BundleView, at

T = TypeVar("T")

#: Uploads at a time in one API process, and of one tenant: each holds a file.
MAX_UPLOADS = 8
MAX_UPLOADS_OF_TENANT = 2
#: Uploads beside them, one of each tenant, when others hold all.
RESERVED_UPLOADS = 16
#: Threads that write and check them: each holds a core while it does.
WRITER_THREADS = 4
#: Bundles whose files are listed at a time.
MAX_READERS = 4
#: What is collected in memory before a thread writes it.
WRITE_BYTES = 1024 * 1024


class TooManyUploads(ShardyardError):
    """So many bundles arrive at the moment that this one has to wait."""

    code = "too_many_uploads"


@dataclass(frozen=True, slots=True)
class UploadedBundle:
    bundle: BundleView
    created: bool  # False: the same bytes were there


class BundleService:
    def __init__(
        self,
        control: AsyncRedisStore,
        root: Path,
        quota: int,
        disks: DiskGuard,
        memory: MemoryGuard,
        files: ServiceFiles = MOUNTED,
    ) -> None:
        """`root` is the storage directory, or that of copies of `files`; `quota` is how many bytes all bundles of one
        tenant may have."""
        self._store = control
        self._root = root
        self._files = files
        self._quota = quota
        self._disks = disks
        self._memory = memory
        self._uploads = TenantSlots(MAX_UPLOADS, MAX_UPLOADS_OF_TENANT, 1, RESERVED_UPLOADS)
        #: Threads of their own, so that a large upload does not delay submits and reads of logs.
        self._writers = anyio.CapacityLimiter(WRITER_THREADS)
        self._readers = anyio.CapacityLimiter(MAX_READERS)

    async def upload(self, who: Principal, body: AsyncIterator[bytes]) -> UploadedBundle:
        """Keep the zip that `body` brings, if it is one that may be kept.

        Raises:
            TooManyUploads: there are too many at the moment.
            BadBundle: it breaks a rule.
            BundleQuota: the tenant has no room for it.
            StorageLow, StoreFull: the disk, or the control Redis, has none.
        """
        self._disks.require_room()
        await self._memory.require_room()
        nonce = uuid.uuid4().hex
        draft = paths.bundle_draft(self._root, who.tenant, nonce)
        with self._upload_slot(who.tenant), self._disks.refusing_writes():
            try:
                bundle = await self._write_draft(body, draft)
                record = await self._store.run(store.read_bundle(who.tenant, bundle))
                if record is not None and await self._run_reader(
                    partial(self._files.exists, self._bundle_path(who, record))
                ):
                    return UploadedBundle(_bundle_view(record), created=False)
                found = await self._run_writer(partial(bundles.inspect_bundle, draft))
                created = await self._store_bundle(
                    who, bundle, nonce, draft, found, gone=record.nonce if record else ""
                )
            finally:
                draft.unlink(missing_ok=True)
        if created:
            audit.log_audit_event(who, "bundle_uploaded", bundle=bundle, files=len(found.files))
        return UploadedBundle(_bundle_view(await self._read_record(who, bundle)), created)

    async def read_contents(self, who: Principal, bundle: str) -> BundleContents:
        """The files of a bundle. Reading it counts as use, so it is kept for a while.

        Raises:
            NotFound: the tenant has no such bundle, or its file is missing.
        """
        record = await self._read_record(who, bundle)
        found = await self._inspect_file(who, record)
        if found is None:
            raise _not_found(bundle)
        return BundleContents(
            id=bundle,
            bytes=record.bytes,
            unpacked_bytes=record.unpacked,
            created_at=at(record.created),
            jobs=record.jobs,
            files=[BundleFileView(file.path, file.bytes) for file in found.files],
        )

    async def delete(self, who: Principal, bundle: str) -> None:
        """Delete a bundle, its record first: a submit that comes now is refused, and an upload of the same bytes has a
        file of its own. A file that cannot be removed is swept later.

        Raises:
            NotFound: the tenant has no such bundle.
            BundleNeeded: a job needs it.
        """
        nonce = await self._store.run(store.delete_bundle(who.tenant, bundle))
        audit.log_audit_event(who, "bundle_deleted", bundle=bundle)
        file = paths.bundle_file(self._root, who.tenant, bundle, nonce)
        with suppress(OSError, StorageUnavailable):
            await self._run_writer(partial(self._files.remove, file))

    async def check_entrypoint(self, who: Principal, wanted: JobSpec) -> None:
        """Whether the program of a spec is in its bundle. Whether there is such a bundle at all, the submit asks, after
        the other checks: users should not upload code for a job that could not run anyway.

        Raises:
            UnknownBundle: its file is missing.
            InvalidSpec: the bundle lacks the entry point.
        """
        program = wanted.program
        if not isinstance(program, ScriptProgram):
            return
        record = await self._store.run(store.read_bundle(who.tenant, program.bundle))
        if record is None:
            return
        found = await self._inspect_file(who, record)
        if found is None:
            raise store.unknown_bundle(program.bundle)
        wrong = await self._run_reader(partial(bundles.wrong_entrypoint, program.entrypoint, found, program.workdir))
        if wrong:
            fields = (FieldError("program.entrypoint", wrong),)
            raise InvalidSpec("the job spec names a program that is not in its bundle", fields=fields)

    @contextmanager
    def _upload_slot(self, tenant: str) -> Iterator[None]:
        if not self._uploads.has_room(tenant):
            raise TooManyUploads("too many bundles are being uploaded at the moment; try again in a few seconds")
        with self._uploads.hold(tenant):
            yield

    async def _write_draft(self, body: AsyncIterator[bytes], draft: Path) -> str:
        """Write a body to `draft`, onto the disk; the id of what was written."""
        digest = hashlib.sha256()
        held = bytearray()
        with await self._run_writer(partial(_create_draft, draft)) as file:
            async for part in body:
                held += part
                if len(held) >= WRITE_BYTES:
                    await self._run_writer(partial(_write_part, file, digest, bytes(held)))
                    held.clear()
            await self._run_writer(partial(_write_part, file, digest, bytes(held), last=True))
        return f"sha256:{digest.hexdigest()}"

    async def _store_bundle(
        self, who: Principal, bundle: str, nonce: str, draft: Path, found: BundleListing, *, gone: str
    ) -> bool:
        """Give a draft its name and record it in the store; False when another upload of the same bytes was first."""
        file = paths.bundle_file(self._root, who.tenant, bundle, nonce)
        size = await self._run_writer(partial(self._publish_draft, draft, file))
        try:
            put = await self._store.run(
                store.put_bundle(
                    who.tenant,
                    bundle,
                    nonce,
                    size=size,
                    files=len(found.files),
                    unpacked=found.bytes,
                    missing_nonce=gone,
                    quota=self._quota,
                )
            )
        except BundleQuota:
            await self._run_writer(partial(self._files.remove, file))
            raise  # after an Unavailable the record may exist; if it does not, the file is swept later
        if put.nonce != nonce:
            await self._run_writer(partial(self._files.remove, file))
        return put.created

    async def _read_record(self, who: Principal, bundle: str) -> BundleRecord:
        record = await self._store.run(store.read_bundle(who.tenant, bundle))
        if record is None:
            raise _not_found(bundle)
        return record

    async def _inspect_file(self, who: Principal, record: BundleRecord) -> BundleListing | None:
        """None when the file is missing: it was removed from the storage directory by hand."""
        try:
            return await self._run_reader(partial(self._list_contents, self._bundle_path(who, record)))
        except FileNotFoundError:
            return None

    def _list_contents(self, file: Path) -> BundleListing:
        self._files.bring(file)
        return bundles.list_contents(file)

    def _publish_draft(self, draft: Path, file: Path) -> int:
        """Rename, so that the name is on disk before it is recorded. Returns the size in bytes."""
        draft.rename(file)
        sync_directory(file.parent)
        try:
            self._files.publish(file)
        except BaseException:
            file.unlink(missing_ok=True)
            raise
        return file.stat().st_size

    def _bundle_path(self, who: Principal, record: BundleRecord) -> Path:
        return paths.bundle_file(self._root, who.tenant, record.id, record.nonce)

    async def _run_writer(self, work: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(work, limiter=self._writers)

    async def _run_reader(self, work: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(work, limiter=self._readers)


def _create_draft(draft: Path) -> BinaryIO:
    draft.parent.mkdir(parents=True, exist_ok=True)
    return draft.open("xb", buffering=0)


def _write_part(file: BinaryIO, digest: "hashlib._Hash", part: bytes, *, last: bool = False) -> None:
    digest.update(part)
    left = memoryview(part)
    while left:
        left = left[file.write(left) :]
    if last:
        os.fsync(file.fileno())


def _bundle_view(record: BundleRecord) -> BundleView:
    return BundleView(id=record.id, files=record.files, bytes=record.bytes, unpacked_bytes=record.unpacked)


def _not_found(bundle: str) -> NotFound:
    return NotFound(f"there is no bundle {bundle}; upload it with POST /v1/bundles")
