"""Takes over the files that ranks have written for a checkpoint, or refuses them.

What ranks write is not trusted. Their directory is never renamed, only files out of it, whose names were checked, into
a directory that only the service can enter. There each must be a plain file of the ranks' account with no other hard
link. From then on it belongs to the service, and is read-only. A rank that has kept it open can still write to it, and
so spoil what its own job may resume from: every byte is verified before a resume, when all processes of that rank are
dead.
"""

import contextlib
import hashlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import structlog

from jobs.files import checkpoints
from jobs.files.checkpoints import ManifestFile
from jobs.protocol.records import Saved
from jobs.support import fs

log = structlog.get_logger(__name__)

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class TakeoverRefused(Exception):
    """The ranks left something else than the files that they reported."""


def take_over_files(saves: Sequence[Saved], draft: Path, part: Path, uid: int | None) -> dict[str, ManifestFile]:
    """Move the ranks' files into a directory of the service, and take ownership of them. `uid` is that of the ranks'
    account, where they have one.

    Raises:
        TakeoverRefused: the ranks left something else than what they reported.
        OSError: the disk refuses.
    """
    drafts = os.open(draft.parent, _DIRECTORY)  # the service's, so no link; what is in it belongs to the ranks
    try:
        source = _open_draft(drafts, draft.name)
    finally:
        os.close(drafts)
    target = os.open(part, _DIRECTORY)
    try:
        files = {}
        for saved in saves:
            for file in saved.files:
                try:
                    os.rename(file.name, file.name, src_dir_fd=source, dst_dir_fd=target)
                except FileNotFoundError as error:
                    raise TakeoverRefused(f"rank {saved.rank} has not written {file.name}") from error
                _take_ownership(target, file.name, file.bytes, uid)
                files[file.name] = ManifestFile(file.bytes, file.sha256)
        return files
    finally:
        os.close(source)
        os.close(target)


def _open_draft(drafts: int, name: str) -> int:
    try:
        return os.open(name, _DIRECTORY, dir_fd=drafts)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise TakeoverRefused("the ranks have not made a directory for it") from error


def _take_ownership(directory: int, name: str, size: int, uid: int | None) -> None:
    """Take ownership of a file that was just moved into a directory of the service. Never follows a link or waits."""
    fd = -1
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            raise TakeoverRefused(f"{name} is not a regular file, or has hard links")
        if uid is not None and found.st_uid != uid:
            raise TakeoverRefused(f"{name} does not belong to the job's account")
        if found.st_size != size:
            raise TakeoverRefused(f"{name} has {found.st_size} bytes instead of {size}")
        if uid is not None:
            os.fchown(fd, os.geteuid(), os.getegid())
        os.fchmod(fd, 0o444 if uid is not None else 0o640)
    except OSError as error:
        raise TakeoverRefused(f"{name} cannot be opened: {error.strerror}") from error
    finally:
        if fd >= 0:
            os.close(fd)


def write_file(body: bytes, path: Path) -> ManifestFile:
    path.write_bytes(body)
    return ManifestFile(len(body), hashlib.sha256(body).hexdigest())


def copy_prefix(source: Path, length: int, path: Path) -> ManifestFile:
    """Copy the first bytes of a file that grows."""
    digest, left = hashlib.sha256(), length
    with path.open("xb") as writer, contextlib.ExitStack() as stack:
        reader = stack.enter_context(source.open("rb")) if length else None
        while left and reader is not None and (part := reader.read(min(left, checkpoints.CHUNK_BYTES))):
            digest.update(part)
            writer.write(part)
            left -= len(part)
    return ManifestFile(length - left, digest.hexdigest())


def sync_path(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def remove_if_there(directory: Path) -> None:
    """Remove a directory that may not exist. What cannot be removed is logged, and swept later."""
    if not os.path.lexists(directory):
        return
    try:
        if directory.is_symlink() or not directory.is_dir():
            directory.unlink()
        else:
            fs.remove_tree(directory)
    except OSError as error:
        log.warning("not_removed", directory=str(directory), error=str(error))
