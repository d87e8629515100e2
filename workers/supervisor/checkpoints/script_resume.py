"""Copies the newest whole checkpoint of a script for a later attempt.

Scripts save through `shardyard.job.checkpoint` (`shardyard.script.checkpoint` has the layout on disk) into the
artifacts of their attempt. The supervisor of a later attempt searches all earlier ones, newest first, and copies the
first checkpoint that is what was saved to a directory beside the working copy of the bundle. Nothing is carried from
attempt to attempt, so an attempt that died before it saved anything hides nothing of those before it.

Artifacts are not trusted: ranks may have put anything there, and may still be able to change it. So no link is
followed, only plain files are opened, and what is copied is what was hashed: the ranks get the very bytes that were
verified, in files that are not theirs, and nothing that the manifest does not name.
"""

import errno
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from jobs.files import paths
from jobs.files.checkpoints import DamagedCheckpoint, Progress
from jobs.store import AttemptId
from jobs.support import fs
from shardyard.script import checkpoint

#: Checkpoints that are tried in all, and earlier attempts that are searched.
MAX_TRIED = 16
MAX_ATTEMPTS = 1000
#: Manifests of one attempt that are listed: a script that saves each checkpoint under a name of its own has many.
MAX_MANIFESTS = 100_000
MAX_DEPTH = 32
CHUNK_BYTES = 1024 * 1024

_MANIFEST = re.compile(r"(\d{12})-[0-9a-f]{16}\.json")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Opening a pipe without O_NONBLOCK would wait for a writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: What is wrong with the files, not with the disk: they are missing, links, sockets, or closed to us.
_BAD_FILE_ERRNOS: Final = frozenset(
    (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EACCES, errno.ENXIO, errno.ENAMETOOLONG)
)


@dataclass(frozen=True, slots=True)
class CopiedCheckpoint:
    """A checkpoint that was copied; `directory` has it, and nothing else, under `name`."""

    directory: Path
    name: str
    attempt: int


@dataclass(slots=True)
class SearchResult:
    """The checkpoint that was found, if any. `damaged` says what is wrong with each one that is not what was saved."""

    found: CopiedCheckpoint | None = None
    damaged: list[str] = field(default_factory=list)


class _ScriptManifest(msgspec.Struct, frozen=True):
    version: int
    name: str
    draft: str
    directories: list[str]
    files: list[tuple[str, int, str]]


def copy_newest_checkpoint(
    storage: Path, attempt: AttemptId, into: Path, read: Progress = lambda _: None
) -> SearchResult:
    """Copy the newest whole checkpoint of the attempts before this one to `into`, read-only. `read` is called with the
    number of bytes that were read, as they are.

    Raises:
        OSError: the disk refuses, or has no room for it.
    """
    search = SearchResult()
    for number in range(attempt.number - 1, max(0, attempt.number - 1 - MAX_ATTEMPTS), -1):
        directory = paths.attempt_dir(storage, attempt.tenant, attempt.job, number)
        for name in _list_manifests(paths.artifacts_dir(directory)):
            if len(search.damaged) == MAX_TRIED:
                return search
            try:
                saved = _copy_checkpoint(paths.artifacts_dir(directory), name, into, read)
            except DamagedCheckpoint as error:
                search.damaged.append(f"a checkpoint of attempt {number} is not what was saved: {error}")
                fs.remove_tree(into)
            else:
                search.found = CopiedCheckpoint(into, saved, number)
                return search
    return search


def _list_manifests(artifacts: Path) -> list[str]:
    """Names of the manifests of one attempt, the newest first."""
    names: list[str] = []
    try:
        with (
            _open_directory(artifacts) as top,
            _open_entry(top, checkpoint.MANIFESTS, _DIRECTORY) as there,
            os.scandir(there) as found,
        ):
            for entry in found:
                if _MANIFEST.fullmatch(entry.name):
                    names.append(entry.name)
                if len(names) == MAX_MANIFESTS:
                    break
    except DamagedCheckpoint:  # it saved none
        return []
    return sorted(names, reverse=True)


def _copy_checkpoint(artifacts: Path, manifest: str, into: Path, read: Progress) -> str:
    """Copy what a manifest describes, if all of it is there. Returns its name."""
    with _open_directory(artifacts) as top:
        with _open_entry(top, checkpoint.MANIFESTS, _DIRECTORY) as there, _open_entry(there, manifest, _FILE) as fd:
            saved = _decode_manifest(_read_manifest(fd))
        with _open_entry(top, checkpoint.CHECKPOINTS, _DIRECTORY) as parent:
            name = _locate_directory(parent, saved)
            for path, size, _ in saved.files:
                with _open_path(parent, name, path, _FILE) as fd:
                    _check_size(fd, size)
            _check_free_space(sum(size for _, size, _ in saved.files), into)
            into.mkdir(mode=0o700)
            for path in saved.directories:
                (into / saved.name / path).mkdir()
            for path, size, sha256 in saved.files:
                with _open_path(parent, name, path, _FILE) as fd:
                    _copy_file(fd, into / saved.name / path, size, sha256, read)
    for path in saved.directories:
        (into / saved.name / path).chmod(0o555)
    into.chmod(0o555)
    return saved.name


