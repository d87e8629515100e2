"""Removes what an attempt that has filled a disk wrote last: that is what the others lack the room for.

What it had stored before stays: a run that was ended for its newest checkpoint may resume from the one before that.
"""

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from jobs.support.directory_cursor import walk_directories

#: The unit of st_blocks, whatever the blocks of the file system are.
_BLOCK_BYTES = 512


@dataclass(frozen=True, slots=True)
class RemovedFiles:
    files: int = 0
    bytes: int = 0  # that they took on the disk


def remove_newest_files(directory: Path, since: float) -> RemovedFiles:
    """Remove the files below a directory that were made or changed since a time (seconds since the epoch), as the
    kernel has noted it: a program cannot set that back. Nobody writes there any more. What cannot be removed, or does
    not exist, is passed over."""
    files = size = 0
    with suppress(OSError):
        for parent, names in walk_directories(directory):
            for name in names:
                with suppress(OSError):
                    status = os.stat(name, dir_fd=parent, follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode) and status.st_ctime >= since:
                        os.unlink(name, dir_fd=parent)
                        files, size = files + 1, size + status.st_blocks * _BLOCK_BYTES
    return RemovedFiles(files, size)
