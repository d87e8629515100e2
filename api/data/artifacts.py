"""Files that an attempt left for people: listed and opened so that no link and no name leads out of its directory.

A job may put anything where its files lie while they are being read. So every directory on the way
is opened from the one above it, and nothing on the way may be a link.

The checkpoints of a job belong to all its attempts. They are listed with each, as `checkpoints/step-<n>/...`.
"""

import io
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Literal

from jobs.files import checkpoints, paths, profiles, user_files
from jobs.files.checkpoints import StoredCheckpoint
from shardyard.contract.errors import NotFound, ShardyardError
from shardyard.contract.responses import ArtifactView, LeftOutFiles, at

_PARTS = (paths.report_file, paths.artifacts_dir, paths.user_files_dir, paths.profiles_dir)
#: What is offered, by its path below the attempt's directory; the rest is the service's own bookkeeping.
OFFERED = tuple(part(Path()).name for part in _PARTS)
#: Where a path is looked for that begins with none of these: the program's own name of a file is enough.
OWN_FILES = (paths.user_files_dir(Path()).name, paths.artifacts_dir(Path()).name)
#: What checkpoints are listed below.
CHECKPOINTS = paths.checkpoints_dir(Path(), "", "").name
PROFILES = paths.profiles_dir(Path()).name
REPORT = paths.report_file(Path()).name
#: Of checkpoints of both kinds: the service's, and those that a script has saved, with their manifests.
_CHECKPOINT_PATHS = (f"{CHECKPOINTS}/", f"artifacts/{CHECKPOINTS}/", f"artifacts/.{CHECKPOINTS}/")
MAX_LISTED = 10_000
#: Entries of an attempt that are looked at: one may have many that are not listed, for example links.
MAX_SCANNED = 100_000
MAX_DEPTH = 32
MAX_PATH = 4096

#: A step on the way needs the right to pass, not the right to list.
_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Opening a pipe without this would block until a process writes to it.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_RANGE = re.compile(r"bytes=(\d{0,19})-(\d{0,19})")


class RangeNotSatisfiable(ShardyardError):
    """The Range header begins after the end of the file; `size` is its size."""

    code = "range_not_satisfiable"

    def __init__(self, size: int) -> None:
        super().__init__(f"the file has {size} bytes; the requested range has none of them")
        self.size = size


@dataclass(frozen=True, slots=True)
class OpenArtifact:
    """An open regular file. Whoever has it closes `file`. The tag changes whenever the file does. `url`: where its
    bytes are to be fetched; there are none in `file` then."""

    file: BinaryIO | io.RawIOBase
    name: str
    size: int
    tag: str
    url: str = ""


@dataclass(frozen=True, slots=True)
class ArtifactListing:
    artifacts: list[ArtifactView]
    truncated: bool
    left_out: list[LeftOutFiles] = field(default_factory=list)


def list_artifacts(attempt: Path) -> ArtifactListing:
    """All regular files that are offered, by path. Names that are not UTF-8 are left out. Raises OSError.

    `truncated`: there are more than `MAX_LISTED`, deeper ones than `MAX_DEPTH`, or more entries than anybody looks at.
    """
    found = _attempt_files(attempt)
    saved = [view for name, one in _checkpoints_by_name(attempt).items() for view in _checkpoint_files(one, name)]
    both = sorted(found.artifacts + saved, key=lambda one: one.path)
    record = user_files.read_record(attempt)
    left_out = record.left_out if record is not None else []
    return ArtifactListing(both[:MAX_LISTED], found.truncated or len(both) > MAX_LISTED, left_out)


def _checkpoints_by_name(attempt: Path) -> dict[str, StoredCheckpoint]:
    """The checkpoints of the attempt's job, by the names that they are listed with; of two of one step, the later."""
    kept = checkpoints.list_checkpoints(attempt.parent / CHECKPOINTS)
    return {f"{CHECKPOINTS}/step-{one.step}": one for one in reversed(kept)}


def _checkpoint_files(one: StoredCheckpoint, name: str) -> Iterator[ArtifactView]:
    try:
        directory = _open_directory(one.directory)
    except (FileNotFoundError, NotADirectoryError):  # it has just been replaced by a newer one
        return
    try:
        for view in _walk_subdirectory(directory, ".", PurePosixPath(name), 0, iter(range(MAX_SCANNED))):
            if view is not None:
                yield view
    finally:
        os.close(directory)


def _attempt_files(attempt: Path) -> ArtifactListing:
    """What the attempt left in its own directory."""
    try:
        way = _open_directory(attempt)
    except (FileNotFoundError, NotADirectoryError):
        return ArtifactListing([], truncated=False)
    try:
        top = os.open(".", _DIRECTORY, dir_fd=way)
    finally:
        os.close(way)
    try:
        found: list[ArtifactView] = []
        truncated = False
        for view in _walk_directory(top, PurePosixPath(), MAX_DEPTH, iter(range(MAX_SCANNED))):
            truncated |= view is None or len(found) == MAX_LISTED
            if len(found) == MAX_LISTED:
                break
            if view is not None:
                found.append(view)
        return ArtifactListing(sorted(found, key=lambda one: one.path), truncated)
    finally:
        os.close(top)


