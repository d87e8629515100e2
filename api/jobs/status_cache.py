"""Statuses as they were last answered: who asks again for a job that has not changed is sent the same bytes."""

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from api.schemas import views
from api.schemas.views import Labels
from jobs.model.state import TERMINAL
from jobs.store import JobView

#: Jobs that are polled at the same time, and what the status of one may have.
MAX_KEPT, MAX_KEPT_BYTES = 512, 8192


class Tagged(NamedTuple):
    """JSON, and an ETag of its content that begins with its version."""

    body: bytes
    tag: str


@dataclass(frozen=True, slots=True)
class Shown:
    """A status, and what it was made of. `labels` are the same object as long as the names of devices are the same."""

    view: JobView
    progress: dict[str, Any] | None
    labels: Labels
    answer: Tagged

    @property
    def is_final(self) -> bool:
        """Whether progress cannot change any more."""
        return self.progress is not None and self.view.record.state in TERMINAL


class ShownStatuses:
    """Used by one thread."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], Shown] = OrderedDict()

    def last(self, tenant: str, job: str) -> Shown | None:
        return self._kept.get((tenant, job))

    def answer(self, view: JobView, progress: dict[str, Any] | None, labels: Labels) -> Tagged:
        """The last one, where it was made of the same; else a new one."""
        which = view.record.tenant, view.record.id
        last = self._kept.get(which)
        if last is not None and last.view is view and last.labels is labels and last.progress == progress:
            return last.answer
        answer = _tagged(msgspec.json.encode(views.status(view, progress, labels)), view.record.version)
        self._kept.pop(which, None)
        if len(answer.body) <= MAX_KEPT_BYTES:
            self._kept[which] = Shown(view, progress, labels, answer)
            if len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        return answer


def _tagged(body: bytes, version: int) -> Tagged:
    return Tagged(body, f'W/"{version}.{hashlib.blake2b(body, digest_size=9).hexdigest()}"')
