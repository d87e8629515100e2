"""The disks that this process and the control Redis write to, read twice a second: what brings new data is refused
while one of them has less free space than the service keeps for itself. Reading, cancelling and deleting go on."""

import asyncio
import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from jobs.support.disk_space import DiskSpace, LowDisks, read_spaces
from shardyard.contract.errors import StorageLow

LOOK_SECONDS = 0.5
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class DiskGuard:
    """`directories` are by what lies there; `reserve_bytes` is that of the settings."""

    def __init__(self, directories: Mapping[str, Path], reserve_bytes: int) -> None:
        self._directories = directories
        self._reserve_bytes = reserve_bytes
        self._low = LowDisks()
        self.spaces: list[DiskSpace] = []
        self.low: list[DiskSpace] = []  # the worst first

    async def watch(self) -> None:
        """Read the disks for as long as the process lives. One that does not answer holds up a thread, and no
        request."""
        while True:
            await asyncio.to_thread(self.look)
            await asyncio.sleep(LOOK_SECONDS)

    def look(self) -> None:
        """Read all disks once."""
        self.spaces = read_spaces(self._directories, self._reserve_bytes)
        self.low = self._low.update(self.spaces)

    def require_room(self) -> None:
        """Raises:
        StorageLow: a disk has less than the service keeps for itself.
        """
        if self.low:
            raise _refusal(self.low[0])

    @contextmanager
    def refusing_writes(self) -> Iterator[None]:
        """Have a write that a full disk refuses fail as `require_room` does, which may have seen it a moment too
        early."""
        try:
            yield
        except OSError as error:
            if error.errno in _NO_ROOM:
                raise StorageLow(f"the storage has no room left ({error.strerror}), and nothing was stored") from error
            raise


def _refusal(space: DiskSpace) -> StorageLow:
    return StorageLow(
        f"the disk of the service's {space.name} has {space.shortage}, so nothing new is stored; delete jobs that are "
        "no longer needed, and try again"
    )
