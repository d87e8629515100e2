"""The service of nodes' files: checks rights, slots, sizes and room, and has threads of its own work on the disk.

A body is written as it comes, in parts of `WRITE_BYTES`; where it is cut, what has come counts.
"""

import io
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import PurePosixPath
from typing import Final, NamedTuple, TypeVar

from api.data.artifacts import OpenArtifact
from api.data.disk_guard import DiskGuard
from api.data.file_threads import AttemptStorage
from api.http.auth import Principal
from api.http.tenant_slots import TenantSlots
from api.node_files import file_tree
from api.node_files.file_tree import TooManyTransfers
from api.node_files.rights import NodeRights, is_check
from api.node_files.sums import Bound, BroughtSums, bound_of_attempt
from jobs.files.paths import MAX_CHECK_BYTES, NODE_DRAFTS
from jobs.model.settings import Settings
from jobs.storage.directory import DirectoryStorage
from jobs.storage.remote import (
    CHUNK_BYTES,
    DigestMismatch,
    OffsetMismatch,
    RemoteError,
    RemoteFull,
    RemoteUnavailable,
    UnknownFile,
    check_path,
)
from jobs.storage.target import target_of
from jobs.store.client import AsyncRedisStore
from shardyard.contract.errors import (
    BodyTooLarge,
    Conflict,
    FieldError,
    FilesInBucket,
    InvalidRequest,
    NotFound,
    ShardyardError,
    StorageLow,
    Unavailable,
)
from shardyard.contract.responses import NodeFileList

T = TypeVar("T")

#: Requests of all nodes at a time, of one, and those that it has even when others hold all.
SLOTS, SLOTS_OF_NODE, OWN_SLOTS, RESERVED_SLOTS = 32, 8, 2, 64
#: What is collected in memory before a thread writes it.
WRITE_BYTES = 256 * 1024
#: The most that one request may bring.
MAX_UPLOAD_BYTES = 64 * 1024 * 1024
MAX_LISTED = 5_000


class WrongOffset(ShardyardError):
    """An upload did not begin where the file, or what has come of it, ends: at `size`."""

    code = "wrong_offset"

    def __init__(self, size: int) -> None:
        super().__init__(f"continue at byte {size}: that much is there")
        self.size = size


class WrongDigest(ShardyardError):
    """What has come is not what its digest says."""

    code = "wrong_digest"


class UploadPart(NamedTuple):
    """Where the body of a request belongs: from `offset` on in a file of `length` bytes with a digest (hexadecimal)."""

    offset: int
    length: int
    digest: str


#: What goes wrong with a file, as it is answered.
_ANSWERED: Final[Mapping[type[RemoteError], type[ShardyardError]]] = {
    UnknownFile: NotFound,
    DigestMismatch: WrongDigest,
    RemoteFull: StorageLow,
    RemoteUnavailable: Unavailable,
    RemoteError: Conflict,
}


