"""Carries the files of an attempt while it runs: a thread of its supervisor, which nothing waits for before the end."""

import threading
from time import monotonic

import structlog

from jobs.storage.remote import RemoteError
from workers.carrier.attempt_carrier import AttemptCarrier
from workers.carrier.journal import CarryJournal

log = structlog.get_logger(__name__)

#: How often logs and metrics are looked at, and all files; where that takes long, seldom in proportion.
PIECES_SECONDS, FILES_SECONDS, LONGEST_SHARE = 0.5, 3.0, 10
#: How long a remote that refuses is left alone: from the first to the second.
RETRY_SECONDS = (0.5, 10.0)
#: At the end nobody waits for a remote that has taken nothing for so long.
QUIET_SECONDS = 6.0


class CarrierThread:
    """`trouble` is why nothing can be carried now; "" while it can."""

    def __init__(self, carrier: AttemptCarrier, journal: CarryJournal) -> None:
        self._carrier = carrier
        self._journal = journal
        self._changed = threading.Condition()
        self._finishing = False
        self._delay = RETRY_SECONDS[0]
        self._is_due = False
        self._carried_at = self._refused_at = monotonic()
        self._all_files_due = 0.0
        self.trouble = ""
        self.is_done = False
        self._thread = threading.Thread(target=self._run, name="carrier", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self, seconds: float) -> bool:
        """The files are complete: wait until all of them are at the remote. False: they are not, within this time or
        because it takes nothing; the journal knows what is left."""
        deadline = monotonic() + seconds
        with self._changed:
            self._finishing = self._is_due = True
            self._carried_at, self._delay = monotonic(), RETRY_SECONDS[0]
            self._changed.notify_all()
            while not (self.is_done or self._is_quiet()) and (left := deadline - monotonic()) > 0:
                self._changed.wait(min(left, PIECES_SECONDS))
            return self.is_done

    def _is_quiet(self) -> bool:
        """Whether a round that was tried so late has carried nothing."""
        return self._refused_at - self._carried_at > QUIET_SECONDS

    def _run(self) -> None:
        while not self.is_done:
            wait = self._carry(self._finishing)
            with self._changed:
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._is_due or self.is_done, wait)
                self._is_due = False

    def _carry(self, finishing: bool) -> float:
        """One round. Returns the seconds until the next one."""
        began, before, is_done = monotonic(), self._carrier.bytes_carried, False
        try:
            if finishing or began >= self._all_files_due:
                left = self._carrier.carry_once(finished=finishing)
                self._journal.write_backlog(left)
                self._all_files_due = monotonic() + max(FILES_SECONDS, LONGEST_SHARE * (monotonic() - began))
                is_done = finishing and not left
            else:
                self._carrier.carry_growing()
        except Exception as error:
            if not isinstance(error, (RemoteError, OSError)):
                log.exception("carrier_failed")
            self._refused_at = began
            return self._back_off(error)
        finally:
            if self._carrier.bytes_carried > before:
                self._carried_at = monotonic()
        if self.trouble:
            log.info("remote_is_back")
        self.trouble, self._delay = "", RETRY_SECONDS[0]
        self.is_done = is_done  # last: who waits for it finds no trouble of before
        return PIECES_SECONDS

    def _back_off(self, error: Exception) -> float:
        if not self.trouble:
            log.warning("remote_refuses", error=str(error))
        self.trouble = str(error) or type(error).__name__
        try:
            self._journal.write_backlog(self._carrier.count_left())
        except OSError as refused:
            log.warning("backlog_unknown", error=str(refused))
        delay, self._delay = self._delay, min(2 * self._delay, RETRY_SECONDS[1])
        return delay
