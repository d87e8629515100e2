"""Adds up the files below a directory that a program writes to as it likes.

Directories are opened by descriptors from their parents, no link is followed, no other file system is entered, and
nothing is remembered of what was counted: memory does not grow with the tree, and the caller says when it is enough.
"""

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

#: Directories that may lie in one another. Each takes two descriptors while the walk is in it.
MAX_DEPTH = 100
#: Files with several names that are told apart, so that each counts once. Others count once for each name.
MAX_LINKED = 10_000
#: Entries after which the walk asks whether it is enough.
STRIDE = 256
#: The unit of st_blocks, whatever the blocks of the file system are.
BLOCK_BYTES = 512
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True)
class TreeUsage:
    """`bytes` are those that files take on the disk, so holes do not count; `entries` are files, directories, links and
    whatever else has a name; both in all, and by the number of their file system (`st_dev`). `is_too_deep`: what lies
    deeper than `MAX_DEPTH` was not counted."""

    bytes: int = 0
    entries: int = 0
    is_too_deep: bool = False
    bytes_on: dict[int, int] = field(default_factory=dict)
    entries_on: dict[int, int] = field(default_factory=dict)
    _linked: set[tuple[int, int]] = field(default_factory=set)

    def add(self, status: os.stat_result) -> None:
        self.entries += 1
        self.entries_on[status.st_dev] = self.entries_on.get(status.st_dev, 0) + 1
        self.add_bytes(status)

    def add_bytes(self, status: os.stat_result) -> None:
        """Add what a file takes, unless it was added before under another name."""
        if status.st_nlink != 1 and not stat.S_ISDIR(status.st_mode):
            place = status.st_dev, status.st_ino
            if place in self._linked:
                return
            if len(self._linked) < MAX_LINKED:
                self._linked.add(place)
        size = status.st_blocks * BLOCK_BYTES
        self.bytes += size
        self.bytes_on[status.st_dev] = self.bytes_on.get(status.st_dev, 0) + size


class _OpenDirectory:
    """Raises OSError where it cannot be opened."""

    def __init__(self, name: str, parent: int | None) -> None:
        self.fd = os.open(name, _DIRECTORY, dir_fd=parent)
        self.device = os.fstat(self.fd).st_dev
        self.entries = os.scandir(self.fd)

    def close(self) -> None:
        self.entries.close()
        os.close(self.fd)


def add_tree(root: Path, usage: TreeUsage, is_enough: Callable[[TreeUsage], bool]) -> None:
    """Add everything below a directory, until it `is_enough`. What cannot be read, or goes away meanwhile, is left out;
    so is a directory that is not there."""
    levels: list[_OpenDirectory] = []
    try:
        with suppress(OSError):
            levels.append(_OpenDirectory(os.fspath(root), None))
        while levels and not is_enough(usage):
            try:
                _walk_on(levels, usage)
            except OSError:  # of the innermost directory, which cannot be read any further
                levels.pop().close()
    finally:
        for level in levels:
            level.close()


def _walk_on(levels: list[_OpenDirectory], usage: TreeUsage) -> None:
    """Add the next entries of the innermost directory: as far as the next directory in it, or to its end."""
    current = levels[-1]
    for number, entry in enumerate(current.entries, 1):
        with suppress(OSError):
            status = entry.stat(follow_symlinks=False)
            if status.st_dev == current.device:
                usage.add(status)
            if status.st_dev == current.device and stat.S_ISDIR(status.st_mode) and _enter(entry.name, levels, usage):
                return
        if number == STRIDE:
            return
    levels.pop().close()


def _enter(name: str, levels: list[_OpenDirectory], usage: TreeUsage) -> bool:
    """Go on in a directory of the innermost one; False where it lies too deep, or on another file system.

    Raises:
        OSError: it cannot be opened.
    """
    if len(levels) == MAX_DEPTH:
        usage.is_too_deep = True
        return False
    inner = _OpenDirectory(name, levels[-1].fd)
    if inner.device != levels[-1].device:
        inner.close()
        return False
    levels.append(inner)
    return True
