"""Counts the files that the jobs of tenants keep, for those whose quota limits them.

Jobs write where the API does not look on, so the bytes are read from the disk, again and again; a submit is refused by
what was counted last.
"""

from pathlib import Path
from time import monotonic

from api.data.service_files import MOUNTED, ServiceFiles
from jobs.files import paths
from jobs.store.accounts.quotas import list_file_quotas, note_file_bytes
from jobs.store.client import RedisStore

#: A count rests for so many times as long as it took: many files cost the disk a twentieth of its time at most.
REST = 20.0


class FileQuotaCount:
    """Belongs to one API process; where several count, the last one is right."""

    def __init__(self, control: RedisStore, storage: Path, files: ServiceFiles = MOUNTED) -> None:
        self._control = control
        self._storage = storage
        self._files = files
        self._rests_until = 0.0

    def count(self) -> None:
        """Raises:
        Unavailable: the control Redis does not answer.
        OSError, StorageUnavailable: the storage does not.
        """
        if monotonic() < self._rests_until:
            return
        began = monotonic()
        for tenant in self._control.run(list_file_quotas()):
            kept = self._files.count_bytes(paths.jobs_dir(self._storage) / tenant)
            self._control.run(note_file_bytes(tenant, kept))
        self._rests_until = monotonic() + REST * (monotonic() - began)
