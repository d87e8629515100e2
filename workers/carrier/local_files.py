"""Finds what is to be carried from an attempt's directory: files that grow by frames, and files that are carried whole.

What programs have written is not trusted: directories are opened one from the other, no link is followed, and a file is
read by the descriptor that was looked at.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from jobs.files import paths
from jobs.support import fs
from jobs.support.directory_cursor import walk_with_names
from workers.carrier.journal import FileStamp

#: A program's file that was not changed for so long is carried while the attempt runs; and what ranks have saved for a
#: checkpoint, which says itself whether it is whole.
SETTLED_SECONDS, SAVED_SECONDS = 5.0, 0.5
#: Steps of which a part that does not lead keeps what its ranks have saved: the leader may be at the first of them.
KEPT_DRAFTS = 3
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class WholeFile:
    """`fd` is open while it is looked at. `is_settled`: nobody has written to it lately."""

    path: Path
    fd: int
    stamp: FileStamp
    is_settled: bool

    @property
    def by_descriptor(self) -> Path:
        """A path that leads to this very file, whatever its name leads to by now."""
        return Path(f"/proc/self/fd/{self.fd}")

    def has_changed(self) -> bool:
        return stamp_of(self.fd) != self.stamp


def growing_files(attempt: Path) -> list[Path]:
    """Files of frames, which only the supervisor writes."""
    logs = sorted(paths.logs_dir(attempt).glob("device-*.log"))
    return [file for file in (*logs, paths.metrics_file(attempt)) if file.exists()]


def whole_trees(attempt: Path) -> tuple[Path, ...]:
    return paths.artifacts_dir(attempt), paths.user_files_dir(attempt), paths.profiles_dir(attempt)


def whole_files(attempt: Path, now: float) -> Iterator[WholeFile]:
    """Every file that is carried whole, those that tell of the others last; each is open until the next one is asked
    for. `now` is the wall clock."""
    yield from draft_files(attempt, now)
    for tree in whole_trees(attempt):
        yield from _files_below(tree, now)
    for file in (paths.hardware_file(attempt), paths.user_files_record(attempt), paths.report_file(attempt)):
        with suppress(FileNotFoundError), _open_plain(file, None) as fd:
            if fd is not None:
                yield WholeFile(file, fd, stamp_of(fd), True)  # it was renamed into place


def draft_files(attempt: Path, now: float) -> Iterator[WholeFile]:
    """What the ranks of a part that does not lead have saved for checkpoints, and who leads has to fetch."""
    for tree in sorted(paths.parts_dir(attempt).glob("*/drafts")):
        yield from _files_below(tree, now, SAVED_SECONDS)


def remove_old_drafts(attempt: Path) -> None:
    """Remove what the leader has taken, or given up. Raises OSError."""
    for tree in paths.parts_dir(attempt).glob("*/drafts"):
        steps = sorted(int(name) for name in os.listdir(tree) if name.isdecimal() and name.isascii())
        for step in steps[:-KEPT_DRAFTS]:
            fs.remove_tree(tree / str(step))


def _files_below(tree: Path, now: float, settled_seconds: float = SETTLED_SECONDS) -> Iterator[WholeFile]:
    try:
        for cursor, names in walk_with_names(tree):
            for name in names:
                path = tree.parent.joinpath(*cursor.names, name)
                with suppress(OSError), _open_plain(Path(name), cursor.fd) as fd:
                    if fd is not None:
                        stamp = stamp_of(fd)
                        yield WholeFile(path, fd, stamp, now - stamp.modified_ns / 1e9 > settled_seconds)
    except (FileNotFoundError, NotADirectoryError):  # or a link: a program may have put it there
        return


@contextmanager
def _open_plain(file: Path, directory: int | None) -> Iterator[int | None]:
    """A file, opened; None where it is no plain one. Raises OSError."""
    fd = os.open(file, _FILE, dir_fd=directory)
    try:
        yield fd if stat.S_ISREG(os.fstat(fd).st_mode) else None
    finally:
        os.close(fd)


def stamp_of(fd: int) -> FileStamp:
    found = os.fstat(fd)
    return FileStamp(found.st_size, found.st_mtime_ns, found.st_ino)
