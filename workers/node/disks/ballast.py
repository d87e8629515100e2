"""A file of the node that holds space on its disk, to be given up when the disk is full.

A watcher comes too late where a job fills the disk in one call, but space that is allocated is out of the job's reach.
Once the job has ended, the file makes room for what others still have to write: checkpoints, reports, logs.
"""

import os
from pathlib import Path

import structlog

from jobs.support import fs
from jobs.support.disk_space import DiskSpace

log = structlog.get_logger(__name__)

#: Its size in parts of the reserve, and how much of it the disk must have to spare when it is allocated.
RESERVE_PARTS = 2
SPARE_LEVEL = 2.0


class Ballast:
    """One file, `path`, which a worker that was restarted finds again. On a file system that cannot allocate space
    ahead there is none. Where `nodes` share the disk, each holds its part of it."""

    def __init__(self, path: Path, nodes: int = 1) -> None:
        self._path = path
        self._nodes = nodes
        self._is_possible = True

    def is_on(self, space: DiskSpace) -> bool:
        """Whether the file takes space of this file system."""
        try:
            found = self._path.stat()
        except OSError:
            return False
        return found.st_dev == space.device and found.st_blocks > 0

    def release(self) -> None:
        """Give its space up. Raises OSError."""
        os.truncate(self._path, 0)  # which needs no room, and wants the file to stay, unlike a file made anew
        log.warning("ballast_released", path=str(self._path))

    def restore(self, space: DiskSpace) -> None:
        """Allocate it again, where its file system, `space`, has plenty of room."""
        size = space.reserve_bytes // (RESERVE_PARTS * self._nodes)
        if not size or not self._is_possible or space.level < SPARE_LEVEL + 1 / RESERVE_PARTS or self.is_on(space):
            return
        try:
            fs.allocate_file(self._path, size)
        except OSError as error:
            self._is_possible = False
            self._path.unlink(missing_ok=True)
            log.warning("no_ballast", path=str(self._path), error=str(error))