def _locate_directory(parent: int, saved: _ScriptManifest) -> str:
    """The name of its directory: that of the draft, where its attempt died before it was renamed."""
    with suppress(FileNotFoundError):
        if saved.draft and os.stat(saved.draft, dir_fd=parent, follow_symlinks=False):
            return saved.draft
    return saved.name


def _check_size(fd: int, size: int) -> None:
    found = os.fstat(fd).st_size
    if found != size:
        raise DamagedCheckpoint(f"a file has {found:,} bytes instead of {size:,}")


def _check_free_space(needed: int, into: Path) -> None:
    free = shutil.disk_usage(into.parent).free
    if needed > free:
        raise OSError(
            errno.ENOSPC, f"the checkpoint to resume from has {needed:,} bytes, and {into.parent} has {free:,} left"
        )


def _copy_file(fd: int, target: Path, size: int, sha256: str, read: Progress) -> None:
    digest, left = hashlib.sha256(), size
    with target.open("xb", buffering=0) as copy:
        while left > 0 and (chunk := os.read(fd, min(left, CHUNK_BYTES))):
            read(len(chunk))
            digest.update(chunk)
            copy.write(chunk)
            left -= len(chunk)
        os.fchmod(copy.fileno(), 0o444)
    if left or digest.hexdigest() != sha256:
        raise DamagedCheckpoint(f"{target.name!r} has another SHA-256")


# -- manifests -------------------------------------------------------------------------------------


def _decode_manifest(body: bytes) -> _ScriptManifest:
    try:
        saved = msgspec.convert(json.loads(body), _ScriptManifest)
    except (ValueError, RecursionError) as error:
        raise DamagedCheckpoint(f"its manifest cannot be read: {error}") from error
    if saved.version != checkpoint.VERSION:
        raise DamagedCheckpoint(
            f"its manifest has version {saved.version}, and this service knows {checkpoint.VERSION}"
        )
    if len(saved.files) + len(saved.directories) > checkpoint.MAX_FILES:
        raise DamagedCheckpoint(f"it has more than {checkpoint.MAX_FILES:,} files")
    if not _is_plain(saved.name) or (saved.draft and not _is_plain(saved.draft)):
        raise DamagedCheckpoint(f"{saved.name[:100]!r} is not the name of a file")
    known: set[str] = set()
    for path in saved.directories:
        _check_path(path, known)
        known.add(path)
    directories = frozenset(known)
    for path, size, sha256 in saved.files:
        _check_path(path, directories)
        if path in known or size < 0 or not _SHA256.fullmatch(sha256):
            raise DamagedCheckpoint(f"its manifest says of {path[:100]!r} impossible values")
        known.add(path)
    if not saved.files and not saved.directories:
        raise DamagedCheckpoint("it is empty")
    return saved


def _check_path(path: str, directories: set[str] | frozenset[str]) -> None:
    """A path must lead into a directory that came before it; "" is the checkpoint itself, and comes first."""
    parts = path.split("/")
    if not path:
        fits = not directories
    else:
        fits = len(parts) < MAX_DEPTH and all(map(_is_plain, parts)) and path.rpartition("/")[0] in directories
    if not fits or path in directories:
        raise DamagedCheckpoint(f"its manifest names {path[:100]!r}, which cannot be in it")


def _is_plain(name: str) -> bool:
    try:
        length = len(os.fsencode(name))
    except UnicodeEncodeError:
        return False
    return 0 < length <= 255 and name not in (".", "..") and "/" not in name and "\0" not in name


def _read_manifest(fd: int) -> bytes:
    size = os.fstat(fd).st_size
    if size > checkpoint.MAX_MANIFEST_BYTES:
        raise DamagedCheckpoint(f"its manifest has {size:,} bytes")
    with open(fd, "rb", closefd=False) as file:
        return file.read(checkpoint.MAX_MANIFEST_BYTES)


# -- opening files without following a link --------------------------------------------------------


@contextmanager
def _open_directory(directory: Path) -> Iterator[int]:
    with _open_entry(None, str(directory), _DIRECTORY) as fd:
        yield fd


@contextmanager
def _open_path(parent: int, name: str, path: str, flags: int) -> Iterator[int]:
    """A file of the checkpoint in the directory `name`, opened one path component at a time."""
    *steps, last = [name, *path.split("/")] if path else [name]
    way = os.dup(parent)
    try:
        for step in steps:
            with _open_entry(way, step, _DIRECTORY) as fd:
                os.dup2(fd, way, inheritable=False)
        with _open_entry(way, last, flags) as fd:
            yield fd
    finally:
        os.close(way)


@contextmanager
def _open_entry(directory: int | None, name: str, flags: int) -> Iterator[int]:
    """A directory, or a plain file, in a directory.

    Raises:
        Damaged: it is not there, or is something else.
        OSError: the disk refuses.
    """
    try:
        fd = os.open(name, flags, dir_fd=directory)
    except OSError as error:
        if error.errno in _BAD_FILE_ERRNOS:
            raise DamagedCheckpoint(f"{name[:100]!r} cannot be opened: {error.strerror}") from error
        raise
    try:
        if flags == _FILE and not stat.S_ISREG(os.fstat(fd).st_mode):
            raise DamagedCheckpoint(f"{name[:100]!r} is not a regular file")
        yield fd
    finally:
        os.close(fd)
