"""Rows of lists for jobs that have ended: these do not change any more, so each row is made once."""

import msgspec

from api import views
from api.views import Labels
from jobs.record import JobRecord

#: The first pages of lists, which are asked for again and again, have a place among so many; each takes 1 kB.
KEPT_ROWS = 2_048


class EndedRows:
    """Used by one thread."""

    def __init__(self) -> None:
        self._labels: Labels | None = None
        self._rows: dict[tuple[str, str, int, bool], msgspec.Raw] = {}

    def row(self, job: JobRecord, labels: Labels) -> msgspec.Raw:
        """The JSON of one. `labels` are the same object as long as the names of devices are the same."""
        if labels is not self._labels:
            self._labels = labels
            self._rows.clear()
        which = job.tenant, job.id, job.version, job.archived
        found = self._rows.get(which)
        if found is None:
            found = msgspec.Raw(msgspec.json.encode(views.listed(job, None, None, labels)))
            if len(self._rows) >= KEPT_ROWS:
                del self._rows[next(iter(self._rows))]
            self._rows[which] = found
        return found
