"""Counts the files that the jobs of tenants keep, for those whose quota limits them.

Jobs write where the API does not look on, so the bytes are read from the disk, again and again; a submit is refused by
what was counted last.
"""

import os
from contextlib import suppress
from pathlib import Path
from time import monotonic

from jobs.files import paths
from jobs.store.accounts.quotas import list_file_quotas, note_file_bytes
from jobs.store.client import RedisStore
from jobs.support.directory_cursor import walk_directories

#: The unit of st_blocks, whatever the blocks of the file system are.
BLOCK_BYTES = 512
#: A count rests for so many times as long as it took: many files cost the disk a twentieth of its time at most.
REST = 20.0


class FileQuotaCount:
    """Belongs to one API process; where several count, the last one is right."""

    def __init__(self, control: RedisStore, storage: Path) -> None:
        self._control = control
        self._storage = storage
        self._rests_until = 0.0

    def count(self) -> None:
        """Raises:
        Unavailable: the control Redis does not answer.
        OSError: the storage does not.
        """
        if monotonic() < self._rests_until:
            return
        began = monotonic()
        for tenant in self._control.run(list_file_quotas()):
            kept = count_bytes(paths.jobs_dir(self._storage) / tenant)
            self._control.run(note_file_bytes(tenant, kept))
        self._rests_until = monotonic() + REST * (monotonic() - began)


def count_bytes(directory: Path) -> int:
    """Bytes that the files below a directory take on the disk; 0 where there is none. Raises OSError."""
    total = 0
    with suppress(FileNotFoundError):  # a directory may go while it is read: what is left of it counts next time
        for opened, names in walk_directories(directory):
            for name in names:
                with suppress(FileNotFoundError):
                    total += os.stat(name, dir_fd=opened, follow_symlinks=False).st_blocks * BLOCK_BYTES
    return total
