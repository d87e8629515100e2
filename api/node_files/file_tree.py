"""What nodes upload and fetch, on disk: drafts of uploads, files that are put in their places, and lists.

    <storage>/.node-drafts/<node>/<of the path and the digest>.part

A draft is named by what it will be, so an upload goes on where it was cut, whichever process of the API it meets. Every
function here waits for the disk, and is for a thread.
"""

import hashlib
import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

from jobs.files import paths
from jobs.storage.directory import DirectoryStorage
from jobs.storage.remote import MAX_PARTS, DigestMismatch, OffsetMismatch, RemoteError, UnknownFile
from jobs.support import fs
from shardyard.contract.errors import ShardyardError

#: Uploads of a node that are not complete; one that nobody has touched for so long gives way to a new one, or goes.
MAX_DRAFTS, IDLE_SECONDS, DRAFT_SECONDS = 64, 3600.0, 86_400.0


class TooManyTransfers(ShardyardError):
    """A node has as many requests, or unfinished uploads, as it may have."""

    code = "too_many_transfers"


def draft_path(node: str, path: str, digest: str) -> str:
    """Of one upload, relative to the storage."""
    named = hashlib.sha256(f"{digest} {path}".encode()).hexdigest()[:40]
    return f"{paths.NODE_DRAFTS}/{node}/{named}.part"


def size_of_draft(files: DirectoryStorage, draft: str, path: str, digest: str) -> int:
    """How much of an upload has come; 0 where nothing has. All of it, where the file is in its place already: the
    answer that said so may have been lost."""
    size = files.size(draft)
    if size is None and _is_there(files, path, digest):
        size = files.size(path)
    return size or 0


def begin_draft(files: DirectoryStorage, draft: str, path: str, digest: str, offset: int) -> None:
    """Check that an upload goes on where it was cut, and make room for the draft of a new one.

    Raises:
        OffsetMismatch: it does not.
        TooManyTransfers: the node has too many drafts.
    """
    known = files.size(draft)
    if known is None and offset == 0:
        _make_room(files, draft.rpartition("/")[0])
        return
    size = known if known is not None else size_of_draft(files, draft, path, digest)
    if offset != size:
        raise OffsetMismatch(draft, offset, size)


def write_draft(files: DirectoryStorage, draft: str, offset: int, part: bytes) -> None:
    """Raises:
    OffsetMismatch: another request writes the same upload.
    """
    file = files.open_file(draft, os.O_WRONLY | os.O_CREAT, make=True)
    try:
        size = os.fstat(file).st_size
        if size != offset:
            raise OffsetMismatch(draft, offset, size)
        fs.write_at(file, part, offset)
    finally:
        os.close(file)


def publish_draft(files: DirectoryStorage, draft: str, path: str, digest: str) -> None:
    """Put a draft that is whole into its place, if it is what its digest says; else it is thrown away.

    Raises:
        DigestMismatch: it is not.
        UnknownFile: the way to its place is none; it is thrown away as well.
        OffsetMismatch: another request has thrown it away.
    """
    try:
        with open(files.open_file(draft, os.O_RDWR), "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() == digest:
                os.fsync(file.fileno())
                files.adopt(path, draft)
                return
    except UnknownFile:
        if files.size(draft) is not None:  # a link is on the way to its place
            files.remove(draft)
            raise
        if _is_there(files, path, digest):  # another request has put it there
            return
        raise OffsetMismatch(path, 0, 0) from None
    files.remove(draft)
    raise DigestMismatch(f"{path}: what has arrived does not match Repr-Digest; send it again from the first byte")


def sweep_drafts(files: DirectoryStorage, older_than: float = DRAFT_SECONDS) -> None:
    """Remove drafts of all nodes that nobody has touched for so long. What cannot be removed is tried the next time."""
    for node in _entries(files, paths.NODE_DRAFTS):
        directory = f"{paths.NODE_DRAFTS}/{node}"
        for age, name in _ages(files, directory):
            with suppress(RemoteError):
                if age > older_than:
                    files.remove(f"{directory}/{name}")


def list_files(files: DirectoryStorage, prefix: str, after: str, most: int) -> tuple[list[str], bool]:
    """Paths of plain files below a directory that sort after `after`, and whether there are more. Names that are not
    UTF-8 are left out."""
    try:
        top = files.open_directory(prefix)
    except UnknownFile:
        return [], False
    try:
        found = list(islice(_walk(top, f"{prefix}/", after, MAX_PARTS), most + 1))
    finally:
        os.close(top)
    return found[:most], len(found) > most


def _is_there(files: DirectoryStorage, path: str, digest: str) -> bool:
    """Whether the file in a place is the one with a digest."""
    with suppress(UnknownFile), open(files.open_file(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == digest
    return False


def _walk(directory: int, prefix: str, after: str, depth: int) -> Iterator[str]:
    """In the order of the paths as texts: a directory sorts by its name and the slash behind it."""
    with os.scandir(directory) as entries:
        kinds = {_sorted_name(entry) for entry in entries if entry.name.isascii() or _is_text(entry.name)}
    for name in sorted(kinds):
        path = prefix + name
        if not name.endswith("/"):
            if path > after and _is_plain(directory, name):
                yield path
        elif depth > 0 and (path > after or after.startswith(path)):
            with suppress(OSError):  # it has just been removed, or replaced by something else
                inner = os.open(
                    name[:-1], os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory
                )
                try:
                    yield from _walk(inner, path, after, depth - 1)
                finally:
                    os.close(inner)


def _sorted_name(entry: "os.DirEntry[str]") -> str:
    return f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name


def _is_text(name: str) -> bool:
    with suppress(UnicodeEncodeError):
        name.encode()
        return True
    return False


def _is_plain(directory: int, name: str) -> bool:
    with suppress(OSError):
        return stat.S_ISREG(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    return False


def _make_room(files: DirectoryStorage, directory: str) -> None:
    drafts = sorted(_ages(files, directory), reverse=True)
    if len(drafts) < MAX_DRAFTS:
        return
    age, name = drafts[0]
    if age < IDLE_SECONDS:
        raise TooManyTransfers(f"the node has {MAX_DRAFTS} unfinished uploads; finish one of them first")
    files.remove(f"{directory}/{name}")


def _ages(files: DirectoryStorage, directory: str) -> list[tuple[float, str]]:
    """Seconds since each file of a directory was written to, with its name."""
    now, found = time.time(), []
    for name in _entries(files, directory):
        with suppress(UnknownFile):
            file = files.open_file(f"{directory}/{name}")
            found.append((now - os.fstat(file).st_mtime, name))
            os.close(file)
    return found


def _entries(files: DirectoryStorage, directory: str) -> list[str]:
    try:
        opened = files.open_directory(directory)
    except UnknownFile:
        return []
    try:
        return os.listdir(opened)
    finally:
        os.close(opened)
