"""Publishes the split report of an attempt: snapshots while it runs, and the final report in its file.

A fault in the report never ends a run: it is logged once for each place, and the report stays as it was.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import structlog

from jobs.protocol.hardware import AttemptSamples
from jobs.protocol.packets import SingleRecord
from jobs.protocol.records import MetricSample, Step
from jobs.splits.device_marks import DeviceTimes
from jobs.store.accounts.webhooks import PostedFinding
from jobs.support import failpoints
from shardyard.contract.report import Finding, Report, encode_report
from workers.supervisor.report.aggregator import Aggregator
from workers.supervisor.report.shard_lines import ShardLine
from workers.supervisor.report.step_blocks import StepBlock
from workers.supervisor.telemetry.shipper import StreamShipper

log = structlog.get_logger(__name__)

#: Between two snapshots: at least this, and so many times what the last one took of a core.
REPORT_SECONDS = 1.0
REPORT_FACTOR = 50
#: Added to the last snapshot where the final report cannot be made.
UNFINISHED = (
    "the report ends before the end of the attempt: a later one could not be made from what the ranks have sent"
)
#: Snapshots in the telemetry Redis; the files in storage are kept.
SNAPSHOT_TTL = 86_400
#: The same for a report whose file is written: readers use that, except those that are about to look in Redis.
WRITTEN_TTL = 5
#: Findings of an attempt that webhooks hear of.
MAX_POSTED_FINDINGS = 64

#: Takes findings that no report of this attempt had before.
FindingListener = Callable[[Sequence[PostedFinding]], None]


def ignore_findings(_: Sequence[PostedFinding]) -> None:
    """For reports that nobody waits for."""


class ReportPublisher:
    """Feeds the aggregator, and publishes what it makes: as `key` in the telemetry Redis, at last as `file`.
    `on_warnings` hears of each warning once, for each device that it is about."""

    def __init__(
        self,
        aggregator: Aggregator,
        shipper: StreamShipper,
        key: str,
        file: Path,
        on_warnings: FindingListener = ignore_findings,
    ) -> None:
        self._aggregator = aggregator
        self._shipper = shipper
        self._key = key
        self._file = file
        self._on_warnings = on_warnings
        self._posted: set[tuple[str, int | None]] = set()
        self._changed = False  # since it was last published
        self._publish_after = 0.0
        self._failures: set[str] = set()
        self._final: bytes | None = None
        self._final_report: Report | None = None
        self._last_snapshot: Report | None = None

    def add_record(self, rank: int, record: SingleRecord, source: int) -> None:
        self._changed = True
        with self._logging_failure(type(record).__name__):
            self._aggregator.add_record(rank, record, source)

    def add_steps(self, rank: int, steps: Sequence[Step], source: int) -> list[ShardLine]:
        """Count steps of one process; returns the log lines about them."""
        self._changed = True
        try:
            return self._aggregator.add_steps(rank, steps, source)
        except Exception:  # noqa: BLE001  (logged there, once)
            self._log_failure("Step")
            return []

    def add_blocks(self, rank: int, blocks: Sequence[StepBlock], source: int) -> list[ShardLine]:
        """The same of steps in blocks."""
        self._changed = True
        try:
            return [line for block in blocks for line in self._aggregator.add_block(rank, block, source)]
        except Exception:  # noqa: BLE001  (logged there, once)
            self._log_failure("StepBlock")
            return []

    def add_samples(self, samples: AttemptSamples) -> None:
        """Take new samples of the hardware. They alone are no reason to publish a snapshot."""
        with self._logging_failure("samples"):
            self._aggregator.add_samples(samples, time.time())

    def add_metrics(self, metrics: Sequence[MetricSample]) -> None:
        with self._logging_failure("Metric"):
            self._aggregator.add_metrics(metrics)

    def rank_ended(self, rank: int) -> None:
        with self._logging_failure("end of a rank"):
            self._aggregator.rank_ended(rank)

    def source_ended(self, rank: int, source: int) -> None:
        with self._logging_failure("end of a process"):
            self._aggregator.source_ended(rank, source)

    def dump_state(self) -> bytes | None:
        """The state of the report for a checkpoint; None where a fault in the report prevents it."""
        try:
            return self._aggregator.dump_state()
        except Exception:  # noqa: BLE001  (logged there, once)
            self._log_failure("checkpoint")
            return None

    def load_state(self, state: bytes) -> None:
        """Go on with the report of an earlier attempt.

        Raises:
            ValueError: the state cannot be used.
        """
        self._aggregator.load_state(state)

    def publish_if_due(self, now: float) -> None:
        """Publish a snapshot where something has changed, at most once a second; `now` is monotonic."""
        if not self._changed or now < self._publish_after:
            return
        self._changed, began = False, time.thread_time()
        with self._logging_failure("snapshot"):
            snapshot = self._aggregator.make_report(False, "", time.time())
            self._shipper.put_blob(self._key, encode_report(snapshot), SNAPSHOT_TTL)
            self._last_snapshot = snapshot
            self._post_warnings(snapshot.findings)
        self._publish_after = now + max(REPORT_SECONDS, REPORT_FACTOR * (time.thread_time() - began))

    def write_final(self, last_line: str) -> str:
        """Write and publish the final report; nothing is added from now on. May be called again.

        Returns the error of the disk that refused it; "" when it is written, or the fault is in the report itself.
        """
        try:
            if self._final is None:
                self._final_report, self._final = self._make_final(last_line)
                self._shipper.put_blob(self._key, self._final, SNAPSHOT_TTL)
                self._post_warnings(self._final_report.findings)
            write_atomically(self._file, self._final)
            self._shipper.put_blob(self._key, self._final, WRITTEN_TTL)
        except OSError as error:
            if "disk" not in self._failures:
                self._failures.add("disk")
                log.error("report_not_written", error=str(error))
            return error.strerror or str(error)
        except Exception:  # noqa: BLE001  (logged there, once)
            self._log_failure("final report")
        return ""

    def _post_warnings(self, findings: Sequence[Finding]) -> None:
        """Pass on the warnings that are new."""
        new = []
        for finding in findings:
            device = finding.numbers.get("device")
            about = finding.code, None if device is None else int(device)
            if finding.severity != "info" and about not in self._posted and len(self._posted) < MAX_POSTED_FINDINGS:
                self._posted.add(about)
                new.append(PostedFinding(finding.severity, *about, finding.message))
        if new:
            self._on_warnings(new)

    def _make_final(self, last_line: str) -> tuple[Report, bytes]:
        """The final report, or the last snapshot where a fault prevents it. Raises where there is none either."""
        try:
            report = self._aggregator.make_report(True, last_line, time.time())
            return report, encode_report(report)
        except Exception:
            self._log_failure("final report")
            if self._last_snapshot is None:
                raise
            notes = self._last_snapshot.notes | {"patterns": UNFINISHED}
            report = msgspec.structs.replace(self._last_snapshot, final=True, notes=notes)
            return report, encode_report(report)

    @property
    def device_times(self) -> DeviceTimes | None:
        """The final report with the attempt's own times, once it was made."""
        report = self._final_report
        return None if report is None else DeviceTimes(report, self._aggregator.own_row_times())

    @contextlib.contextmanager
    def _logging_failure(self, where: str) -> Iterator[None]:
        try:
            yield
        except Exception:  # noqa: BLE001  (logged there, once)
            self._log_failure(where)

    def _log_failure(self, where: str) -> None:
        """Log the exception at hand, once for each place: a fault may come with every record."""
        if where not in self._failures:
            self._failures.add(where)
            log.exception("report_failed", at=where)


def write_atomically(path: Path, body: bytes) -> None:
    """Replace a file so that a reader sees the old or the new one, whatever happens in between.

    Raises:
        OSError: the disk refuses.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(body)
            file.flush()
            failpoints.reach("report.written")
            os.fsync(file.fileno())
        failpoints.reach("report.synced")
        temporary.rename(path)
        failpoints.reach("report.renamed")
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
