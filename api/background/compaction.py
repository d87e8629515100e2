"""Packs jobs that have ended: the control Redis keeps them in a quarter of the memory (`jobs.store.compact`)."""

import time

import structlog

from jobs import store
from jobs.store.client import RedisStore

log = structlog.get_logger(__name__)

#: A job is left as it is for this long after its end: who watches it reads it once more, and calls are repeated.
REST_SECONDS = 3.0
#: APIs of an earlier version cannot read packed jobs: they may go on for this long after the first that can.
UPGRADE_SECONDS = 900.0
#: One sweep ends after this long; a process that is about to end waits for it.
BUSY_SECONDS = 1.0


class Packing:
    """`sweep` goes through all jobs that have ended once, and then through those that ended since."""

    def __init__(
        self, control: RedisStore, rest_seconds: float = REST_SECONDS, upgrade_seconds: float = UPGRADE_SECONDS
    ) -> None:
        self._store = control
        self._rest_seconds = rest_seconds
        self._upgrade_seconds = upgrade_seconds
        self._position = 0

    def sweep(self) -> bool:
        """Returns whether there is more to do at once.

        Raises:
            Unavailable: the control Redis does not answer.
        """
        deadline = time.monotonic() + BUSY_SECONDS
        while time.monotonic() < deadline:
            found = self._store.run(store.find_unpacked(self._position, self._rest_seconds, self._upgrade_seconds))
            packed = [(ref, job.version, data) for ref, job in found.jobs if (data := _packed(ref, job)) is not None]
            if packed:
                self._store.run(store.put_packed(packed))
            self._position = found.position
            if not found.more:
                return False
        return True


def _packed(ref: str, job: store.Snapshot) -> bytes | None:
    """None where it cannot be: the job then stays as it is."""
    try:
        return store.pack(job)
    except Exception:
        log.exception("job_not_packed", job=ref)  # the others are packed all the same
        return None
