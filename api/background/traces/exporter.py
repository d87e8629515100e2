"""Sends the spans of jobs that have ended, each job's once the collector has taken those before it.

A file in the storage directory says up to which job they are sent. It moves on when the collector has taken them, so a
collector that is away, and a process that is killed, cost nothing but time: the next request has the same spans again,
with the same ids. One process at a time sends, for as long as it holds a lock beside the file.
"""

import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog
from opentelemetry.sdk.trace import ReadableSpan

from api.background.traces.collector import SendOutcome, TraceCollector
from api.background.traces.job_spans import build_job_spans
from api.data.service_files import MOUNTED, ServiceFiles
from jobs import store
from jobs.files import paths
from jobs.model.records import AttemptRecord, JobRecord
from jobs.store import EndedJob
from jobs.store.client import RedisStore
from jobs.support import fs

log = structlog.get_logger(__name__)

#: Of one request; a job with more has a request of its own. A span takes some 500 bytes.
MAX_SPANS = 512
MAX_JOBS = 100
#: How long it waits after a failure; twice as long after each further one.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 5.0, 300.0
#: How far it goes back where the clock of the control Redis was set back.
LOOK_BACK_US = 60 * 1_000_000
#: Of the file, which has some hundred bytes.
_MAX_FILE_BYTES = 4096


class _SentUpTo(msgspec.Struct, frozen=True):
    """The last job whose spans were sent: when it ended, in microseconds, and its ref. The layout grows at the end."""

    finished: int
    ref: str = ""


class JobTraceExporter:
    """Belongs to one API process."""

    def __init__(
        self,
        control: RedisStore,
        storage: Path,
        collector: TraceCollector,
        clock: Callable[[], float] = time.monotonic,
        files: ServiceFiles = MOUNTED,
    ) -> None:
        self._control = control
        self._files = files
        self._directory = paths.traces_dir(storage)
        self._collector = collector
        self._clock = clock
        self._failures = 0
        self._rests_until = float("-inf")

    def send_ended(self) -> bool:
        """Send the spans of the next jobs that have ended, in one request. Returns whether there is more to send now.

        Raises:
            Unavailable: the control Redis does not answer.
            OSError: the storage does not.
        """
        if self._clock() < self._rests_until:
            return False
        with fs.hold_directory(self._directory) as alone:
            return alone and self._send_next()

    def _send_next(self) -> bool:
        sent = self._read_position()
        if sent is None:  # what ended before traces were on has none
            self._note_position(_SentUpTo(self._control.run(store.list_ended(0, "", 0)).now))
            return False
        page = self._control.run(store.list_ended(sent.finished, sent.ref, MAX_JOBS))
        if page.now < sent.finished:
            self._note_position(_SentUpTo(page.now - LOOK_BACK_US))
            return True
        if not page.jobs:
            return False
        jobs, spans = self._collect_spans(page.jobs)
        if spans and not self._send(jobs, spans):
            return False
        self._note_position(_SentUpTo(jobs[-1].finished, jobs[-1].ref))
        return len(jobs) < len(page.jobs) or len(page.jobs) == MAX_JOBS

    def _collect_spans(self, ended: tuple[EndedJob, ...]) -> tuple[list[EndedJob], list[ReadableSpan]]:
        """The first of the jobs, as many as fit into a request, and their spans."""
        jobs: list[EndedJob] = []
        spans: list[ReadableSpan] = []
        for job in ended:
            of_job = self._build_spans(job)
            if spans and len(spans) + len(of_job) > MAX_SPANS:
                break
            jobs.append(job)
            spans += of_job
        return jobs, spans

    def _build_spans(self, job: EndedJob) -> list[ReadableSpan]:
        found = self._control.run(store.snapshot(job.tenant, job.job))
        if found is None:  # deleted, or archived, just now
            return []
        record = JobRecord.from_fields(job.tenant, job.job, found.job)
        attempts = [AttemptRecord.from_fields(number, fields) for number, fields in enumerate(found.attempts, 1)]
        return build_job_spans(record, attempts, self._collector.resource)

    def _send(self, jobs: list[EndedJob], spans: list[ReadableSpan]) -> bool:
        """Whether that is done, one way or the other."""
        outcome = self._collector.send(spans)
        if outcome is SendOutcome.FAILED:
            pause = min(FIRST_PAUSE_SECONDS * 2**self._failures, LONGEST_PAUSE_SECONDS)
            self._failures = min(self._failures + 1, 10)
            self._rests_until = self._clock() + pause
            log.warning("traces_not_sent", why=self._collector.last_answer, next_try_seconds=pause)
            return False
        if outcome is SendOutcome.REFUSED:
            refs = {"first": jobs[0].ref, "last": jobs[-1].ref}
            log.error("traces_refused", why=self._collector.last_answer, jobs=len(jobs), **refs)
        elif self._failures:
            log.info("traces_sent_again")
        self._failures = 0
        return True

    def _read_position(self) -> _SentUpTo | None:
        self._files.bring(self._position_file)
        try:
            body = fs.read_plain_file(self._position_file, _MAX_FILE_BYTES)
            return msgspec.json.decode(body, type=_SentUpTo)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            log.error("traces_position_damaged", file=str(self._position_file), error=str(error))
            return None

    def _note_position(self, sent: _SentUpTo) -> None:
        fs.replace_synced(self._position_file, msgspec.json.encode(sent))
        self._files.publish(self._position_file)

    @property
    def _position_file(self) -> Path:
        return self._directory / "sent.json"