def _walk_directory(
    directory: int, prefix: PurePosixPath, depth: int, turns: Iterator[int]
) -> Iterator[ArtifactView | None]:
    """Files below a directory; None in place of what lies too deep, or comes when there are no more turns."""
    with os.scandir(directory) as entries:
        names = sorted(entry.name for entry in islice(entries, MAX_SCANNED) if _is_text(entry.name))
    if prefix.parts[:1] == (PROFILES,):
        names = [name for name in names if not name.startswith(".") and name != profiles.RECORD_NAME]
    for name in names if prefix.parts else [name for name in names if name in OFFERED]:
        if next(turns, None) is None:
            yield None
            return
        with suppress(OSError):  # it may be removed meanwhile, or lie in a directory that may only be listed
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                path = str(prefix / name)
                yield ArtifactView(path, status.st_size, at(status.st_mtime_ns // 1000), kind_of(path))
            elif stat.S_ISDIR(status.st_mode) and depth == 0:
                yield None
            elif stat.S_ISDIR(status.st_mode):
                yield from _walk_subdirectory(directory, name, prefix / name, depth - 1, turns)


def kind_of(path: str) -> Literal["file", "checkpoint", "profile", "report"]:
    if path == REPORT:
        return "report"
    if path.startswith(f"{PROFILES}/"):
        return "profile"
    return "checkpoint" if path.startswith(_CHECKPOINT_PATHS) else "file"


def _walk_subdirectory(
    parent: int, name: str, prefix: PurePosixPath, depth: int, turns: Iterator[int]
) -> Iterator[ArtifactView | None]:
    try:
        directory = os.open(name, _DIRECTORY, dir_fd=parent)
    except OSError:  # replaced by something else since, or closed to us
        return
    try:
        yield from _walk_directory(directory, prefix, depth, turns)
    finally:
        os.close(directory)


def open_file(attempt: Path, path: str) -> OpenArtifact:
    """Open one of the files that `list_artifacts` names. A file of the program's own may go without the name of the
    directory that it is listed in.

    Raises:
        NotFound: there is no such regular file, or a link or `..` is on the way to it.
        OSError: it cannot be read.
    """
    if path.split("/")[0] in (*OFFERED, CHECKPOINTS):
        return _open_listed(attempt, path)
    for directory in OWN_FILES:
        with suppress(NotFound):
            return _open_listed(attempt, f"{directory}/{path}")
    raise no_such_artifact(path)


def _open_listed(attempt: Path, path: str) -> OpenArtifact:
    parts = path.split("/")
    if not is_plain(path, parts):
        raise no_such_artifact(path)
    top, below = attempt, parts
    if parts[0] == CHECKPOINTS:
        one = _checkpoints_by_name(attempt).get("/".join(parts[:2]))
        if one is None:
            raise no_such_artifact(path)
        top, below = one.directory, parts[2:]
    if not below:
        raise no_such_artifact(path)
    try:
        directory = _open_directory(top)
        for name in below[:-1]:
            parent, directory = directory, _open_subdirectory(directory, name)
            os.close(parent)
        try:
            descriptor = os.open(parts[-1], _FILE, dir_fd=directory)
        finally:
            os.close(directory)
    except OSError:
        raise no_such_artifact(path) from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise no_such_artifact(path)
    tag = f'"{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}"'
    return OpenArtifact(open(descriptor, "rb", buffering=0), parts[-1], status.st_size, tag)


def _open_subdirectory(directory: int, name: str) -> int:
    try:
        return os.open(name, _STEP, dir_fd=directory)
    except OSError:
        os.close(directory)
        raise


def _open_directory(path: Path) -> int:
    """An absolute path without links, opened step by step, so that it has none when it is used either."""
    directory = os.open(path.anchor, _STEP)
    for name in path.parts[1:]:
        parent, directory = directory, _open_subdirectory(directory, name)
        os.close(parent)
    return directory


def is_plain(path: str, parts: list[str]) -> bool:
    ordinary = all(part not in ("", ".", "..") for part in parts)
    return (
        ordinary
        and parts[0] in (*OFFERED, CHECKPOINTS)
        and "\0" not in path
        and len(path) <= MAX_PATH
        and _is_text(path)
    )


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def no_such_artifact(path: str) -> NotFound:
    return NotFound(f"this attempt has no artifact {path[:200]!r}; list the artifacts to see their names")


def parse_range(header: str, size: int) -> tuple[int, int] | None:
    """First and last byte (inclusive) that a Range header asks for; None: the whole file.

    A header of another form, or with several ranges, is ignored, as HTTP allows.

    Raises:
        RangeNotSatisfiable: none of those bytes exist.
    """
    match = _RANGE.fullmatch(header.replace(" ", ""))
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if first and last and int(last) < int(first):
        return None
    begin = int(first) if first else max(0, size - int(last))
    end = min(int(last), size - 1) if first and last else size - 1
    if begin >= size:
        raise RangeNotSatisfiable(size)
    return begin, end
