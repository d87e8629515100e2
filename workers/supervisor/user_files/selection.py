"""Finds the files that a script has written or changed in its working directory, and chooses which ones are kept.

The directory is the program's work, and not trusted: it is walked by descriptors, no link is followed, and the number
of entries, the depth and the time are bounded. Caches, and pipes, sockets and devices, are left out without a word.
"""

import os
import stat
from collections.abc import Callable, Iterator
from typing import Final

from jobs.model.file_patterns import compile_patterns
from workers.supervisor.user_files.baseline import Baseline, BundledFileStamp
from workers.supervisor.user_files.left_out import (
    MAX_DEPTH,
    MAX_ENTRIES,
    MAX_FILES,
    MAX_PATH_BYTES,
    FoundFile,
    LeftOutTally,
    Reason,
)

#: Never kept, whatever the patterns are: what programs make again by themselves.
CACHES: Final = frozenset(
    (
        *("__pycache__", ".cache", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".ipynb_checkpoints", ".triton"),
        *(".git", ".hg", ".svn", ".venv", "node_modules", ".nv", ".DS_Store"),
    )
)
#: Where torchvision puts what it downloads, below the directory that a script names.
_DATA_SETS: Final = frozenset(
    (
        *("cifar-10-batches-py", "cifar-10-python.tar.gz", "cifar-100-python", "cifar-100-python.tar.gz"),
        *("MNIST/raw", "FashionMNIST/raw", "KMNIST/raw", "EMNIST/raw", "QMNIST/raw"),
    )
)
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class FileFinder:
    """Walks one working directory. `is_time_up` is asked for each entry."""

    def __init__(self, baseline: Baseline, left_out: LeftOutTally, is_time_up: Callable[[], bool]) -> None:
        self._baseline = baseline
        self._left_out = left_out
        self._is_time_up = is_time_up
        self._is_wanted = compile_patterns(baseline.keep) if baseline.keep is not None else None
        self._entries = 0

    def find_files(self, directory: int) -> list[FoundFile]:
        """The new and changed files below an open directory that may be kept. The others are counted as left out.

        Raises:
            OSError: the directory itself cannot be read.
        """
        return list(self._walk(directory, "", 0, in_data_set=False))

    def _walk(self, directory: int, prefix: str, depth: int, *, in_data_set: bool) -> Iterator[FoundFile]:
        with os.scandir(directory) as entries:
            for entry in entries:
                self._entries += 1
                if entry.name in CACHES or entry.name.endswith(".pyc"):
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                found = FoundFile(prefix + entry.name, status.st_size, status.st_mtime_ns)
                if self._entries > MAX_ENTRIES or self._is_time_up():
                    self._left_out.add("count" if self._entries > MAX_ENTRIES else "time", found)
                    return
                is_data_set = in_data_set or self._is_data_set(found.path)
                if stat.S_ISDIR(status.st_mode):
                    yield from self._walk_subdirectory(directory, entry.name, found, depth, in_data_set=is_data_set)
                elif stat.S_ISLNK(status.st_mode) and not _leads_out(directory, found.path):
                    pass  # nothing is lost: it has no contents of its own
                elif self._is_changed(found, status) and self._is_keepable(found, status, is_data_set):
                    yield found

    def _walk_subdirectory(
        self, parent: int, name: str, found: FoundFile, depth: int, *, in_data_set: bool
    ) -> Iterator[FoundFile]:
        if depth == MAX_DEPTH:
            self._left_out.add("name", found)
            return
        try:
            directory = os.open(name, _DIRECTORY, dir_fd=parent)
        except OSError:
            self._left_out.add("unreadable", found)
            return
        try:
            yield from self._walk(directory, f"{found.path}/", depth + 1, in_data_set=in_data_set)
        finally:
            os.close(directory)

    def _is_data_set(self, path: str) -> bool:
        """Whether a path is a download of torchvision. Patterns of the user's own decide about these, too."""
        if self._is_wanted is not None:
            return False
        return path.rpartition("/")[2] in _DATA_SETS or "/".join(path.split("/")[-2:]) in _DATA_SETS

    def _is_changed(self, found: FoundFile, status: os.stat_result) -> bool:
        """Whether a file is new, or not as the bundle had it, and the user wants such files."""
        stamp = BundledFileStamp(found.bytes, found.mtime_ns, status.st_ino)
        if self._baseline.files.get(found.path) == stamp:
            return False
        return self._is_wanted is None or self._is_wanted(found.path)

    def _is_keepable(self, found: FoundFile, status: os.stat_result, is_data_set: bool) -> bool:
        """Whether a file may be kept; counts it as left out otherwise."""
        is_link = stat.S_ISLNK(status.st_mode)
        if not (is_link or stat.S_ISREG(status.st_mode)):
            return False  # a pipe, a socket or a device has no contents
        reason: Reason | None = None
        if is_link or status.st_nlink != 1:
            reason = "link"
        elif not found.path.isprintable() or len(found.path.encode()) > MAX_PATH_BYTES:
            reason = "name"
        elif self._baseline.uid not in (None, status.st_uid):
            reason = "unreadable"
        elif is_data_set:
            reason = "data_set"
        if reason is not None:
            self._left_out.add(reason, found)
        return reason is None


def _leads_out(directory: int, path: str) -> bool:
    """Whether a link in a directory, by its path in the working directory, leads elsewhere by its own text."""
    parent, _, name = path.rpartition("/")
    try:
        target = os.path.normpath(os.path.join(parent, os.readlink(name, dir_fd=directory)))
    except OSError:
        return True
    return target.startswith("/") or target.split("/")[0] == ".."


def choose_files(found: list[FoundFile], allowance: int, left_out: LeftOutTally) -> list[FoundFile]:
    """The files that fit into so many bytes, the newest first: what a program writes last is its result."""
    chosen: list[FoundFile] = []
    for file in sorted(found, key=lambda one: one.mtime_ns, reverse=True):
        if file.bytes > allowance:
            left_out.add("limit", file)
        elif len(chosen) == MAX_FILES:
            left_out.add("count", file)
        else:
            chosen.append(file)
            allowance -= file.bytes
    return chosen