class NodeFileService:
    """`storage` has threads that are for nodes alone: what they bring holds up no reader."""

    def __init__(self, control: AsyncRedisStore, storage: AttemptStorage, disks: DiskGuard, settings: Settings) -> None:
        self._settings = settings
        self._rights = NodeRights(control, settings)
        self._sums = BroughtSums(storage.root, storage.run_in_thread)
        self._threads = storage
        self._files = DirectoryStorage(storage.root)
        self._disks = disks
        self._slots = TenantSlots(SLOTS, SLOTS_OF_NODE, OWN_SLOTS, RESERVED_SLOTS)

    async def read_size(self, who: Principal, path: str, digest: str) -> int:
        """Bytes of a file; with a digest, how much of an upload of it has come.

        Raises:
            NotFound: there is no such file.
        """
        with self._request(who):
            checked = _checked(path)
            if digest:
                await self._rights.require_write(who.node, checked)
                draft = file_tree.draft_path(who.node, path, digest)
                return await self._run(partial(file_tree.size_of_draft, self._files, draft, path, digest))
            await self._rights.require_read(who.node, checked)
            size = await self._run(partial(self._files.size, path))
            if size is None:
                raise NotFound(f"there is no file {path[:200]!r}")
            return size

    async def open_file(self, who: Principal, path: str) -> OpenArtifact:
        """A file for an answer, which holds a slot until it is closed.

        Raises:
            NotFound: there is no such file.
        """
        with ExitStack() as held:
            held.enter_context(self._request(who))
            checked = _checked(path)
            await self._rights.require_read(who.node, checked)
            file = _HeldFile(await self._run(partial(self._files.open_file, path)), held.pop_all().close)
        status = os.fstat(file.fileno())
        tag = f'"{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}"'
        return OpenArtifact(file, checked.name, status.st_size, tag)

    async def append(self, who: Principal, path: str, offset: int, body: AsyncIterator[bytes]) -> int:
        """Append a body; how long the file is then, as far as this request knows.

        Raises:
            WrongOffset: the file ends elsewhere, and what it has there is something else.
            BodyTooLarge: it has more than `CHUNK_BYTES`, or the file would.
        """
        with self._request(who):
            await self._rights.require_write(who.node, checked := _checked(path))
            self._disks.require_room()
            limit = min(CHUNK_BYTES, self._limit(who.node, checked) - offset)
            written = offset
            bound = await self._rights.read_bound(checked)
            async for part in _collect(body, limit, at_least_one=True):
                await self._require_room(bound, len(part))
                await self._run(partial(self._files.append, path, written, part))
                self._note_written(bound, len(part))
                written += len(part)
            return written

    async def put(self, who: Principal, path: str, wanted: UploadPart, body: AsyncIterator[bytes]) -> int:
        """Take a part of an upload, and put the file into its place when it is whole; how much has come.

        Raises:
            WrongOffset: the upload goes on elsewhere.
            WrongDigest: the file is not what its digest says; nothing is kept of it.
            BodyTooLarge: a part, or the file, is larger than it may be.
            TooManyTransfers: the node has too many unfinished uploads.
        """
        with self._request(who):
            await self._rights.require_write(who.node, checked := _checked(path))
            self._require_size(who.node, checked, wanted.length)
            self._disks.require_room()
            bound, drafts = await self._rights.read_bound(checked), self._bound_of_drafts(who.node)
            await self._require_room(bound, wanted.length)
            draft = file_tree.draft_path(who.node, path, wanted.digest)
            begin = partial(file_tree.begin_draft, self._files, draft, path, wanted.digest, wanted.offset)
            await self._run(begin)
            written = wanted.offset
            limit, is_empty = min(MAX_UPLOAD_BYTES, wanted.length - wanted.offset), not wanted.length
            async for part in _collect(body, limit, at_least_one=is_empty):
                await self._require_room(drafts, len(part))
                await self._run(partial(file_tree.write_draft, self._files, draft, written, part))
                self._note_written(drafts, len(part))
                written += len(part)
            if written == wanted.length:
                await self._run(partial(file_tree.publish_draft, self._files, draft, path, wanted.digest))
                self._note_written(drafts, -wanted.length)
                self._note_written(bound, wanted.length)
            return written

    async def copy(self, who: Principal, source: str, path: str, wanted: UploadPart) -> None:
        """Put a copy of a file under another path.

        Raises:
            NotFound: there is no such file.
            WrongDigest: it is not what was wanted; nothing is copied.
            BodyTooLarge: the copy would be larger than it may be.
        """
        with self._request(who):
            await self._rights.require_read(who.node, _checked(source, "source"))
            await self._rights.require_write(who.node, checked := _checked(path))
            self._require_size(who.node, checked, wanted.length)
            self._disks.require_room()
            bound = await self._rights.read_bound(checked)
            await self._require_room(bound, wanted.length)
            await self._run(partial(self._files.copy, source, path, wanted.length, wanted.digest))
            self._note_written(bound, wanted.length)

    async def remove(self, who: Principal, path: str) -> None:
        """Remove a file, or all below a directory. It may be gone already."""
        with self._request(who):
            await self._rights.require_removal(who.node, _checked(path))
            await self._run(partial(self._files.remove, path))

    async def list_files(self, who: Principal, prefix: str, after: str) -> NodeFileList:
        """Paths below a directory, sorted, after a path. Of bundles, those that the node needs."""
        with self._request(who):
            checked = _checked(prefix, "prefix")
            await self._rights.require_read(who.node, checked)
            found, more = await self._run(partial(file_tree.list_files, self._files, prefix, after, MAX_LISTED))
            following = found[-1] if more else None
            if checked.parts[0] == "bundles":
                found = await self._rights.choose_bundles(who.node, found)
            return NodeFileList(files=found, next=following)

    def _limit(self, node: str, path: PurePosixPath) -> int:
        return MAX_CHECK_BYTES if is_check(node, path.parts) else self._settings.job_disk_bytes

    def _require_size(self, node: str, path: PurePosixPath, size: int) -> None:
        most = self._limit(node, path)
        if size > most:
            raise BodyTooLarge(f"this file of a node may have {most} bytes at most (SHARDYARD_JOB_DISK_BYTES)")

    def _bound_of_drafts(self, node: str) -> Bound:
        return bound_of_attempt(self._settings, PurePosixPath(NODE_DRAFTS, node), 1)

    async def _require_room(self, bound: Bound | None, more: int) -> None:
        if bound is not None:
            await self._sums.require_room(bound, more)

    def _note_written(self, bound: Bound | None, count: int) -> None:
        if bound is not None:
            self._sums.add(bound, count)

    @contextmanager
    def _request(self, who: Principal) -> Iterator[None]:
        if self._threads.bucket is not None:
            raise FilesInBucket(
                "this service keeps its files in a bucket, to which nodes upload theirs: set SHARDYARD_STORAGE="
                f"{target_of(self._settings).url} on the node, and the AWS_... variables by which it reaches that"
            )
        if not self._slots.has_room(who.node):
            raise TooManyTransfers(f"node {who.node} has {SLOTS_OF_NODE} requests already, or the service all it takes")
        with self._slots.hold(who.node):
            yield

    async def _run(self, work: Callable[[], T]) -> T:
        try:
            return await self._threads.run_in_thread(work)
        except OffsetMismatch as error:
            raise WrongOffset(error.size) from error
        except RemoteError as error:
            kind = next(kind for known, kind in _ANSWERED.items() if isinstance(error, known))
            raise kind(str(error)) from error


class _HeldFile(io.FileIO):
    """A file for reading that gives something back when it is closed."""

    def __init__(self, file: int, release: Callable[[], None]) -> None:
        super().__init__(file, "r")
        self._release = release

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._release()


def _checked(path: str, field: str = "path") -> PurePosixPath:
    try:
        return check_path(path)
    except ValueError as error:
        raise InvalidRequest("the path cannot be used", fields=(FieldError(field, str(error)),)) from None


def _require_within(size: int, limit: int) -> None:
    if size > limit:
        raise BodyTooLarge(f"the body may have {max(0, limit)} bytes at most here")


async def _collect(body: AsyncIterator[bytes], limit: int, *, at_least_one: bool = False) -> AsyncIterator[bytes]:
    """A body in parts that are worth a thread's while; an empty one is a part if `at_least_one`. What has come is a
    part also where the rest does not."""
    held, read = bytearray(), 0
    try:
        async for part in body:
            read += len(part)
            _require_within(read, limit)
            held += part
            if len(held) >= WRITE_BYTES:
                at_least_one = False
                yield bytes(held)
                held.clear()
    except Exception:
        if held:
            yield bytes(held)
        raise
    if held or at_least_one:
        yield bytes(held)
