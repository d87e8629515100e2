"""Rows of lists for jobs that have ended: these do not change any more, so each row is made once.

Nearly all of them are packed. What a row shows of such a job is put, as the store has it, into a row that was encoded
once, with names of fields in place of their values: by way of a record it takes twice as long.
"""

from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from api.schemas import views
from api.schemas.views import Labels
from jobs.model.records import JobRecord
from jobs.model.state import State
from jobs.store import PackedJob
from shardyard.contract.responses import ListedJob, ReasonView, at

#: The first pages of lists, which are asked for again and again, have a place among so many; each takes 1.5 kB.
KEPT_ROWS = 2_048
#: Placements, and seconds, whose texts are kept.
_KEPT_TEXTS = 1_024

_Placed = Callable[[bytes, bytes], bytes]


class EndedRows:
    """Used by one thread."""

    def __init__(self) -> None:
        self._labels: Labels | None = None
        self._placed: _Placed
        self._rows: OrderedDict[PackedJob | tuple[str, str, int, bool], msgspec.Raw] = OrderedDict()

    def row(self, job: JobRecord | PackedJob, labels: Labels) -> msgspec.Raw:
        """The JSON of one. `labels` are the same object as long as the names of devices are the same.

        Raises:
            UnreadableSpec: a later version of the service has packed it, in a way that this one does not know.
        """
        if labels is not self._labels:
            self._labels, self._placed = labels, _placed(labels)
            self._rows.clear()
        which = job if isinstance(job, PackedJob) else (job.tenant, job.id, job.version, job.archived)
        found = self._rows.get(which)
        if found is None:
            found = msgspec.Raw(
                _row(job, self._placed)
                if isinstance(job, PackedJob)
                else msgspec.json.encode(views.listed(job, None, None, labels))
            )
            self._rows[which] = found
            if len(self._rows) > KEPT_ROWS:
                self._rows.popitem(last=False)
        return found


def _placed(labels: Labels) -> _Placed:
    """The JSON of placements, of nodes and leases as the store has them."""

    @lru_cache(_KEPT_TEXTS)
    def placed(node: bytes, leased: bytes) -> bytes:
        indexes = [int(index) for index in leased.split(b",")] if leased else []
        return msgspec.json.encode(views.placement(node.decode(), indexes, labels))

    return placed


def _value(field: str) -> Any:
    """Where the value of a field goes that is JSON. Others, between quotes, are words that need no escapes."""
    return msgspec.Raw(f"%({field})b".encode())


_ROW = msgspec.json.encode(
    ListedJob(
        id="%(id)b",
        name=_value("name"),
        state="%(state)b",
        reason=ReasonView("%(reason)b", _value("message")),
        pool="%(pool)b",
        devices=_value("devices"),
        strategy="%(strategy)b",
        priority=_value("priority"),
        labels=_value("labels"),
        attempt=_value("attempt"),
        cancel_requested=_value("cancel"),
        created_at=_value("created"),
        started_at=_value("started"),
        first_step_at=_value("first_step"),
        finished_at=_value("finished"),
        placement=_value("placement"),
        archived=False,
        links=views.links("%(id)b", State.SUCCEEDED),
        progress=None,
        queue_position=None,
    )
)
_TIMES = (b"created", b"started", b"first_step", b"finished")
_WORDS = {reason.encode(): msgspec.json.encode(words) for reason, words in views.PLAIN_WORDS.items()}


def _row(job: PackedJob, placed: _Placed) -> bytes:
    """The same as of its record."""
    (_, state, attempt, pool, name, labels, *_), fields = job.parts()
    fields[b"id"] = job.id.encode()
    fields[b"state"] = state.encode()
    fields[b"attempt"] = attempt.encode()
    fields[b"pool"] = pool.encode()
    fields[b"name"] = msgspec.json.encode(name)
    fields[b"labels"] = labels.encode() or b"{}"
    message = fields.get(b"message")
    fields[b"message"] = msgspec.json.encode(message.decode()) if message else _WORDS.get(fields[b"reason"], b'""')
    fields[b"cancel"] = b"true" if fields.get(b"cancel") == b"1" else b"false"
    fields[b"placement"] = placed(fields.get(b"node", b""), fields.get(b"leased", b""))
    for which in _TIMES:
        time = fields.get(which)
        fields[which] = b'"%b.%bZ"' % (_second(time[:-6]), time[-6:]) if time else b"null"
    return _ROW % fields


@lru_cache(_KEPT_TEXTS)  # those of one job are in the same few
def _second(seconds: bytes) -> bytes:
    return at(int(seconds) * 1_000_000)[:19].encode()
