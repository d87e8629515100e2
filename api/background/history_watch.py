"""Notices that the control Redis has less than it had: a replica without the newest changes became the primary, or the
server was started on an older file.

Every change of a job makes an entry in the list of changes (`sy:changes`), whose ids only grow. The newest one that
this process has seen is kept beside the files of the service, for its next start and for others.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import structlog

from jobs import store
from jobs.store.client import RedisStore
from jobs.support.fs import replace_file

log = structlog.get_logger(__name__)

#: In the storage directory. Back-ups leave it out: a restored service has less than it had, and that is known.
FILE: Final = ".newest-change"
_ID: Final = re.compile(r"\d{1,15}-\d{1,15}")
_NONE: Final = "0-0"


class HistoryWatch:
    """Belongs to one API process; each says for itself what it finds missing."""

    def __init__(self, control: RedisStore, storage: Path, count_loss: Callable[[], None]) -> None:
        self._control = control
        self._file = storage / FILE
        self._count_loss = count_loss
        self._seen: str | None = None

    def compare(self) -> None:
        """Raises:
        Unavailable: the control Redis does not answer.
        OSError: the storage does not.
        """
        if self._seen is None:
            self._seen = self._read_file()
        newest = self._control.run(store.read_changes(_NONE, 1)).newest
        if newest == self._seen:
            return
        if _position(newest) < _position(self._seen):
            log.error(
                "control_redis_went_back",
                to=_format_time(newest),
                known_until=_format_time(self._seen),
                action="compare the audit of that time with the jobs; submitting again with the same Idempotency-Key "
                "creates a lost job again",
            )
            self._count_loss()
        self._seen = newest
        replace_file(self._file, newest.encode())

    def _read_file(self) -> str:
        with suppress(FileNotFoundError, UnicodeDecodeError):
            text = self._file.read_text()
            if _ID.fullmatch(text):
                return text
        return _NONE


def _position(change: str) -> tuple[int, int]:
    milliseconds, _, count = change.partition("-")
    return int(milliseconds), int(count)


def _format_time(change: str) -> str:
    return datetime.fromtimestamp(_position(change)[0] / 1000, UTC).isoformat(timespec="milliseconds")
