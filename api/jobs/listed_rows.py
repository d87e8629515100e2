"""Rows of lists, encoded once for jobs that have ended: those do not change any more, and most rows are theirs."""

from collections import OrderedDict

import msgspec

from api.schemas import views
from api.schemas.fleet_facts import FleetFacts
from jobs.model.records import JobRow, QueueView
from jobs.model.state import TERMINAL
from jobs.support.bounded_cache import keep_newest
from shardyard.contract.responses import Answer, Progress

#: Rows that are kept, of all tenants together, at about a kilobyte each.
MAX_ROWS = 4096
#: A row with larger labels than most is encoded each time.
MAX_ROW_BYTES = 4096


class EncodedJobList(Answer, frozen=True):
    """A `JobList` whose rows are encoded already."""

    jobs: list[msgspec.Raw]
    next: str | None = None
    total: int | None = None
    total_is_exact: bool = True
    links: dict[str, str] = msgspec.field(default_factory=dict)


class ListedRows:
    """Encoded rows by the job's row and what is known of the fleet. Not safe for several threads."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], tuple[JobRow, FleetFacts, msgspec.Raw]] = OrderedDict()

    def encode_row(
        self, job: JobRow, queue: QueueView | None, progress: Progress | None, fleet: FleetFacts
    ) -> msgspec.Raw:
        """A `ListedJob`, as JSON."""
        if job.state not in TERMINAL:
            return _encode(job, queue, progress, fleet)
        key = job.tenant, job.id
        kept = self._kept.get(key)
        if kept is not None and kept[0] is job and kept[1] is fleet:
            return kept[2]
        row = _encode(job, queue, progress, fleet)
        self._kept.pop(key, None)
        if len(bytes(row)) <= MAX_ROW_BYTES:
            keep_newest(self._kept, key, (job, fleet, row), MAX_ROWS)
        return row


def _encode(job: JobRow, queue: QueueView | None, progress: Progress | None, fleet: FleetFacts) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(views.listed_job(job, queue, progress, fleet)))
